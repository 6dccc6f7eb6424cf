"""Runtime checks, and the math that only fed them, leave the program before it is compiled.

They come from argument validation (`MultivariateNormal(mean, scale_tril=...)`), from
`torch._assert_async`, from `torch._check(m.sum().item() == 4)` and transformers'
`torch_compilable_check`, and from export itself, which bounds the sizes of `x[mask]`.

A failed check on the values of a tensor cannot come back as an error from a GPU: a device assert
breaks the CUDA context for the rest of the process, and a compiler that tries its kernels on
made-up buffers trips it at compile time. A check on a value read to the host is dropped by
ExecuTorch, which keeps the read: the symbol that the read makes is left without a reader
("Pending unbacked symbols"), and the program may fall apart into several delegates
(pytorch/executorch#8065).
"""

from __future__ import annotations

from dataclasses import dataclass

from graftwork.plugins import GraphRewrite, PluginInfo, hookimpl
from graftwork.plugins.toolkit.graphs import erase_unread
from graftwork.plugins.torch_private import unbacked_bindings

from .checks import Check, find_checks
from .properties import list_properties
from .verdicts import Judge, Policy

__all__ = ["StripAssertsOptions", "describe_plugin", "list_properties", "rewrite_graph"]


@dataclass(frozen=True)
class StripAssertsOptions:
    """Which checks go.

    Attributes:
        policy: `async` drops checks on tensors; `ranges` also those that only bound an unbacked
            size; `all` every check. Whatever the policy, a check on a value that was read from a
            tensor for that check alone goes, with the read, where the target drops it anyway.
    """

    policy: Policy = "async"


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="drop runtime checks on tensors and the math that only fed them",
        options=StripAssertsOptions,
        after=("masked-copy-to-where",),
    )


@hookimpl
def rewrite_graph(graph: GraphRewrite, options: StripAssertsOptions) -> None:
    """Drop the checks of one graph that the policy names, and what only fed them."""
    checks = find_checks(graph.graph)
    if not checks:
        return
    judge = Judge(graph, options.policy, checks)
    dropped = []
    for check in checks:
        verdict = judge.verdict(check)
        if not verdict.drop:
            graph.decline(check.node, verdict.reason)
        elif graph.claim(check.node, verdict.reason):
            dropped.append(check)
    judge.commit()
    _erase(graph, dropped)


def _erase(graph: GraphRewrite, dropped: list[Check]) -> None:
    """Erase the checks, what only fed them, and the ranges of symbols that are gone."""
    makers = {
        node: unbacked_bindings(node) for node in graph.graph.nodes if unbacked_bindings(node)
    }
    feeders = []
    for check in dropped:
        check.bypass_token()
        feeders.extend(check.node.all_input_nodes)
        graph.graph.erase_node(check.node)
    erase_unread(feeders)
    for node, symbols in makers.items():
        if node._erased:
            for symbol in symbols:
                graph.program.range_constraints.pop(symbol, None)
