"""strip-asserts: programs that lower and run once their checks are gone."""

from __future__ import annotations

import importlib.util
import operator
from typing import Any

import pytest
import torch
from checked_programs import (
    COUNTS,
    MASK,
    X,
    bounds_count,
    call,
    counts_nonzero,
    export,
    operators,
    placeholder,
    run_pass,
    strip,
    sum_of_counts,
)
from torch import fx

aten = torch.ops.aten


def test_a_validating_gaussian_head_exports_and_matches_eager() -> None:
    class Head(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mean = torch.nn.Linear(6, 3)
            self.scale = torch.nn.Linear(6, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            tril = torch.diag_embed(torch.nn.functional.softplus(self.scale(x)) + 0.1)
            policy = torch.distributions.MultivariateNormal(
                self.mean(x), scale_tril=tril, validate_args=True
            )
            return policy.mean + policy.variance

    head = Head().eval()
    x = torch.randn(2, 6)
    stripped, log = strip(export(head, x))
    assert log.fired("strip-asserts") == 2
    assert not any("assert" in str(target) for target in operators(stripped))
    torch.testing.assert_close(stripped.module()(x), head(x))


def test_two_matmuls_around_a_check_end_in_one_delegate() -> None:
    """pytorch/executorch#8065, and the value is eager's in ExecuTorch's own runtime."""
    from executorch.backends.xnnpack.partition.xnnpack_partitioner import XnnpackPartitioner
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    class TwoLayers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one = torch.nn.Linear(4, 4)
            self.two = torch.nn.Linear(4, 4)

        def forward(self, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
            y = self.one(x)
            torch._check(m.sum().item() == 2)
            torch._assert_async((y < 1e6).all(), "bounded")
            return self.two(y)

    module, x = TwoLayers().eval(), torch.randn(3, 4)
    stripped, _ = strip(export(module, x, COUNTS))
    edge = to_edge_transform_and_lower(stripped, partitioner=[XnnpackPartitioner()])
    names = [node.name for node in edge.exported_program().graph.nodes]
    assert sum(name.startswith("executorch_call_delegate") for name in names) == 1
    lowered = Runtime.get().load_program(edge.to_executorch().buffer).load_method("forward")
    torch.testing.assert_close(lowered.execute((x, COUNTS))[0], module(x, COUNTS))


@pytest.mark.parametrize(
    ("function", "inputs", "other", "expected"),
    [
        (bounds_count, (X, MASK), (X, ~MASK), X[~MASK] * 2),
        (counts_nonzero, (X - 1,), (X,), torch.nonzero(X)),
    ],
    ids=["bounds_count", "counts_nonzero"],
)
def test_an_unbounded_count_runs_in_executorch(
    function: Any, inputs: Any, other: Any, expected: torch.Tensor
) -> None:
    """pytorch/pytorch#192857, pytorch/pytorch#112443."""
    from executorch.exir import to_edge_transform_and_lower
    from executorch.runtime import Runtime

    stripped, _ = strip(export(function, *inputs), "ranges")
    buffer = to_edge_transform_and_lower(stripped).to_executorch().buffer
    lowered = Runtime.get().load_program(buffer).load_method("forward")
    torch.testing.assert_close(lowered.execute(inputs)[0], function(*inputs))
    torch.testing.assert_close(lowered.execute(other)[0], expected)


def test_an_unbounded_count_runs_in_an_aoti_package(tmp_path: Any) -> None:
    """pytorch/pytorch#192857: the compiler must not write the dropped checks again."""
    stripped, _ = strip(export(sum_of_counts, X, MASK, ~MASK & (X > 3)), "ranges", "aoti")
    path = torch._inductor.aoti_compile_and_package(
        stripped, package_path=str(tmp_path / "counts.pt2")
    )
    lowered = torch._inductor.aoti_load_package(path)
    everything = torch.ones(6, dtype=torch.bool)
    for one in (MASK, everything):
        torch.testing.assert_close(lowered(X, one, one), torch.cat([X[one]] * 2))


@pytest.mark.skipif(
    importlib.util.find_spec("transformers") is None, reason="transformers is not installed"
)
def test_compilable_checks_of_transformers_go() -> None:
    from transformers.utils.import_utils import torch_compilable_check

    def merged(x: torch.Tensor, m: torch.Tensor, f: torch.Tensor) -> torch.Tensor:
        torch_compilable_check(x[m].numel() == f.numel(), "features and tokens differ")
        torch_compilable_check((x > 0).all(), "positive")
        return x.masked_scatter(m, f)

    inputs = (X, MASK, torch.ones(2))
    stripped, _ = strip(export(merged, *inputs))
    assert operators(stripped) == [aten.masked_scatter.default]
    torch.testing.assert_close(stripped.module()(*inputs), merged(*inputs))


def test_ten_thousand_checks_on_one_long_sum_take_no_recursion() -> None:
    graph = fx.Graph()
    x = placeholder(graph, "x", X)
    total: Any = 0
    for _ in range(10_000):
        item = call(graph, aten.item.default, 1, x)
        total = call(graph, operator.add, 1, item, total)
        call(graph, aten._assert_scalar.default, None, total, "sum")
    graph.output((x,))
    assert run_pass(graph).applications == 10_000
    assert len(graph.nodes) == 2
