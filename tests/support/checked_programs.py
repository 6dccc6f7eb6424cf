"""Programs with runtime checks: exported, stripped, and what is left of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from graftwork.passes import strip_asserts
from graftwork.plugins import (
    GraphRewrite,
    LoweringContext,
    RewriteLog,
    rewrite_program,
    select_plugins,
)
from graftwork.plugins.exportable_checks import exportable_checks
from graftwork.plugins.toolkit.graphs import sub_graphs

aten = torch.ops.aten
MASK = torch.tensor([True, True, False, False, False, False])
COUNTS = torch.tensor([1, 1, 0, 0, 0, 0])
X = torch.arange(6.0) + 1


class Program(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


def export(function: Callable[..., Any], *inputs: Any, **kwargs: Any) -> ExportedProgram:
    module = function if isinstance(function, torch.nn.Module) else Program(function)
    with exportable_checks():
        return torch.export.export(module, inputs, **kwargs)


def strip(
    program: ExportedProgram, policy: str = "async", target: str = "cpu", limit: int | None = None
) -> tuple[ExportedProgram, RewriteLog]:
    selection = select_plugins(
        enable=[f"strip-asserts{{policy={policy}}}"], disable=["all"], environment={}
    )
    return rewrite_program(
        program, selection, LoweringContext(target=target, application_limit=limit)
    )


def operators(program: ExportedProgram) -> list[Any]:
    return [
        node.target
        for _, module in sub_graphs(program.graph_module)
        for node in module.graph.nodes
        if node.op == "call_function"
    ]


def reasons(log: RewriteLog) -> str:
    return "\n".join(event.detail for event in log.events if not event.rewrote)


def checks_tensor(x: torch.Tensor) -> torch.Tensor:
    torch._assert_async((x > 0).all(), "x is positive")
    return x * 2


def casts(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.float64) + 1


def checks_value(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(m.sum().item() == 2)
    return x * 2


def bounds_value(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(m.sum().item() <= 4)
    return x * 2


def checks_truth(x: torch.Tensor) -> torch.Tensor:
    torch._check((x > 0).all().item())
    return x * 2


def checks_count(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(x[m].numel() == 2)
    return x * 2


def reads_twice(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    torch._check(m[0].item() >= 1)
    torch._check(m[0].item() + m[1].item() < 5)
    return x * 2


def bounds_used_value(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    n = m.sum().item()
    torch._check(n <= 4)
    return x * n


def bounds_count(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    y = x[m]
    torch._check(y.shape[0] <= 3)
    return y * 2


def counts_nonzero(x: torch.Tensor) -> torch.Tensor:
    return torch.nonzero(x)


def equals_other_size(x: torch.Tensor, m: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    z = x[m]
    torch._check(z.shape[0] == y.shape[0])
    return z + y


def checks_in_branch(p: torch.Tensor, x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
    def then(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        torch._check(m.sum().item() <= 4)
        return x * 2

    def otherwise(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return x + 1

    return torch.cond(p, then, otherwise, (x, m))  # type: ignore[no-any-return]


def sum_of_counts(x: torch.Tensor, m: torch.Tensor, n: torch.Tensor) -> torch.Tensor:
    one, other = x[m], x[n]
    torch._check(one.shape[0] + other.shape[0] <= 5)
    torch._check(one.shape[0] >= other.shape[0])
    return torch.cat([one, other])


def call(graph: fx.Graph, target: Any, value: Any, *args: Any) -> fx.Node:
    node = graph.call_function(target, args)
    node.meta["val"] = value
    return node


def placeholder(graph: fx.Graph, name: str, value: Any) -> fx.Node:
    node = graph.placeholder(name)
    node.meta["val"] = value
    return node


def run_pass(graph: fx.Graph, policy: Any = "async") -> RewriteLog:
    program = export(casts, X)
    module = fx.GraphModule(torch.nn.Module(), graph)
    log = RewriteLog()
    plugin = select_plugins(["strip-asserts"], ["all"], environment={}).enabled[0].plugin
    strip_asserts.rewrite_graph(
        GraphRewrite(module, "", program, LoweringContext(), plugin, log),
        strip_asserts.StripAssertsOptions(policy),
    )
    module.graph.lint()
    return log
