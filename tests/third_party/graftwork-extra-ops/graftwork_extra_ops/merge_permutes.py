"""`x.permute(...).permute(...)`, as attention code with its transposes writes it.

Two permutes in a row are one; two that undo each other are none.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations

import torch
from hypothesis import strategies as st
from torch import Tensor

from graftwork.plugins import Case, GraphRewrite, PluginInfo, Property, hookimpl

PERMUTE = torch.ops.aten.permute.default


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="two permutes in a row become one")


@hookimpl
def rewrite_graph(graph: GraphRewrite) -> None:
    """Merge every permute of a permute, unless the first has other readers."""
    for node in graph.graph.find_nodes(op="call_function", target=PERMUTE):
        first = node.args[0]
        if first.target is not PERMUTE:
            continue
        if len(first.users) > 1:
            graph.decline(node, f"{first.name} has other readers and stays")
            continue
        rank = len(node.args[1])
        order = [first.args[1][dim] % rank for dim in node.args[1]]
        if not graph.claim(node, f"one permute to {order}"):
            return
        node.args = (first.args[0], order)
        graph.graph.erase_node(first)


def _twice(x: Tensor, first: Sequence[int], second: Sequence[int]) -> Tensor:
    return x.permute(first).permute(second)


def _first_is_read(x: Tensor, first: Sequence[int], second: Sequence[int]) -> Tensor:
    y = x.permute(first)
    return y.permute(second) * y.sum()


@hookimpl
def list_properties() -> Sequence[Property]:
    """Merged permutes give the same values and strides; a shared one stays."""
    orders = st.sampled_from([*permutations(range(3)), (-1, 0, 1), (-2, -1, 0)])
    inputs = st.tuples(st.builds(torch.randn, st.just(2), st.integers(1, 3), st.just(4)))
    settings = st.fixed_dictionaries({"first": orders, "second": orders})
    return [
        Property("merged-equals-both", st.builds(Case, st.just(_twice), inputs, settings)),
        Property(
            "a-permute-with-other-readers-stays",
            st.builds(Case, st.just(_first_is_read), inputs, settings, st.just(0)),
        ),
    ]
