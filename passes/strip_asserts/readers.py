"""Which reads of tensor values serve checks alone.

`torch._check(m.sum().item() == 4)` reads a value for the check and for nothing else. Where the
target drops the check, the read must go too, or the symbol it makes is left without a reader.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import fx
from torch._ops import OpOverload

from graftwork.plugins.toolkit.graphs import is_pure
from graftwork.plugins.torch_private import unbacked_bindings

_ITEM_READS = ("aten::item", "aten::_local_scalar_dense")


def served_by_checks_alone(graph: fx.Graph, checks: Iterable[fx.Node]) -> set[fx.Node]:
    """Nodes that depend on a value read from a tensor and that only checks read in the end.

    Takes time linear in the graph.
    """
    checked = set(checks)
    live: set[fx.Node] = set()
    for node in reversed(graph.nodes):
        if node not in checked and (any(user in live for user in node.users) or not is_pure(node)):
            live.add(node)
    served: set[fx.Node] = set()
    for node in graph.nodes:
        if node in live or node in checked:
            continue
        if _reads_values(node) or any(feeder in served for feeder in node.all_input_nodes):
            served.add(node)
    return served


def _reads_values(node: fx.Node) -> bool:
    """Whether the node turns values of a tensor into a number or a size on the host."""
    if unbacked_bindings(node):
        return True
    target = node.target
    if not isinstance(target, OpOverload):
        return False
    if target._schema.name == "aten::index":
        return any(_is_mask(index) for index in node.args[1])  # type: ignore[union-attr]
    return target._schema.name in _ITEM_READS or torch.Tag.dynamic_output_shape in target.tags


def _is_mask(index: object) -> bool:
    return isinstance(index, fx.Node) and index.meta["val"].dtype in (torch.bool, torch.uint8)
