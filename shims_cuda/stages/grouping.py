"""Stable grouping of an index's positions by the row they land on: a radix sort of row numbers.

Each pass sorts by one digit of eight bits: a histogram a block, a scan over the blocks (within
the next kernel where blocks are few), and a move in which every block sorts its tile by the digit
and writes runs. The first pass reads the index itself and the last one notes where each row's
entries begin and end. All of it is a function of the input alone, so the order within a group is
the index order, every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from graftwork.plugins.toolkit import kernels
from graftwork.plugins.toolkit.kernels import cdiv, fits_int32, jit, launch
from graftwork.plugins.toolkit.symbolic import Size, known

from .landing import settle_row
from .problem import Problem

FEW_BLOCKS = 32
TILE, WARPS = 1024, 4


@dataclass(frozen=True)
class Groups:
    """Positions of an index (G, N), flattened, grouped by row, of which there are m.

    Attributes:
        rows: (G * N,) the row of each entry, sorted; m stands for one out of range.
        order: (G * N,) the positions, by row, then by position.
        bounds: (2 * m,) for each row, how far before the end of `order` its entries begin; then,
            for each row, one past where they end. Both are 0 for a row with none.
    """

    rows: torch.Tensor
    order: torch.Tensor
    bounds: torch.Tensor


def group_by_row(problem: Problem) -> Groups:
    """Group the positions of an index that has one entry a row."""
    index = problem.index
    device = index.device
    size, many = index.numel(), index.shape[0] * problem.base.shape[1]
    position = torch.int32 if fits_int32(size, many) else torch.int64
    # The interpreter pays by the program and by the element: smaller digits and tiles there.
    digit_bits, tile = (4, 32) if kernels.is_interpreted(index) else (8, TILE)
    digits, blocks = 2**digit_bits, cdiv(size, tile)
    few = triton.next_power_of_2(blocks) if isinstance(blocks, int) else 2 * FEW_BLOCKS
    few = few if few <= FEW_BLOCKS else 0
    bounds = torch.zeros(2 * many, dtype=position, device=device)
    rows = order = index
    shifts = range(0, _bits(many, digit_bits), digit_bits)
    for shift in shifts:
        counts = torch.empty(digits * blocks, dtype=position, device=device)
        totals = torch.empty(digits, dtype=position, device=device)
        source = (rows, *index.stride()[:2], index.shape[1], problem.base.shape[1], many)
        settings = {
            "SHIFT": shift,
            "FIRST": shift == 0,
            "WRAP": problem.wraps,
            "DIGITS": digits,
            "TILE": tile,
            "num_warps": WARPS,
        }
        launch(count_digits, (blocks,), *source, counts, size, blocks, **settings)
        if not few:
            launch(scan_blocks, (digits,), counts, totals, blocks, BLOCK=1024, num_warps=4)
        sorted_rows = torch.empty(size, dtype=position, device=device)
        sorted_order = torch.empty(size, dtype=position, device=device)
        launch(
            move_by_digit,
            (blocks,),
            *source,
            order,
            sorted_rows,
            sorted_order,
            counts,
            totals,
            bounds,
            size,
            blocks,
            LAST=shift == shifts[-1],
            FEW=few,
            **settings,
        )
        rows, order = sorted_rows, sorted_order
    return Groups(rows, order, bounds)


def _bits(count: Size, digit_bits: int) -> int:
    """Bits that hold the largest row number, `count` itself, in whole digits."""
    sizes = range(digit_bits, 64, digit_bits)
    return next((bits for bits in sizes if known(count < 2**bits)), 64)


@jit
def row_at(  # type: ignore[no-untyped-def]
    rows, p, inside, so, sk, count, height, many, FIRST: tl.constexpr, WRAP: tl.constexpr
):
    """The row number of position `p`, `many` where out of range; and is it in range."""
    if FIRST:
        k = p % count
        o = p // count
        row = tl.load(rows + o * so + k * sk, mask=inside, other=0).to(tl.int64)
        row, lands = settle_row(row, inside, height, WRAP)
        row = tl.where(lands, o * height + row, many)
    else:
        row = tl.load(rows + p, mask=inside, other=0).to(tl.int64)
        lands = inside
    return row, lands


@jit
def count_digits(  # type: ignore[no-untyped-def]
    rows,
    so,
    sk,
    count,
    height,
    many,
    counts,
    size,
    blocks,
    SHIFT: tl.constexpr,
    FIRST: tl.constexpr,
    WRAP: tl.constexpr,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """counts[digit, block] = how many rows of the block have that digit."""
    block = tl.program_id(0)
    p = block.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = p < size
    row, lands = row_at(rows, p, inside, so, sk, count, height, many, FIRST, WRAP)
    if FIRST:
        tl.device_assert(lands, "index out of range", mask=inside)
    digit = ((row >> SHIFT) & (DIGITS - 1)).to(tl.int32)
    histogram = tl.histogram(digit, DIGITS, mask=inside)
    target = tl.arange(0, DIGITS).to(tl.int64) * blocks + block
    tl.store(counts + target, histogram.to(counts.dtype.element_ty))


@jit
def scan_blocks(counts, totals, blocks, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """One digit a program: counts become how many came in earlier blocks; totals, in all."""
    digit = tl.program_id(0)
    line = counts + digit.to(tl.int64) * blocks
    before = tl.zeros([], counts.dtype.element_ty)
    for at in range(0, blocks, BLOCK):
        b = at + tl.arange(0, BLOCK)
        here = tl.load(line + b, mask=b < blocks, other=0)
        tl.store(line + b, before + tl.cumsum(here, 0) - here, mask=b < blocks)
        before += tl.sum(here, 0)
    tl.store(totals + digit, before)


@jit
def digit_starts(  # type: ignore[no-untyped-def]
    counts, totals, block, blocks, DIGITS: tl.constexpr, FEW: tl.constexpr
):
    """Where the block's first row of each digit goes."""
    digit = tl.arange(0, DIGITS)
    line = digit.to(tl.int64) * blocks
    if FEW:
        b = tl.arange(0, FEW)[None, :]
        every = tl.load(counts + line[:, None] + b, mask=b < blocks, other=0)
        total = tl.sum(every, 1)
        earlier = tl.sum(tl.where(b < block, every, 0), 1)
    else:
        total = tl.load(totals + digit)
        earlier = tl.load(counts + line + block)
    return tl.cumsum(total, 0) - total + earlier


@jit
def move_by_digit(  # type: ignore[no-untyped-def]
    rows,
    so,
    sk,
    count,
    height,
    many,
    order,
    sorted_rows,
    sorted_order,
    counts,
    totals,
    bounds,
    size,
    blocks,
    LAST: tl.constexpr,
    FEW: tl.constexpr,
    SHIFT: tl.constexpr,
    FIRST: tl.constexpr,
    WRAP: tl.constexpr,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the tile's rows, stably by digit, where the pass puts them."""
    block = tl.program_id(0)
    lane = tl.arange(0, TILE)
    start = block.to(tl.int64) * TILE
    inside = start + lane < size
    row, _ = row_at(rows, start + lane, inside, so, sk, count, height, many, FIRST, WRAP)
    digit = ((row >> SHIFT) & (DIGITS - 1)).to(tl.int32)
    histogram = tl.histogram(digit, DIGITS, mask=inside)
    shift = digit_starts(counts, totals, block, blocks, DIGITS, FEW)
    shift -= (tl.cumsum(histogram, 0) - histogram).to(shift.dtype)
    # A tile's order as one integer, digit first, then lane; lanes past the end come last.
    packed = tl.sort(tl.where(inside, digit, DIGITS) * TILE + lane)
    by = packed // TILE
    source = start + packed % TILE
    target = tl.gather(shift, tl.minimum(by, DIGITS - 1), 0) + lane
    row, _ = row_at(rows, source, inside, so, sk, count, height, many, FIRST, WRAP)
    row = row.to(sorted_rows.dtype.element_ty)
    tl.store(sorted_rows + target, row, mask=inside)
    if FIRST:
        position = source.to(sorted_order.dtype.element_ty)
    else:
        position = tl.load(order + source, mask=inside, other=0)
    tl.store(sorted_order + target, position, mask=inside)
    if LAST:
        note_bounds(bounds, row, target, lane, inside, many, size, TILE)


@jit
def note_bounds(  # type: ignore[no-untyped-def]
    bounds, row, target, lane, inside, many, size, TILE: tl.constexpr
):
    """Keep the first and the last place of each row; a tile's rows are sorted by now."""
    kept = inside & (row < many)
    before = tl.gather(row, tl.maximum(lane - 1, 0), 0)
    after = tl.gather(row, tl.minimum(lane + 1, TILE - 1), 0)
    past = tl.gather(inside.to(tl.int32), tl.minimum(lane + 1, TILE - 1), 0) == 0
    begins = kept & ((lane == 0) | (row != before))
    ends = kept & ((lane == TILE - 1) | (row != after) | past)
    kind: tl.constexpr = bounds.dtype.element_ty
    tl.atomic_max(bounds + row, (size - target).to(kind), mask=begins, sem="relaxed")
    tl.atomic_max(bounds + many + row, (target + 1).to(kind), mask=ends, sem="relaxed")
