"""Follows what a mask picked through a graph: `src[mask]`, and functions of it.

A picked tensor holds some whole tensor at the places its mask picks, those places flattened into
one dim. A pointwise function of picked tensors is picked too: from the same function of the whole
tensors. One walk finds, for every node downstream of a mask index, either what it was picked from
or why that is lost; the whole tensors are made only where a put asks for them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from graftwork.plugins.toolkit.graphs import copied_meta
from graftwork.plugins.toolkit.layout import known_equal
from graftwork.plugins.toolkit.values import ValueNumbers

from .elementwise import unfit

aten = torch.ops.aten


@dataclass
class Picked:
    """A node holds `whole` at the places where `mask` is true.

    Attributes:
        node: the mask index, or a pointwise function of picked tensors.
        mask: the mask's node, as it was when the graph was read.
        lead: how many dims stand before those of the mask; also the place of the picked dim.
        first: the earliest mask index that the node depends on.
        is_index: whether `node` is the mask index itself.
    """

    node: fx.Node
    mask: fx.Node
    lead: int
    first: fx.Node
    is_index: bool
    _value: torch.Tensor | None = None
    _whole: fx.Node | None = None

    @property
    def tail(self) -> int:
        """How many dims stand after the picked one."""
        return int(self.node.meta["val"].dim()) - self.lead - 1


@dataclass(frozen=True)
class Lost:
    """A node depends on picked tensors but holds no whole tensor at the picked places."""

    reason: str


@dataclass
class Picks:
    """What every node downstream of a mask index of one graph holds."""

    graph: fx.Graph
    numbers: ValueNumbers
    trails: dict[fx.Node, Picked | Lost] = field(default_factory=dict)
    used: dict[fx.Node, Picked] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for node in self.graph.nodes:
            trail = self._trail(node)
            if trail is not None:
                self.trails[node] = trail

    def value(self, picked: Picked) -> torch.Tensor:
        """The fake tensor of the whole tensor, computed in its own fake mode, which is on."""
        for part in self._unmade(picked, lambda p: p._value is not None):
            if part.is_index:
                part._value = part.node.args[0].meta["val"]  # type: ignore[union-attr]
            else:
                node = part.node
                arguments, keywords = fx.map_arg((node.args, node.kwargs), self._value_of)
                part._value = node.target(*arguments, **keywords)  # type: ignore[operator]
        assert picked._value is not None
        return picked._value

    def whole(self, picked: Picked) -> fx.Node:
        """The whole tensor's node, made where it is not there yet, and with it what it needs."""
        for part in self._unmade(picked, lambda p: p._whole is not None):
            self.used[part.node] = part
            node = part.node
            if part.is_index:
                part._whole = node.args[0]  # type: ignore[assignment]
                continue
            arguments, keywords = fx.map_arg((node.args, node.kwargs), self._whole_of)
            with self.graph.inserting_before(node):
                part._whole = self.graph.call_function(node.target, arguments, keywords)  # type: ignore[arg-type]
            part._whole.meta = copied_meta(node, self.value(part))
        assert picked._whole is not None
        return picked._whole

    def _unmade(self, picked: Picked, made: Callable[[Picked], bool]) -> Iterator[Picked]:
        """`picked` and the picked tensors below it that are not made, what is needed first."""
        waiting = [picked]
        while waiting:
            part = waiting[-1]
            needs = [] if part.is_index else list(self._picked_inputs(part.node))
            missing = [need for need in needs if not made(need)]
            if missing:
                waiting.extend(missing)
                continue
            waiting.pop()
            if not made(part):
                yield part

    def _picked_inputs(self, node: fx.Node) -> Iterator[Picked]:
        for source in node.all_input_nodes:
            trail = self.trails.get(source)
            if isinstance(trail, Picked):
                yield trail

    def _value_of(self, node: fx.Node) -> Any:
        trail = self.trails.get(node)
        return trail._value if isinstance(trail, Picked) else node.meta["val"]

    def _whole_of(self, node: fx.Node) -> Any:
        trail = self.trails.get(node)
        return trail._whole if isinstance(trail, Picked) else node

    def _trail(self, node: fx.Node) -> Picked | Lost | None:
        if node.op != "call_function":
            return None
        found = mask_index(node)
        if found is not None:
            mask, lead = found
            return Picked(node, mask, lead, first=node, is_index=True)
        trails = [self.trails[source] for source in node.all_input_nodes if source in self.trails]
        if not trails:
            return None
        picked = [trail for trail in trails if isinstance(trail, Picked)]
        if not picked:
            return trails[0]
        return self._function_of(node, picked)

    def _function_of(self, node: fx.Node, picked: list[Picked]) -> Picked | Lost:
        reason = unfit(node)
        if reason is not None:
            return Lost(reason)
        model = picked[0]
        rank = model.node.meta["val"].dim()
        for other in picked[1:]:
            if not self.numbers.same(other.mask, model.mask) or other.lead != model.lead:
                return Lost(f"{node.name} joins picks under different masks")
            if other.node.meta["val"].dim() != rank:
                return Lost(f"{node.name} joins picks of different ranks")
        if node.meta["val"].dim() != rank:
            return Lost(f"{node.name} adds a dim to the picks")
        for source in node.all_input_nodes:
            trail = self.trails.get(source)
            if not isinstance(trail, Picked) and not _fits_beside(source, model):
                if isinstance(trail, Lost):
                    return trail
                return Lost(f"{source.name} has one value for each pick, and is no pick itself")
        first = min(part.first for part in picked)
        return Picked(node, model.mask, model.lead, first, is_index=False)


def mask_index(node: fx.Node) -> tuple[fx.Node, int] | None:
    """The mask and the number of dims before it, where `node` is `src[..., mask]`; else None."""
    if node.target is aten.masked_select.default:
        source, mask = node.args
        assert isinstance(source, fx.Node) and isinstance(mask, fx.Node)
        alike = known_equal(source.meta["val"].shape, mask.meta["val"].shape)
        return (mask, 0) if alike and is_mask(mask) else None
    if node.target is not aten.index.Tensor:
        return None
    return only_mask(node.args[1])


def only_mask(indices: Any) -> tuple[fx.Node, int] | None:
    """The mask and its place among `indices` where it is the only index tensor; else None."""
    given = [(index, place) for place, index in enumerate(indices) if index is not None]
    return given[0] if len(given) == 1 and is_mask(given[0][0]) else None


def is_mask(node: fx.Node) -> bool:
    """Whether an index tensor is a mask: bool, or uint8 as ATen has it; never another integer."""
    return node.meta["val"].dtype in (torch.bool, torch.uint8)


def _fits_beside(node: fx.Node, picked: Picked) -> bool:
    """Whether an operand broadcasts to the picks and, as it is, to the whole tensor alike."""
    value = node.meta["val"]
    if not isinstance(value, torch.Tensor):
        return True
    missing = picked.tail + 1 - value.dim()
    if missing > 0:
        return True
    one_mask_dim = picked.mask.meta["val"].dim() == 1
    size = value.shape[value.dim() - 1 - picked.tail]
    return isinstance(size, int) and size == 1 and (missing == 0 or one_mask_dim)
