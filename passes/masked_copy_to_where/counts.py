"""Drops mask indices that nothing reads any more, with the checks on their count.

A mask index brings a size of its own, how many elements were picked, and export guards it with
checks that hold for any mask: `0 <= count <= numel(mask)`. Those go with the index. A check that
a mask can fail, such as a user's "at least one", stays, and so does the index it needs.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx

from ...plugins.toolkit.graphs import erase_unread, is_scalar_function
from ...plugins.toolkit.layout import Size, known
from .picks import Picked, Picks

aten = torch.ops.aten


@dataclass(frozen=True)
class Linear:
    """The number `factor * count + rest`, where `count` is how many elements a mask picks."""

    factor: int
    rest: Size
    mask: fx.Node | None = None


def drop_picks(picks: Picks, replaced: list[fx.Node]) -> Iterator[tuple[fx.Node, str]]:
    """Erase the puts that were replaced and what only they needed.

    Yields each mask index that fed one of them and stays, with the reason.
    """
    reading = Reading(picks, set(replaced))
    gone: dict[fx.Node, None] = {}
    kept: list[tuple[fx.Node, str]] = []
    for node, picked in picks.used.items():
        if not picked.is_index:
            continue
        reader = reading.outside_reader.get(node)
        if reader is None:
            _collect_readers(node, gone)
        else:
            kept.append((node, _why_kept(reader)))
    feeders = [source for node in (*gone, *replaced) for source in node.all_input_nodes]
    for node in sorted({*gone, *replaced}, reverse=True):
        node.graph.erase_node(node)
    erase_unread(feeders)
    yield from kept


def _collect_readers(node: fx.Node, gone: dict[fx.Node, None]) -> None:
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if node not in gone and node.op != "output":
            gone[node] = None
            waiting.extend(node.users)


def _why_kept(reader: fx.Node) -> str:
    if reader.target in _CHECKS:
        return f"the mask index stays: {reader.name} checks its count, and a mask may fail that"
    return f"the mask index stays: {reader.name} reads it"


class Reading:
    """Who reads picked tensors, and their counts, for more than checks that always hold.

    Attributes:
        outside_reader: for a picked tensor, its size, or a number computed from that: the first
            reader that keeps it alive; absent where there is none.
    """

    def __init__(self, picks: Picks, replaced: set[fx.Node]) -> None:
        self._picks = picks
        self._numbers: dict[fx.Node, Linear] = {}
        self._holds: set[fx.Node] = set()
        self._counted: set[fx.Node] = set()
        for node in picks.graph.nodes:
            if self._read(node):
                self._counted.add(node)
        self.outside_reader: dict[fx.Node, fx.Node] = {}
        for node in reversed(picks.graph.nodes):
            if self._passes_on(node):
                for user in node.users:
                    reader = self.outside_reader.get(user) if self._passes_on(user) else user
                    if reader and reader not in replaced and reader not in self._holds:
                        self.outside_reader[node] = reader
                        break

    def _passes_on(self, node: fx.Node) -> bool:
        return node in self._counted or isinstance(self._picks.trails.get(node), Picked)

    def _read(self, node: fx.Node) -> bool:
        """Note what is known of the node; whether it is a number that comes from a count."""
        if node.op != "call_function":
            return False
        if node.target is aten.sym_size.int:
            picked = self._picks.trails.get(node.args[0])  # type: ignore[arg-type]
            if not isinstance(picked, Picked):
                return False
            if node.args[1] == picked.lead:
                self._numbers[node] = Linear(1, 0, picked.mask)
            return True
        if is_scalar_function(node.target):
            if not any(source in self._counted for source in node.all_input_nodes):
                return False
            self._compute(node)
            return True
        if node.target in _CHECKS and self._always_passes(node):
            self._holds.add(node)
        return False

    def _compute(self, node: fx.Node) -> None:
        terms = [self._term(argument) for argument in node.args]
        if node.target is operator.and_:
            if all(argument in self._holds for argument in node.args):
                self._holds.add(node)
        elif len(terms) == 2 and terms[0] is not None and terms[1] is not None:
            difference = self._combine(operator.sub, terms[0], terms[1])
            if node.target in _COMPARISONS and difference is not None:
                if self._always(node.target, difference):
                    self._holds.add(node)
            elif node.target in (operator.add, operator.sub):
                total = self._combine(node.target, terms[0], terms[1])  # type: ignore[arg-type]
                if total is not None:
                    self._numbers[node] = total

    def _term(self, argument: Any) -> Linear | None:
        if isinstance(argument, fx.Node):
            if argument in self._counted:
                return self._numbers.get(argument)
            argument = argument.meta["val"]
        return Linear(0, argument) if isinstance(argument, (int, torch.SymInt)) else None

    def _combine(self, join: Callable[[Any, Any], Any], one: Linear, other: Linear) -> Linear | None:
        if one.mask and other.mask and not self._picks.numbers.same(one.mask, other.mask):
            return None
        return Linear(
            join(one.factor, other.factor), join(one.rest, other.rest), one.mask or other.mask
        )

    def _always(self, compare: Callable[[Any, Any], Any], number: Linear) -> bool:
        """Whether `number` compares so with 0 for any mask: a line is extreme at its ends."""
        if compare is operator.eq:
            return number.factor == 0 and known(number.rest == 0)
        most: Size = 1
        for size in number.mask.meta["val"].shape if number.mask else ():
            most = most * size
        ends = (number.rest, number.factor * most + number.rest)
        return all(known(compare(end, 0)) for end in ends)

    def _always_passes(self, check: fx.Node) -> bool:
        subject = check.args[0]
        if check.target is aten._assert_scalar.default:
            return subject in self._holds
        if check.target is aten._assert_tensor_metadata.default:
            sizes_and_strides = (*check.args[1:3], check.kwargs.get("size"), check.kwargs.get("stride"))
            return all(value is None for value in sizes_and_strides)
        count = self._numbers.get(subject)  # type: ignore[arg-type]
        if count is None:
            return False
        least = check.kwargs.get("min") or 0
        most = check.kwargs.get("max")
        ranges = [(operator.ge, least)] + ([] if most is None else [(operator.le, most)])
        return all(
            self._always(compare, Linear(count.factor, count.rest - bound, count.mask))
            for compare, bound in ranges
        )


_COMPARISONS = {operator.ge, operator.gt, operator.le, operator.lt, operator.eq}
_CHECKS = {
    aten._assert_scalar.default,
    aten._assert_tensor_metadata.default,
    aten.sym_constrain_range.default,
    aten.sym_constrain_range_for_size.default,
}
