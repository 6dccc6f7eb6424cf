"""Stable grouping of positions by the row they land on: a radix sort of row numbers.

Each pass sorts by one digit of eight bits: a histogram a block, a scan over the blocks a digit,
and a move in which every block sorts its tile by the digit and writes runs. All of it is a
function of the input alone, so the order within a group is the index order, every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton.language as tl

from graftwork.plugins.toolkit import kernels
from graftwork.plugins.toolkit.kernels import cdiv, fits_int32, jit, launch
from graftwork.plugins.toolkit.symbolic import Size, known


@dataclass(frozen=True)
class Groups:
    """Positions 0..n-1 grouped by row.

    Attributes:
        rows: (n,) the row of each entry, sorted; the number of rows stands for "dropped".
        order: (n,) the positions, by row, then by position.
        first: (m,) where each row's entries begin in `order`.
        end: (m,) one past where they end; 0, as `first`, for a row with none.
    """

    rows: torch.Tensor
    order: torch.Tensor
    first: torch.Tensor
    end: torch.Tensor


def group_rows(rows: torch.Tensor, count: Size) -> Groups:
    """Group the positions of `rows` (n,), whose values lie in 0..count; `count` means dropped."""
    size = rows.numel()
    device = rows.device
    position = torch.int32 if fits_int32(size) else torch.int64
    # The interpreter pays by the program and by the element: smaller digits and tiles there.
    digit_bits, tile = (4, 32) if kernels.is_interpreted(rows) else (8, 1024)
    digits, blocks = 2**digit_bits, cdiv(size, tile)
    order = None
    for shift in range(0, _bits(count, digit_bits), digit_bits):
        counts = torch.empty(digits * blocks, dtype=position, device=device)
        totals = torch.empty(digits, dtype=position, device=device)
        sorted_rows = torch.empty_like(rows)
        sorted_order = torch.empty(size, dtype=position, device=device)
        launch(
            count_digits,
            (blocks,),
            rows,
            counts,
            size,
            blocks,
            SHIFT=shift,
            DIGITS=digits,
            TILE=tile,
            num_warps=4,
        )
        launch(scan_blocks, (digits,), counts, totals, blocks, BLOCK=1024, num_warps=4)
        launch(
            move_by_digit,
            (blocks,),
            rows,
            rows if order is None else order,
            sorted_rows,
            sorted_order,
            counts,
            totals,
            size,
            blocks,
            SHIFT=shift,
            FIRST=order is None,
            DIGITS=digits,
            TILE=tile,
            num_warps=4,
        )
        rows, order = sorted_rows, sorted_order
    assert order is not None
    first, end = torch.zeros((2, count), dtype=position, device=device).unbind()
    launch(find_bounds, (cdiv(size, 512),), rows, first, end, size, count, BLOCK=512, num_warps=4)
    return Groups(rows, order, first, end)


def _bits(count: Size, digit_bits: int) -> int:
    """Bits that hold the largest row number, `count` itself, in whole digits."""
    sizes = range(digit_bits, 64, digit_bits)
    return next((bits for bits in sizes if known(count < 2**bits)), 64)


@jit
def digit_of(  # type: ignore[no-untyped-def]
    rows, p, inside, SHIFT: tl.constexpr, DIGITS: tl.constexpr
):
    """The bits of the row numbers at positions `p` that a pass sorts by."""
    row = tl.load(rows + p, mask=inside, other=0)
    return ((row >> SHIFT) & (DIGITS - 1)).to(tl.int32)


@jit
def count_digits(  # type: ignore[no-untyped-def]
    rows,
    counts,
    size,
    blocks,
    SHIFT: tl.constexpr,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """counts[digit, block] = how many rows of the block have that digit."""
    block = tl.program_id(0)
    p = block.to(tl.int64) * TILE + tl.arange(0, TILE)
    inside = p < size
    histogram = tl.histogram(digit_of(rows, p, inside, SHIFT, DIGITS), DIGITS, mask=inside)
    digit = tl.arange(0, DIGITS)
    target = digit.to(tl.int64) * blocks + block
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
def move_by_digit(  # type: ignore[no-untyped-def]
    rows,
    order,
    sorted_rows,
    sorted_order,
    counts,
    totals,
    size,
    blocks,
    SHIFT: tl.constexpr,
    FIRST: tl.constexpr,
    DIGITS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Write the tile's rows, stably by digit, where the pass puts them."""
    block = tl.program_id(0)
    lane = tl.arange(0, TILE)
    start = block.to(tl.int64) * TILE
    inside = start + lane < size
    digit = digit_of(rows, start + lane, inside, SHIFT, DIGITS)
    histogram = tl.histogram(digit, DIGITS, mask=inside)
    every = tl.arange(0, DIGITS)
    total = tl.load(totals + every)
    earlier = tl.load(counts + every.to(tl.int64) * blocks + block)
    shift = (tl.cumsum(total, 0) - total) + earlier
    shift -= (tl.cumsum(histogram, 0) - histogram).to(shift.dtype)
    # A tile's order as one integer, digit first, then lane; lanes past the end come last.
    packed = tl.sort(tl.where(inside, digit, DIGITS) * TILE + lane)
    by = packed // TILE
    source = start + packed % TILE
    target = tl.gather(shift, tl.minimum(by, DIGITS - 1), 0) + lane
    tl.store(sorted_rows + target, tl.load(rows + source, mask=inside, other=0), mask=inside)
    if FIRST:
        position = source.to(sorted_order.dtype.element_ty)
    else:
        position = tl.load(order + source, mask=inside, other=0)
    tl.store(sorted_order + target, position, mask=inside)


@jit
def find_bounds(rows, first, end, size, count, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where each row's entries begin and end in sorted `rows`."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = p < size
    row = tl.load(rows + p, mask=inside, other=count)
    kept = inside & (row < count)
    before = tl.load(rows + p - 1, mask=kept & (p > 0), other=-1)
    after = tl.load(rows + p + 1, mask=kept & (p + 1 < size), other=-1)
    tl.store(first + row, p.to(first.dtype.element_ty), mask=kept & (row != before))
    tl.store(end + row, (p + 1).to(end.dtype.element_ty), mask=kept & (row != after))
