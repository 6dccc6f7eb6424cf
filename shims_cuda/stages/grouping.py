"""Stable grouping of an index's positions by the row they land on.

Few positions are sorted in registers, a tile a program; a second kernel searches every tile for
each entry's row, which gives its place among all and where its row begins and ends. More go
through a radix sort of row numbers: for each digit a histogram a block, a scan over the blocks,
and a move in which every block sorts its tile by the digit and writes runs. The first pass reads
the index itself and the last one notes where each row's entries begin and end. All of it is a
function of the input alone, so the order within a group is the index order, every time.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from graftwork.plugins.toolkit import kernels
from graftwork.plugins.toolkit.kernels import cdiv, fits_int32, jit, launch
from graftwork.plugins.toolkit.symbolic import Size

from .landing import settle_row
from .problem import Problem

TILE, WARPS = 1024, 8
MERGED = 16  # tiles; a search through each of more takes longer than a radix sort


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
    # The interpreter pays by the program and by the element: smaller digits and tiles there.
    tile = 32 if kernels.is_interpreted(problem.index) else TILE
    return _merge(problem, tile) if few_tiles(problem, tile) else _radix_sort(problem, tile)


def few_tiles(problem: Problem, tile: int) -> bool:
    """Whether tiles are few enough to search through each."""
    size = problem.index.numel()
    return isinstance(size, int) and size <= MERGED * tile


def _merge(problem: Problem, tile: int) -> Groups:
    index = problem.index
    device = index.device
    size, many = index.numel(), index.shape[0] * problem.base.shape[1]
    position = torch.int32 if fits_int32(many) else torch.int64
    tiles = cdiv(size, tile)
    packed = torch.int32 if fits_int32((many + 2) * tile) else torch.int64
    keys = torch.empty(tiles * tile, dtype=packed, device=device)
    bounds = torch.empty(2 * many, dtype=position, device=device)
    launch(
        sort_tiles,
        (tiles + cdiv(2 * many, 16 * tile),),
        index,
        *index.stride()[:2],
        index.shape[1],
        problem.base.shape[1],
        many,
        keys,
        bounds,
        size,
        tiles,
        WRAP=problem.wraps,
        TILE=tile,
        num_warps=WARPS,
    )
    rows, order = (torch.empty(size, dtype=position, device=device) for _ in range(2))
    side = triton.next_power_of_2(tiles) if isinstance(tiles, int) else MERGED
    block = tile // side
    launch(
        merge_tiles,
        (cdiv(size, block),),
        keys,
        rows,
        order,
        bounds,
        many,
        size,
        tiles,
        TILE=tile,
        SIDE=side,
        BLOCK=block,
        STEPS=tile.bit_length() - 1,
        num_warps=4,
    )
    return Groups(rows, order, bounds)


def _radix_sort(problem: Problem, tile: int) -> Groups:
    index = problem.index
    device = index.device
    size, many = index.numel(), index.shape[0] * problem.base.shape[1]
    position = torch.int32 if fits_int32(size, many) else torch.int64
    digit_bits, passes = _digits(many, 4 if tile < TILE else 9)
    digits, blocks = 2**digit_bits, cdiv(size, tile)
    bounds = torch.zeros(2 * many, dtype=position, device=device)
    rows = order = index
    for number in range(passes):
        counts = torch.empty(digits * blocks, dtype=position, device=device)
        totals = torch.empty(digits, dtype=position, device=device)
        source = (rows, *index.stride()[:2], index.shape[1], problem.base.shape[1], many)
        settings = {
            "SHIFT": number * digit_bits,
            "FIRST": number == 0,
            "WRAP": problem.wraps,
            "DIGITS": digits,
            "TILE": tile,
            "num_warps": WARPS,
        }
        launch(count_digits, (blocks,), *source, counts, size, blocks, **settings)
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
            LAST=number == passes - 1,
            **settings,
        )
        rows, order = sorted_rows, sorted_order
    return Groups(rows, order, bounds)


def _digits(many: Size, most: int) -> tuple[int, int]:
    """Bits a digit, up to `most`, and how many digits hold row numbers up to `many` itself."""
    if isinstance(many, int):
        bits = many.bit_length()
    else:
        bits = 31 if fits_int32(many) else 63
    passes = -(-max(bits, 1) // most)
    return -(-max(bits, 1) // passes), passes


@jit
def sort_tiles(  # type: ignore[no-untyped-def]
    rows,
    so,
    sk,
    count,
    height,
    many,
    keys,
    bounds,
    size,
    tiles,
    WRAP: tl.constexpr,
    TILE: tl.constexpr,
):
    """keys = each tile's row numbers, sorted, each above its lane; other programs clear bounds."""
    kind: tl.constexpr = keys.dtype.element_ty
    lane = tl.arange(0, TILE)
    tile = tl.program_id(0).to(tl.int64)
    if tile < tiles:
        p = tile * TILE + lane
        entry = tl.load(rows + (p // count) * so + (p % count) * sk, mask=p < size, other=0)
        row, lands = row_of(entry, p, p < size, count, height, many, WRAP)
        tl.device_assert(lands, "index out of range", mask=p < size)
        row = tl.where(p < size, row, many + 1)  # past the end: last
        tl.store(keys + p, tl.sort(row.to(kind) * TILE + lane))
    else:
        for part in range(16):
            p = ((tile - tiles) * 16 + part) * TILE + lane
            tl.store(bounds + p, tl.zeros([TILE], bounds.dtype.element_ty), mask=p < 2 * many)


@jit
def merge_tiles(  # type: ignore[no-untyped-def]
    keys,
    sorted_rows,
    order,
    bounds,
    many,
    size,
    tiles,
    TILE: tl.constexpr,
    SIDE: tl.constexpr,
    BLOCK: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Each entry's place among all, from how many of its row, or of lower ones, a tile holds."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    own = p // TILE
    key = tl.load(keys + p, mask=own < tiles, other=0)
    row = key // TILE
    inside = (own < tiles) & (row <= many)
    tile = tl.arange(0, SIDE)[:, None]
    line = keys + tile * TILE
    low = tl.zeros([SIDE, BLOCK], tl.int32)
    high = tl.zeros([SIDE, BLOCK], tl.int32)
    first = (row * TILE)[None, :]
    last = first + (TILE - 1)
    here = (tile < tiles) & inside[None, :]
    for step in tl.static_range(STEPS):
        half = TILE >> (step + 1)
        low += tl.where(tl.load(line + low + (half - 1), mask=here, other=0) < first, half, 0)
        high += tl.where(tl.load(line + high + (half - 1), mask=here, other=0) <= last, half, 0)
    low += (tl.load(line + low, mask=here, other=0) < first).to(tl.int32)
    high += (tl.load(line + high, mask=here, other=0) <= last).to(tl.int32)
    low = tl.where(here, low, 0)
    high = tl.where(here, high, 0)
    others = tl.where(tile < own[None, :], high, tl.where(tile > own[None, :], low, 0))
    place = tl.sum(others, 0) + (p % TILE).to(tl.int32)
    begin = tl.sum(low, 0)
    end = tl.sum(high, 0)
    position = own * TILE + key % TILE
    tl.store(sorted_rows + place, row.to(sorted_rows.dtype.element_ty), mask=inside)
    tl.store(order + place, position.to(order.dtype.element_ty), mask=inside)
    heads = inside & (place == begin) & (row < many)
    kind: tl.constexpr = bounds.dtype.element_ty
    tl.store(bounds + row, (size - begin).to(kind), mask=heads)
    tl.store(bounds + many + row, end.to(kind), mask=heads)


@jit
def row_of(entry, p, inside, count, height, many, WRAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The row number of the index's entry at `p`, `many` where out of range; is it in range."""
    row, lands = settle_row(entry.to(tl.int64), inside, height, WRAP)
    return tl.where(lands, p // count * height + row, many), lands


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
    if FIRST:
        entry = tl.load(rows + (p // count) * so + (p % count) * sk, mask=inside, other=0)
        row, lands = row_of(entry, p, inside, count, height, many, WRAP)
        tl.device_assert(lands, "index out of range", mask=inside)
    else:
        row = tl.load(rows + p, mask=inside, other=0).to(tl.int64)
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
    p = start + lane
    if FIRST:
        entry = tl.load(rows + (p // count) * so + (p % count) * sk, mask=inside, other=0)
        row, _ = row_of(entry, p, inside, count, height, many, WRAP)
    else:
        row = tl.load(rows + p, mask=inside, other=0).to(tl.int64)
    digit = ((row >> SHIFT) & (DIGITS - 1)).to(tl.int32)
    histogram = tl.histogram(digit, DIGITS, mask=inside)
    every = tl.arange(0, DIGITS)
    total = tl.load(totals + every)
    shift = tl.cumsum(total, 0) - total + tl.load(counts + every.to(tl.int64) * blocks + block)
    shift -= (tl.cumsum(histogram, 0) - histogram).to(shift.dtype)
    # A tile's order as one integer, digit first, then lane; lanes past the end come last.
    packed = tl.sort(tl.where(inside, digit, DIGITS) * TILE + lane)
    by = packed // TILE
    source = start + packed % TILE
    target = tl.gather(shift, tl.minimum(by, DIGITS - 1), 0) + lane
    if FIRST:
        entry = tl.load(
            rows + (source // count) * so + (source % count) * sk, mask=inside, other=0
        )
        row, _ = row_of(entry, source, inside, count, height, many, WRAP)
    else:
        row = tl.load(rows + source, mask=inside, other=0).to(tl.int64)
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
