"""Boolean masks: which elements they keep, and each one's rank among those kept.

A mask is cut into stretches, a program each, about as many as a GPU runs at once. One launch
counts what each stretch keeps, and what all do. In the next, every program first adds up the
counts of the stretches before its own, so that nothing has to scan them. Only the number of kept
elements is ever read by the host, and only where it is the size of a result.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import (
    Kernel,
    as_bytes,
    as_dtype,
    cdiv,
    fits_int32,
    jit,
    launch,
)
from graftwork.plugins.toolkit.symbolic import Size, known

TILE = 2048  # elements that a program looks at at a time
STRETCHES = 512  # at most; a power of two


def kept_counts(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many elements each stretch of `mask` keeps, and how many are kept in all.

    Shapes (stretches,) and (), both int64.
    """
    kept = _bytes(mask)
    stretches, stretch = _cut(kept.numel())
    alone = known(stretches == 1)
    counts = torch.empty(stretches, dtype=torch.int64, device=mask.device)
    total = (torch.empty if alone else torch.zeros)((), dtype=torch.int64, device=mask.device)
    options = {"ALONE": alone, "TILE": TILE, "num_warps": 4}
    launch(count_kept, (stretches,), kept, counts, total, kept.numel(), stretch, **options)
    return counts, total


def ranks(mask: torch.Tensor) -> torch.Tensor:
    """Each element's rank among the kept ones, in row-major order; -1 where not kept."""
    dtype = torch.int32 if fits_int32(mask.numel()) else torch.int64
    out = torch.empty(mask.shape, dtype=dtype, device=mask.device)
    walk(write_ranks, mask, kept_counts(mask)[0], out)
    return out


def kept_values(
    x: torch.Tensor, mask: torch.Tensor, counts: torch.Tensor, count: Size
) -> torch.Tensor:
    """The `count` elements of `x` that `mask`, of its shape, keeps: (count,)."""
    values = as_bytes(x).reshape(-1)
    out = torch.empty(count, dtype=values.dtype, device=x.device)
    walk(write_kept, mask, counts, out, values, values.stride(0), count)
    return as_dtype(out, x.dtype)


def kept_positions(
    mask: torch.Tensor, counts: torch.Tensor, out: torch.Tensor, count: Size
) -> torch.Tensor:
    """Coordinates of the kept elements, row-major, in `out` (mask.dim() * count), int64.

    Returns them as (count, mask.dim()), one dim's coordinates after the other, as ATen lays them
    out. `out` is flat: where nobody knows that `count` is not 0, Inductor takes the strides of
    rows of `count` for others than it gave them, and copies the result onto itself.
    """
    dims, wide = mask.dim(), not fits_int32(mask.numel())
    later: Size = 1
    for last in range(dims - 1, -1, -4):
        extents = [mask.shape[d] if d >= 0 else 1 for d in range(last, last - 4, -1)]
        options = {"DIMS": min(4, last + 1), "WIDE": wide}
        walk(write_coordinates, mask, counts, out, later, *extents, last, count, **options)
        later = later * math.prod(extents)
    return out.view(dims, count).t()


def walk(
    kernel: Kernel, mask: torch.Tensor, counts: torch.Tensor, *args: Any, **options: Any
) -> None:
    """Launch a kernel that goes through the stretches of `mask`, whose counts are given.

    It takes the mask's bytes, the counts, `args`, the mask's size and the length of a stretch.
    """
    kept = _bytes(mask)
    stretches, stretch = _cut(kept.numel())
    options |= {"STRETCHES": STRETCHES, "TILE": TILE, "num_warps": 4}
    launch(kernel, (stretches,), kept, counts, *args, kept.numel(), stretch, **options)


def _cut(size: Size) -> tuple[Size, Size]:
    """How many stretches a mask of `size` elements is cut into, and how long each is."""
    if known(size <= TILE):
        return 1, TILE
    tiles = cdiv(size, TILE)
    stretches = min(tiles, STRETCHES) if isinstance(tiles, int) else STRETCHES
    return stretches, cdiv(tiles, stretches) * TILE


def _bytes(mask: torch.Tensor) -> torch.Tensor:
    return as_bytes(mask).contiguous()


@jit
def count_kept(  # type: ignore[no-untyped-def]
    kept, counts, total, size, stretch, ALONE: tl.constexpr, TILE: tl.constexpr
):
    """counts[stretch] = how many elements it keeps; total, which starts at 0, is their sum."""
    begin = tl.program_id(0).to(tl.int64) * stretch
    found = tl.zeros([TILE], tl.int32)
    for at in range(0, stretch, TILE):
        p = begin + at + tl.arange(0, TILE)
        found += (tl.load(kept + p, mask=p < size, other=0) != 0).to(tl.int32)
    here = tl.sum(found, 0).to(tl.int64)
    tl.store(counts + tl.program_id(0), here)
    if ALONE:
        tl.store(total, here)
    else:
        tl.atomic_add(total, here, sem="relaxed")


@jit
def rank_tile(here):  # type: ignore[no-untyped-def]
    """Each element's rank among those that the tile keeps, or -1; how many it keeps.

    A rank that is widened last goes once from the threads that read the mask to those that write
    side by side.
    """
    ones = (here != 0).to(tl.int32)
    rank = tl.where(here != 0, tl.cumsum(ones, 0) - 1, -1)
    return rank.to(tl.int64), tl.sum(ones, 0)


@jit
def write_ranks(  # type: ignore[no-untyped-def]
    kept, counts, out, size, stretch, STRETCHES: tl.constexpr, TILE: tl.constexpr
):
    """out = the rank, or -1."""
    s = tl.arange(0, STRETCHES)
    before = tl.sum(tl.load(counts + s, mask=s < tl.program_id(0), other=0), 0)
    begin = tl.program_id(0).to(tl.int64) * stretch
    for at in range(0, stretch, TILE):
        p = begin + at + tl.arange(0, TILE)
        rank, found = rank_tile(tl.load(kept + p, mask=p < size, other=0))
        whole = tl.where(rank < 0, -1, before + rank)
        tl.store(out + p, whole.to(out.dtype.element_ty), mask=p < size)
        before += found


@jit
def write_kept(  # type: ignore[no-untyped-def]
    kept,
    counts,
    out,
    values,
    step,
    count,
    size,
    stretch,
    STRETCHES: tl.constexpr,
    TILE: tl.constexpr,
):
    """out[rank] = value, for what is kept.

    All values are read: those of lanes side by side together, and before the ranks are known.
    """
    s = tl.arange(0, STRETCHES)
    before = tl.sum(tl.load(counts + s, mask=s < tl.program_id(0), other=0), 0)
    begin = tl.program_id(0).to(tl.int64) * stretch
    for at in range(0, stretch, TILE):
        p = begin + at + tl.arange(0, TILE)
        value = tl.load(values + p * step, mask=p < size)
        rank, found = rank_tile(tl.load(kept + p, mask=p < size, other=0))
        keep = (rank >= 0) & (rank < count - before)
        tl.store(out + before + rank, value, mask=keep)
        before += found


@jit
def inverse_of(extent, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """What `divide` multiplies by."""
    return 0 if WIDE else 0xFFFFFFFF // tl.cast(extent, tl.uint32)


@jit
def divide(p, extent, inverse, WIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Quotient and remainder of what is not negative.

    A division by what is only known at run time takes many instructions. Below 2^31 a product
    with 2^32 / extent falls short of the quotient by one at most.
    """
    if WIDE:
        line = p // extent
    else:
        line = tl.umulhi(p.to(tl.uint32), inverse).to(tl.int32)
        line += (p - line * extent >= extent).to(tl.int32)
    return line, p - line * extent


@jit
def write_coordinates(  # type: ignore[no-untyped-def]
    kept,
    counts,
    out,
    later,
    extent0,
    extent1,
    extent2,
    extent3,
    last,
    count,
    size,
    stretch,
    DIMS: tl.constexpr,
    WIDE: tl.constexpr,
    STRETCHES: tl.constexpr,
    TILE: tl.constexpr,
):
    """out[d, rank] = the coordinate along `last` and up to three dims before, for what is kept."""
    s = tl.arange(0, STRETCHES)
    before = tl.sum(tl.load(counts + s, mask=s < tl.program_id(0), other=0), 0)
    inverse0, inverse1 = inverse_of(extent0, WIDE), inverse_of(extent1, WIDE)
    inverse2, inverse3 = inverse_of(extent2, WIDE), inverse_of(extent3, WIDE)
    begin = tl.program_id(0).to(tl.int64) * stretch
    p = begin + tl.arange(0, TILE)
    here = tl.load(kept + p, mask=p < size, other=0)
    for at in range(0, stretch, TILE):
        p = begin + at + tl.arange(0, TILE)
        rank, found = rank_tile(here)
        ahead = p + TILE
        here = tl.load(kept + ahead, mask=ahead < tl.minimum(size, begin + stretch), other=0)
        keep = (rank >= 0) & (rank < count - before)
        line, place = divide((p if WIDE else p.to(tl.int32)) // later, extent0, inverse0, WIDE)
        target = out + tl.cast(last, tl.int64) * count + before
        tl.store(target + rank, place.to(tl.int64), mask=keep)
        if DIMS > 1:
            target -= count
            line, place = divide(line, extent1, inverse1, WIDE)
            tl.store(target + rank, place.to(tl.int64), mask=keep)
        if DIMS > 2:
            target -= count
            line, place = divide(line, extent2, inverse2, WIDE)
            tl.store(target + rank, place.to(tl.int64), mask=keep)
        if DIMS > 3:
            target -= count
            line, place = divide(line, extent3, inverse3, WIDE)
            tl.store(target + rank, place.to(tl.int64), mask=keep)
        before += found
