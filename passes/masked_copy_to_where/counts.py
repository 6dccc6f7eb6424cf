"""Drops mask indices that nothing reads any more, with the checks on their count.

A mask index brings a size of its own, how many elements were picked, and export guards it with
checks that hold for any mask: `0 <= count <= numel(mask)`. Those go with the index. A check that
a mask can fail, such as a user's "at least one", stays, and so does the index it needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from graftwork.plugins.toolkit.graphs import erase_unread, is_scalar_function
from graftwork.plugins.toolkit.symbolic import Size, known

from .picks import Picked, Picks

aten = torch.ops.aten

_RANGE_CHECKS = {
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}
_CHECKS = {
    *_RANGE_CHECKS,
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
}
_COMPARISONS = {operator.ge, operator.gt, operator.le, operator.lt, operator.eq}


def drop_unread(picks: Picks, replaced: list[fx.Node]) -> list[tuple[fx.Node, str]]:
    """Erase the puts that were replaced and whatever only they needed.

    Returns each mask index that fed one of them and stays, with the reason.
    """
    readers = Readers(picks, set(replaced))
    gone = dict.fromkeys(replaced)
    kept = []
    for node, picked in picks.used.items():
        if picked.is_index:
            reader = readers.outside.get(node)
            if reader is None:
                _add_downstream(node, gone)
            else:
                kept.append((node, _why_kept(reader)))
    feeders = [source for node in gone for source in node.all_input_nodes]
    for node in sorted(gone, reverse=True):
        node.graph.erase_node(node)
    erase_unread(feeders)
    return kept


def _add_downstream(node: fx.Node, found: dict[fx.Node, None]) -> None:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node not in found:
            found[node] = None
            waiting.extend(node.users)


def _why_kept(reader: fx.Node) -> str:
    if reader.target in _CHECKS:
        return f"the mask index stays: {reader.name} checks its count, and a mask may fail that"
    return f"the mask index stays: {reader.name} reads it"


@dataclass(frozen=True)
class Linear:
    """The number `factor * count + rest`, where `count` is how many elements `mask` picks."""

    factor: int
    rest: Size
    mask: fx.Node | None = None


class Readers:
    """Who reads picked tensors and their sizes, other than checks that always hold.

    Attributes:
        outside: for a picked tensor, its size, or a number computed from that: a reader that
            keeps it alive; absent where there is none.
    """

    def __init__(self, picks: Picks, replaced: set[fx.Node]) -> None:
        self._picks = picks
        self._counted: set[fx.Node] = set()  # sizes of picked tensors, and numbers from them
        self._numbers: dict[fx.Node, Linear] = {}
        self._holds: set[fx.Node] = set()
        for node in picks.graph.nodes:
            if node.op == "call_function":
                self._read(node)
        self.outside: dict[fx.Node, fx.Node] = {}
        for node in reversed(picks.graph.nodes):
            if self._passes_on(node):
                for user in node.users:
                    reader = self.outside.get(user) if self._passes_on(user) else user
                    if reader and reader not in replaced and reader not in self._holds:
                        self.outside[node] = reader
                        break

    def _passes_on(self, node: fx.Node) -> bool:
        return node in self._counted or isinstance(self._picks.trails.get(node), Picked)

    def _read(self, node: fx.Node) -> None:
        if node.target is aten.sym_size.int:
            picked = self._picks.trails.get(node.args[0])  # type: ignore[arg-type]  # a node
            if isinstance(picked, Picked):
                self._counted.add(node)
                if node.args[1] == picked.lead:
                    self._numbers[node] = Linear(1, 0, picked.mask)
        elif node.target in _CHECKS:
            if self._always_passes(node):
                self._holds.add(node)
        elif is_scalar_function(node.target) and self._counted.intersection(node.all_input_nodes):
            self._counted.add(node)
            self._compute(node)

    def _compute(self, node: fx.Node) -> None:
        if node.target is operator.and_:
            if all(argument in self._holds for argument in node.args):
                self._holds.add(node)
            return
        terms = [self._term(argument) for argument in node.args]
        if len(terms) != 2 or terms[0] is None or terms[1] is None:
            return
        if node.target in _COMPARISONS:
            difference = self._join(operator.sub, terms[0], terms[1])
            if difference is not None and self._always(node.target, difference):
                self._holds.add(node)
        elif node.target in (operator.add, operator.sub):
            total = self._join(node.target, terms[0], terms[1])
            if total is not None:
                self._numbers[node] = total

    def _term(self, argument: Any) -> Linear | None:
        if isinstance(argument, fx.Node):
            if argument in self._counted:
                return self._numbers.get(argument)
            argument = argument.meta["val"]
        return Linear(0, argument) if isinstance(argument, (int, torch.SymInt)) else None

    def _join(self, join: Any, one: Linear, other: Linear) -> Linear | None:
        if one.mask and other.mask and not self._picks.numbers.same(one.mask, other.mask):
            return None
        mask = one.mask or other.mask
        return Linear(join(one.factor, other.factor), join(one.rest, other.rest), mask)

    def _always(self, compare: Any, number: Linear) -> bool:
        """Whether `number` compares so with 0 for any mask: a line is extreme at its ends."""
        if compare is operator.eq:
            return number.factor == 0 and known(number.rest == 0)
        most: Size = 1
        for size in number.mask.meta["val"].shape if number.mask else ():
            most = most * size
        ends = (number.rest, number.factor * most + number.rest)
        return all(known(compare(end, 0)) for end in ends)

    def _always_passes(self, check: fx.Node) -> bool:
        subject: Any = check.args[0]
        if check.target is aten._assert_scalar.default:
            return subject in self._holds
        if check.target is aten._assert_tensor_metadata.default:
            # A picked tensor's dtype, device and layout do not depend on the mask; its sizes do.
            asked = (*check.args[1:3], check.kwargs.get("size"), check.kwargs.get("stride"))
            return all(value is None for value in asked)
        count = self._numbers.get(subject)
        if count is None:
            return False
        least: Any = check.kwargs.get("min")
        most: Any = check.kwargs.get("max")
        bounds: list[tuple[Callable[[Any, Any], Any], Any]] = [(operator.ge, least or 0)]
        if most is not None:
            bounds.append((operator.le, most))
        return all(
            self._always(compare, Linear(count.factor, count.rest - bound, count.mask))
            for compare, bound in bounds
        )
