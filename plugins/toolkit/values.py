"""Which nodes of a graph must hold equal values.

User code that computes the same thing twice, such as `out[x > 0] = src[x > 0]`, leaves two chains
of equal nodes. Numbering gives both the same number: a node's number stands for its operator, its
constants and its inputs' numbers, looked up in one table, in one walk over the graph.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import fx
from torch._ops import OpOverload

from .graphs import is_scalar_function

# Operators whose GPU kernels combine colliding elements in no fixed order (PyTorch's list under
# `torch.use_deterministic_algorithms`): two runs on equal inputs may differ.
_UNORDERED = frozenset(
    [
        "bincount",
        "cumsum",
        "embedding_bag",
        "_embedding_bag",
        "histc",
        "index_add",
        "index_copy",
        "index_put",
        "index_reduce",
        "kthvalue",
        "median",
        "nanmedian",
        "put",
        "scatter",
        "scatter_add",
        "scatter_reduce",
    ]
)


class ValueNumbers:
    """A number for each node of a graph; equal numbers mean equal values.

    Takes time linear in the graph and uses no recursion over it. Two random draws, two
    uninitialised tensors, two calls of an operator that is not known to be deterministic, and the
    same operator before and after a write in place, never get one number.
    """

    def __init__(self, graph: fx.Graph) -> None:
        self._numbers: dict[fx.Node, int] = {}
        self._writes_before: dict[fx.Node, int] = {}
        table: dict[object, int] = {}
        writes = 0
        for node in graph.nodes:
            self._writes_before[node] = writes
            key = (writes, self._key(node)) if _is_deterministic(node) else node
            self._numbers[node] = table.setdefault(key, len(table))
            writes += _writes(node)

    def same(self, one: fx.Node, other: fx.Node) -> bool:
        """Whether both nodes hold the same value wherever both have been computed."""
        return self._numbers[one] == self._numbers[other]

    def written_between(self, earlier: fx.Node, later: fx.Node) -> bool:
        """Whether any tensor may have been written in place from `earlier` up to `later`."""
        return self._writes_before[earlier] != self._writes_before[later]

    def adopt(self, new: fx.Node, old: fx.Node) -> None:
        """Give a node made since then the number of the one it replaces."""
        self._numbers[new] = self._numbers[old]
        self._writes_before[new] = self._writes_before[old]

    def _key(self, node: fx.Node) -> object:
        if node.op == "get_attr":
            return ("get_attr", node.target)
        return (node.target, self._argument(node.args), self._argument(node.kwargs))

    def _argument(self, value: Any) -> object:
        """A hashable stand-in that tells 1, 1.0 and True apart, and 0.0 and -0.0."""
        if isinstance(value, fx.Node):
            return ("node", self._numbers[value])
        if isinstance(value, (list, tuple)):
            return ("list", *map(self._argument, value))
        if isinstance(value, dict):
            return ("dict", *((key, self._argument(value[key])) for key in sorted(value)))
        if isinstance(value, slice):
            return ("slice", *map(self._argument, (value.start, value.stop, value.step)))
        if isinstance(value, (float, complex)):
            return (type(value), repr(value))
        return (type(value), value)


@cache
def is_deterministic(target: object) -> bool:
    """Whether two calls on equal inputs give equal results, for an operator or Python function.

    Only ATen's and the primitives' own operators are trusted; a custom operator may keep state.
    """
    if not isinstance(target, OpOverload):
        return is_scalar_function(target)
    return (
        target.namespace in ("aten", "prims")
        and torch.Tag.nondeterministic_seeded not in target.tags
        and not target._schema.is_mutable
        and "empty" not in target._opname
        and target._opname not in _UNORDERED
    )


def _is_deterministic(node: fx.Node) -> bool:
    return node.op == "get_attr" or (node.op == "call_function" and is_deterministic(node.target))


def _writes(node: fx.Node) -> bool:
    """Whether the node writes a tensor that other nodes may read."""
    if isinstance(node.target, OpOverload):
        return node.target._schema.is_mutable
    return "mutation" in str(node.target)  # a user's Triton kernel launched on plain tensors
