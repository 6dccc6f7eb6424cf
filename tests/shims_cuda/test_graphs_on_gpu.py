"""On a GPU: kernels in a captured graph, replayed on other values."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from graftwork.shims_cuda.index_put.operators import (
    index_put,
    mask_counts,
    mask_positions,
    mask_put,
)
from graftwork.shims_cuda.scatter import scatter_src, scatter_value
from graftwork.shims_cuda.scatter_reduce import properties as reducing
from graftwork.shims_cuda.scatter_reduce import scatter_reduce
from graftwork.shims_cuda.sort import operators

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def captured() -> dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    x, src = torch.randn(50, 64, device="cuda"), torch.randn(300, 64, device="cuda")
    index = torch.randint(50, (300, 64), device="cuda")
    calls: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "scatter": (lambda x, i, v: scatter_src(x, 0, i, v), (x, index, src)),
        "scatter-value": (lambda x, i, v: scatter_value(x, 0, i, v[0, 0]), (x, index, src)),
        "put": (lambda x, i, v: index_put(x, [i], v, True, True), (x, index[:, 0], src)),
        "mask-put": (lambda x, v: mask_put(x, x > 0, 0, v[:, :1].flatten()), (x, src)),
        "nonzero": (
            lambda x: mask_positions(x > 0, mask_counts(x > 0)[0], 700),
            (x.abs() * (torch.arange(3200, device="cuda").view(50, 64) < 700),),
        ),
        "sort": (lambda x: operators.sort(x, 0, True), (x,)),
        "long-sort": (lambda x: operators.sort(x, 0, False), (src.repeat(1, 8).flatten(),)),
        "topk": (lambda x: operators.topk(x, 9, 0, True), (src.flatten(),)),
    }
    for reduce in reducing.REDUCTIONS:
        calls[reduce] = (
            lambda x, i, v, r=reduce: scatter_reduce(x, 0, i, v, r, False, True),
            (x, index, src),
        )
    return calls


CAPTURED = ("scatter", "scatter-value", "put", "mask-put", "nonzero", "sort", "long-sort", "topk")


@pytest.mark.parametrize("name", [*CAPTURED, *reducing.REDUCTIONS])
def test_a_captured_graph_replays_on_other_values(name: str) -> None:
    call, inputs = captured()[name]
    call(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for _ in range(3):
        for tensor in inputs:
            tensor.copy_(tensor.roll(1) if name == "nonzero" else tensor.flip(0))
        graph.replay()
        expected = call(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for ours, theirs in zip(outputs, expected, strict=True):
            assert torch.equal(ours, theirs)
