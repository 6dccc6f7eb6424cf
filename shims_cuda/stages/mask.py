"""Boolean masks: which elements they keep, and each one's rank among those kept.

Two passes over the mask in blocks: count each block, scan the counts, then every block ranks its
own elements. Only the number of kept elements is ever read by the host, and only where it is the
size of a result.
"""

from __future__ import annotations

import math

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import (
    as_bytes,
    as_dtype,
    at_least_one,
    cdiv,
    fits_int32,
    jit,
    launch,
)
from graftwork.plugins.toolkit.symbolic import Size, known

BLOCK = 4096


def block_offsets(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many kept elements come before each block of `mask` (flat), and how many in all.

    Shapes (blocks,) and (), both int64.
    """
    kept = _flat(mask)
    blocks = at_least_one(cdiv(kept.numel(), BLOCK))  # every kernel reads its block's offset
    offsets = torch.empty(blocks, dtype=torch.int64, device=mask.device)
    launch(count_kept, (blocks,), kept, offsets, kept.numel(), BLOCK=BLOCK, num_warps=4)
    if known(blocks == 1):
        return torch.zeros_like(offsets), offsets.view(())
    total = torch.zeros(1, dtype=torch.int64, device=mask.device)
    launch(scan_counts, (1,), offsets, total, blocks, BLOCK=1024, num_warps=4)
    return offsets, total.view(())


def ranks(mask: torch.Tensor) -> torch.Tensor:
    """Each element's rank among the kept ones, in row-major order; -1 where not kept."""
    kept = _flat(mask)
    offsets, _ = block_offsets(mask)
    dtype = torch.int32 if fits_int32(kept.numel()) else torch.int64
    out = torch.empty(kept.shape, dtype=dtype, device=mask.device)
    grid = (cdiv(kept.numel(), BLOCK),)
    launch(write_ranks, grid, kept, offsets, out, kept.numel(), BLOCK=BLOCK, num_warps=4)
    return out.view(mask.shape)


def kept_values(
    x: torch.Tensor, mask: torch.Tensor, offsets: torch.Tensor, count: Size
) -> torch.Tensor:
    """The `count` elements of `x` that `mask`, of its shape, keeps: (count,)."""
    kept, dtype = _flat(mask), x.dtype
    values = as_bytes(x).reshape(-1)
    out = torch.empty(count, dtype=values.dtype, device=x.device)
    grid = (cdiv(kept.numel(), BLOCK),)
    launch(
        write_kept,
        grid,
        kept,
        offsets,
        values,
        out,
        values.stride(0),
        kept.numel(),
        count,
        BLOCK=BLOCK,
        num_warps=4,
    )
    return as_dtype(out, dtype)


def kept_positions(
    mask: torch.Tensor, offsets: torch.Tensor, out: torch.Tensor, count: Size
) -> torch.Tensor:
    """Coordinates of the kept elements, row-major, in `out` (mask.dim() * count), int64.

    Returns them as (count, mask.dim()), one dim's coordinates after the other, as ATen lays them
    out. `out` is flat: where nobody knows that `count` is not 0, Inductor takes the strides of
    rows of `count` for others than it gave them, and copies the result onto itself.
    """
    kept, dims = _flat(mask), mask.dim()
    grid = (cdiv(kept.numel(), BLOCK),)
    later: Size = 1
    for last in range(dims - 1, -1, -4):
        extents = [mask.shape[d] if d >= 0 else 1 for d in range(last, last - 4, -1)]
        launch(
            write_coordinates,
            grid,
            kept,
            offsets,
            out,
            later,
            *extents,
            last,
            kept.numel(),
            count,
            DIMS=min(4, last + 1),
            WIDE=not fits_int32(kept.numel()),
            BLOCK=BLOCK,
            num_warps=4,
        )
        later = later * math.prod(extents)
    return out.view(dims, count).t()


def _flat(mask: torch.Tensor) -> torch.Tensor:
    return as_bytes(mask).contiguous().view(-1)


@jit
def count_kept(kept, counts, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """counts[block] = how many elements the block keeps."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    here = tl.load(kept + p, mask=p < size, other=0).to(tl.int32)
    tl.store(counts + tl.program_id(0), tl.sum(here, 0).to(tl.int64))


@jit
def scan_counts(counts, total, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Counts become how many are kept in earlier blocks; one program."""
    before = tl.zeros([], tl.int64)
    for at in range(0, blocks, BLOCK):
        b = at + tl.arange(0, BLOCK)
        here = tl.load(counts + b, mask=b < blocks, other=0)
        tl.store(counts + b, before + tl.cumsum(here, 0) - here, mask=b < blocks)
        before += tl.sum(here, 0)
    tl.store(total, before)


@jit
def positions(BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where this program's block lies."""
    return tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)


@jit
def rank_block(here, before):  # type: ignore[no-untyped-def]
    """Which elements of the block are kept, and the rank each has if it is."""
    return here != 0, before + tl.cumsum(here.to(tl.int32), 0) - 1


@jit
def write_ranks(kept, offsets, out, size, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """out = the rank, or -1."""
    p = positions(BLOCK)
    here = tl.load(kept + p, mask=p < size, other=0)
    keep, rank = rank_block(here, tl.load(offsets + tl.program_id(0)))
    tl.store(out + p, tl.where(keep, rank, -1).to(out.dtype.element_ty), mask=p < size)


@jit
def write_kept(  # type: ignore[no-untyped-def]
    kept, offsets, values, out, step, size, count, BLOCK: tl.constexpr
):
    """out[rank] = value, for what is kept."""
    p = positions(BLOCK)
    here = tl.load(kept + p, mask=p < size, other=0)
    keep, rank = rank_block(here, tl.load(offsets + tl.program_id(0)))
    value = tl.load(values + p * step, mask=keep, other=0)
    tl.store(out + rank, value, mask=keep & (rank < count))


@jit
def write_coordinates(  # type: ignore[no-untyped-def]
    kept,
    offsets,
    out,
    later,
    extent0,
    extent1,
    extent2,
    extent3,
    last,
    size,
    count,
    DIMS: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[d, rank] = the coordinate along `last` and up to three dims before, for what is kept."""
    p = positions(BLOCK)
    here = tl.load(kept + p, mask=p < size, other=0)
    keep, rank = rank_block(here, tl.load(offsets + tl.program_id(0)))
    keep &= rank < count
    line = (p if WIDE else p.to(tl.int32)) // later
    target = out + tl.cast(last, tl.int64) * count + rank
    tl.store(target, (line % extent0).to(tl.int64), mask=keep)
    if DIMS > 1:
        line = line // extent0
        tl.store(target - count, (line % extent1).to(tl.int64), mask=keep)
    if DIMS > 2:
        line = line // extent1
        tl.store(target - 2 * tl.cast(count, tl.int64), (line % extent2).to(tl.int64), mask=keep)
    if DIMS > 3:
        line = line // extent2
        tl.store(target - 3 * tl.cast(count, tl.int64), (line % extent3).to(tl.int64), mask=keep)
