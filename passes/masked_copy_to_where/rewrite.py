"""The rewrite: finds each put of picked values and writes it as `where`.

A put stays, with the reason noted, unless the values are known to come from a tensor shaped like
the destination, through the destination's own mask, with nothing written in between.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import fx

from graftwork.plugins import GraphRewrite
from graftwork.plugins.toolkit.graphs import copied_meta
from graftwork.plugins.toolkit.layout import known_equal, pointwise_strides
from graftwork.plugins.toolkit.symbolic import known
from graftwork.plugins.toolkit.values import ValueNumbers
from graftwork.plugins.torch_private import fake_mode_of, unguarded

from .counts import drop_unread
from .picks import Lost, Picked, Picks, is_mask, only_mask

aten = torch.ops.aten

_VIEWS = {aten.unsqueeze.default, aten.view.default, aten.reshape.default}
_EXPANSIONS = {aten.expand.default, aten.expand_as.default}


class Put(NamedTuple):
    """A candidate: `destination`, overwritten with `values` where `mask` is true.

    The mask's dims are dims `lead` and on of the destination.
    """

    node: fx.Node
    destination: fx.Node
    mask: fx.Node
    lead: int
    values: Any


class NotOursError(Exception):
    """Why a candidate stays as it is."""


def rewrite(view: GraphRewrite) -> None:
    """Rewrite every masked copy of the graph; then drop mask indices that nothing reads now."""
    graph = view.graph
    candidates = [
        *graph.find_nodes(op="call_function", target=aten.index_put.default),
        *graph.find_nodes(op="call_function", target=aten.masked_scatter.default),
    ]
    candidates = sorted(filter(_concerns_a_mask, candidates))
    if candidates:
        mode = fake_mode_of([node.meta["val"] for node in candidates])
        with unguarded(mode), torch.no_grad():
            _rewrite(view, candidates)


def _rewrite(view: GraphRewrite, candidates: list[fx.Node]) -> None:
    numbers = ValueNumbers(view.graph)
    picks = Picks(view.graph, numbers)
    replaced = []
    for node in candidates:
        try:
            put = _read(node)
            picked = _matching_picks(put, picks)
            _check_value(put, picks, picked)
        except NotOursError as error:
            view.decline(node, str(error))
            continue
        if view.claim(node, "where(mask, src, out)"):
            where = _write(put, picks, picked)
            numbers.adopt(where, node)
            replaced.append(node)
    for node, reason in drop_unread(picks, replaced):
        view.decline(node, reason)


def _concerns_a_mask(node: fx.Node) -> bool:
    if node.target is aten.masked_scatter.default:
        return True
    indices = _argument(node, 1, "indices")
    return any(index is not None and is_mask(index) for index in indices)


def _read(node: fx.Node) -> Put:
    destination = _argument(node, 0, "self")
    if node.target is aten.masked_scatter.default:
        mask = _argument(node, 1, "mask")
        return Put(node, destination, mask, 0, _argument(node, 2, "source"))
    if _argument(node, 3, "accumulate", default=False):
        raise NotOursError("it accumulates")
    found = only_mask(_argument(node, 1, "indices"))
    if found is None:
        raise NotOursError("the mask is not the only index")
    return Put(node, destination, *found, _argument(node, 2, "values"))


def _matching_picks(put: Put, picks: Picks) -> Picked:
    """The picked values, if they were picked through the put's own mask."""
    picked = picks.trails.get(put.values)
    if picked is None:
        raise NotOursError("the values are not picked through a mask")
    if isinstance(picked, Lost):
        raise NotOursError(f"the values are not picked through the mask: {picked.reason}")
    if not _same_mask(put, picked, picks.numbers):
        raise NotOursError(f"the values are picked through another mask, {picked.mask.name}")
    if picks.numbers.written_between(picked.first, put.node):
        raise NotOursError("a tensor is written in place between the pick and the put")
    return picked


def _same_mask(put: Put, picked: Picked, numbers: ValueNumbers) -> bool:
    if picked.lead != put.lead:
        return False
    mask = put.mask
    if put.node.target is not aten.masked_scatter.default:
        return numbers.same(mask, picked.mask)
    # masked_scatter lines a mask up with the last dims, not the first, so that a mask over leading
    # dims comes as m[..., None].expand(...).
    if put.mask.meta["val"].dim() != put.destination.meta["val"].dim():
        return False
    size = picked.mask.meta["val"].shape
    while not numbers.same(mask, picked.mask):
        source = mask.args[0] if mask.args else None
        if not isinstance(source, fx.Node) or not _adds_or_stretches_tail(mask, source, len(size)):
            return False
        mask = source
    return True


def _adds_or_stretches_tail(mask: fx.Node, source: fx.Node, rank: int) -> bool:
    """Whether `mask` repeats `source` over dims behind the first `rank`, which are the same."""
    ours, theirs = mask.meta["val"].shape, source.meta["val"].shape
    if mask.target in _VIEWS:
        return known_equal(ours[: len(theirs)], theirs)
    same_rank = len(ours) == len(theirs)
    return mask.target in _EXPANSIONS and same_rank and known_equal(ours[:rank], theirs[:rank])


def _check_value(put: Put, picks: Picks, picked: Picked) -> None:
    """Raise unless `where` gives exactly what the put gives: shape, dtype, device and strides."""
    try:
        whole = picks.value(picked)
    except Exception as error:
        raise NotOursError(f"f(src) cannot be traced on the whole tensor: {error}") from error
    destination = put.destination.meta["val"]
    if whole.dtype != destination.dtype:
        raise NotOursError(f"the values are {whole.dtype}, the destination {destination.dtype}")
    if not known_equal(whole.shape, destination.shape):
        raise NotOursError(
            f"the picked tensor has shape {_sizes(whole.shape)}, "
            f"the destination {_sizes(destination.shape)}"
        )
    mask = put.mask.meta["val"]
    if len({whole.device, destination.device, mask.device}) > 1:
        raise NotOursError("mask, source and destination are not on one device")
    _check_strides(put, whole)


def _check_strides(put: Put, whole: torch.Tensor) -> None:
    mask, destination = put.mask.meta["val"], put.destination.meta["val"]
    shape = destination.shape
    missing = len(shape) - put.lead - mask.dim()
    spread = ((*mask.shape, *(1,) * missing), (*mask.stride(), *(1,) * missing))
    given = pointwise_strides(
        shape, [spread, (whole.shape, whole.stride()), (shape, destination.stride())]
    )
    wanted = put.node.meta["val"].stride()
    if given is None or not all(
        known(size == 1) or known(one == other)
        for size, one, other in zip(shape, given, wanted, strict=True)
    ):
        got = "strides that depend on the sizes" if given is None else f"strides {_sizes(given)}"
        raise NotOursError(f"where would give {got}, not the destination's {_sizes(wanted)}")


def _write(put: Put, picks: Picks, picked: Picked) -> fx.Node:
    whole = picks.whole(picked)
    graph = put.node.graph
    with graph.inserting_before(put.node):
        mask = put.mask
        rank = put.destination.meta["val"].dim()
        if mask.meta["val"].dtype is torch.uint8:
            mask = _call(put.node, aten.ne.Scalar, mask, 0)
        while put.lead + mask.meta["val"].dim() < rank:
            mask = _call(put.node, aten.unsqueeze.default, mask, -1)
        where = graph.call_function(aten.where.self, (mask, whole, put.destination))
    where.meta = copied_meta(put.node, put.node.meta["val"])
    put.node.replace_all_uses_with(where)
    return where


def _call(put: fx.Node, target: Any, source: fx.Node, argument: int) -> fx.Node:
    node = put.graph.call_function(target, (source, argument))
    node.meta = copied_meta(put, target(source.meta["val"], argument))
    return node


def _argument(node: fx.Node, place: int, name: str, default: Any = None) -> Any:
    return node.args[place] if len(node.args) > place else node.kwargs.get(name, default)


def _sizes(sizes: Any) -> str:
    return "(" + ", ".join(map(str, sizes)) + ")"
