"""`torch.bucketize` and `torch.searchsorted`: which interval each value falls into.

Vision embeddings of language models bucket patch coordinates this way (SmolVLM, Idefics3), T5
style models their relative positions. ExecuTorch has no kernel for either; AOTInductor has its
own, so the plugin serves target `cpu` alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import Case, Declined, PluginInfo, Property, hookimpl


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="bucketize and searchsorted as counts of the smaller boundaries",
        targets=frozenset({"cpu"}),
    )


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """Both operators, over tensors of values."""
    return {
        torch.ops.aten.bucketize.Tensor: bucketize,
        torch.ops.aten.searchsorted.Tensor: searchsorted,
    }


def bucketize(
    self: Tensor, boundaries: Tensor, *, out_int32: bool = False, right: bool = False
) -> Tensor:
    """For each value the number of boundaries (1-D, sorted) below it; `right`: or equal to it."""
    return _count(boundaries, self, out_int32, right)


def searchsorted(
    sorted_sequence: Tensor,
    self: Tensor,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Tensor | None = None,
) -> Tensor:
    """As `bucketize`, with one sorted row (..., N) for each row (..., M) of values.

    Raises:
        Declined: `sorter` is given.
    """
    if sorter is not None:
        raise Declined("an unsorted sequence with a sorter")
    if sorted_sequence.dim() > 1:
        sorted_sequence = sorted_sequence.unsqueeze(-2)
    return _count(sorted_sequence, self, out_int32, right or side == "right")


def _count(boundaries: Tensor, values: Tensor, out_int32: bool, right: bool) -> Tensor:
    """Count the boundaries that a binary search passes by.

    ATen's search goes on to the right unless `boundary >= value` (`right`: `boundary > value`),
    which puts NaN past the last boundary.
    """
    values = values.unsqueeze(-1)
    stops = boundaries > values if right else boundaries >= values
    return stops.logical_not().sum(-1, dtype=torch.int32 if out_int32 else torch.int64)


def _bucket(x: Tensor, boundaries: Tensor, right: bool, out_int32: bool) -> Tensor:
    return torch.bucketize(x, boundaries, right=right, out_int32=out_int32)


def _search(x: Tensor, rows: Tensor, right: bool, out_int32: bool) -> Tensor:
    return torch.searchsorted(rows, x, right=right, out_int32=out_int32)


@hookimpl
def list_properties() -> Sequence[Property]:
    """Equal to ATen for values on, between and past the boundaries, NaN and infinities."""
    return [
        Property("bucketize-equals-eager", _cases(rows=False)),
        Property("searchsorted-equals-eager", _cases(rows=True)),
    ]


@st.composite
def _cases(draw: st.DrawFn, rows: bool) -> Case:
    dtype = draw(st.sampled_from([torch.float32, torch.float64, torch.int64, torch.int32]))
    lead = draw(st.lists(st.integers(1, 3), min_size=int(rows), max_size=2))
    count, length = draw(st.integers(0, 7)), draw(st.integers(0, 6))
    shape = (*lead, length) if rows else (length,)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    boundaries = torch.randint(-4, 4, shape, generator=generator).sort(-1).values.to(dtype)
    values = torch.randint(-5, 5, (*lead, count), generator=generator).to(dtype)
    if dtype.is_floating_point and count:
        special = draw(st.sampled_from([torch.nan, torch.inf, -torch.inf, -0.0, 0.5]))
        values[..., draw(st.integers(0, count - 1))] = special
    settings = {"right": draw(st.booleans()), "out_int32": draw(st.booleans())}
    batch = torch.export.Dim("batch", min=1, max=64)
    dynamic = len(lead) == 2 and lead[0] > 1 and draw(st.booleans())
    return Case(
        _search if rows else _bucket,
        (values, boundaries),
        settings,
        dynamic_shapes=(({0: batch}, {0: batch} if rows else None),) if dynamic else None,
    )
