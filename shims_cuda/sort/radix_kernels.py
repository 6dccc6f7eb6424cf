"""Rows of any length: a radix sort, least significant digit first, three launches a digit.

A row is cut into tiles of TILE elements, its tiles into chunks of ``iters`` tiles.

1. ``count_digits`` counts the digits of each tile, and adds the counts up within each chunk.
2. ``scan_chunks`` adds the chunks of a row up.
3. ``place_tiles`` sorts each tile by digit, in place order, and writes every element to where its
   digit begins, plus what earlier tiles hold of that digit.

Where PTX is set, the counting and the sorting of a tile are written in it (`warp_ranks`); else
Triton counts, and a network sorts.

No program waits for another: what one launch needs, an earlier launch wrote. (A radix sort
that finds its offsets by looking back at other programs hangs where those are not scheduled.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from graftwork.shims_cuda.sort import warp_ranks
from graftwork.shims_cuda.sort.key_kernels import digit_of
from graftwork.shims_cuda.sort.network_kernels import sort_words, start

jit: Callable[[Callable[..., Any]], Any] = triton.jit
# `shift` differs from pass to pass: not worth a kernel of its own for each value.
jit_for_all_passes: Callable[[Callable[..., Any]], Any] = triton.jit(do_not_specialize=["shift"])

ITEMS = tl.constexpr(8)  # elements of a thread, where PTX sorts and counts them
ORDER = tl.constexpr(warp_ranks.order(ITEMS.value))
COUNT = tl.constexpr(warp_ranks.count(ITEMS.value))
OPERANDS = tl.constexpr(warp_ranks.constraints(ITEMS.value))


@jit_for_all_passes
def count_digits(  # type: ignore[no-untyped-def]
    x,
    tile_offsets,
    chunk_counts,
    rows,
    n,
    tiles,
    chunks,
    iters,
    shift,
    DESCENDING: tl.constexpr,
    TILE: tl.constexpr,
    PTX: tl.constexpr,
):
    """Digit counts of one chunk of ``x`` [rows, n].

    ``chunk_counts`` [rows, chunks, 256]: how often each digit occurs in the chunk.
    ``tile_offsets`` [rows, tiles, 256]: how often it occurs in the tiles before, within the
    chunk, less the rank of the tile's first such element in the tile.
    """
    row = (tl.program_id(0) // chunks).to(tl.int64)
    chunk = tl.program_id(0) % chunks
    n = tl.where(row < rows, n, 0)  # of no rows at all, one program still runs
    place = _places(TILE)
    digit = place if PTX else tl.arange(0, 256)
    before = tl.zeros(digit.shape, tl.int32)
    for step in range(iters):
        tile = chunk * iters + step
        at = tile * TILE + place
        value = tl.load(x + row * n + at, mask=at < n, other=0)
        found = digit_of(value, shift, DESCENDING)
        if PTX:
            both = _in_ptx(COUNT, tl.where(at < n, found, 256), place)
            counts = both & 0xFFFF
            first = both >> 16
        else:
            counts = tl.histogram(found, 256, mask=at < n)
            first = tl.cumsum(counts, 0) - counts
        to = tile_offsets + (row * tiles + tile) * 256 + digit
        tl.store(to, before - first, mask=(tile < tiles) & (digit < 256))
        before += counts
    to = chunk_counts + (row * chunks + chunk) * 256 + digit
    tl.store(to, before, mask=digit < 256)


@jit
def scan_chunks(  # type: ignore[no-untyped-def]
    chunk_counts, row_counts, chunks, DIGITS: tl.constexpr, CHUNKS: tl.constexpr
):
    """Running sums of ``chunk_counts`` [rows, chunks, 256] along the chunks, in its place.

    Each sum leaves its own chunk out; ``row_counts`` [rows, 256] is the sum of all.
    """
    row = (tl.program_id(0) // (256 // DIGITS)).to(tl.int64)
    digit = (tl.program_id(0) % (256 // DIGITS)) * DIGITS + tl.arange(0, DIGITS)
    before = tl.zeros([DIGITS], tl.int32)
    for begin in range(0, chunks, CHUNKS):
        chunk = begin + tl.arange(0, CHUNKS)
        at = chunk_counts + (row * chunks + chunk[:, None]) * 256 + digit[None, :]
        counts = tl.load(at, mask=chunk[:, None] < chunks, other=0)
        sums = tl.cumsum(counts, 0) - counts + before[None, :]
        tl.store(at, sums, mask=chunk[:, None] < chunks)
        before += tl.sum(counts, 0)
    tl.store(row_counts + row * 256 + digit, before)


@jit_for_all_passes
def place_tiles(  # type: ignore[no-untyped-def]
    x,
    x_index,
    tile_offsets,
    chunk_offsets,
    row_counts,
    y,
    y_index,
    rows,
    n,
    tiles,
    chunks,
    iters,
    shift,
    DESCENDING: tl.constexpr,
    FIRST: tl.constexpr,
    REGS: tl.constexpr,
    WARPS: tl.constexpr,
    PTX: tl.constexpr,
):
    """One tile of ``x`` and ``x_index`` [rows, n] to its places in ``y`` and ``y_index``.

    In the FIRST pass an element's index is its column and ``x_index`` is not read.
    """
    TILE: tl.constexpr = 2 ** (REGS + WARPS + 5)
    row = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    left = tl.where(row < rows, n, 0) - tile * TILE  # of no rows at all, one program still runs
    x += row * n + tile * TILE
    x_index += row * n + tile * TILE
    y += row * n
    y_index += row * n

    slot = _places(TILE)
    if PTX:  # elements past the end come last, as no digit is larger
        value = tl.load(x + slot, mask=slot < left, other=0)
        digit = tl.where(slot < left, digit_of(value, shift, DESCENDING), 255)
        word = _in_ptx(ORDER, digit * 2**16 + slot, slot)
    else:
        place = start(REGS, WARPS)
        value = tl.load(x + place, mask=place < left, other=0)
        digit = tl.where(place < left, digit_of(value, shift, DESCENDING), 256)
        word = sort_words(digit * 2**16 + place, REGS + WARPS + 5, REGS, WARPS)
        word = tl.reshape(tl.permute(word, (1, 0, 2)), [TILE])
        word = tl.gather(word, slot, 0)  # from a thread's own run to neighbours in neighbour lanes
    source = word & 0xFFFF
    digit = (word >> 16) & 255

    each = tl.arange(0, 256)
    offset = tl.load(row_counts + row * 256 + each)
    offset = tl.cumsum(offset, 0) - offset
    offset += tl.load(chunk_offsets + (row * chunks + tile // iters) * 256 + each)
    offset += tl.load(tile_offsets + (row * tiles + tile) * 256 + each)
    to = tl.gather(offset, digit, 0) + slot

    tl.debug_barrier()  # read the values again, rather than keep them through the sorting
    value = tl.load(x + slot, mask=slot < left, other=0)
    tl.store(y + to, tl.gather(value, source, 0), mask=slot < left)
    if FIRST:
        index = tile * TILE + source
    else:
        index = tl.load(x_index + slot, mask=slot < left, other=0)
        index = tl.gather(index, source, 0)
    tl.store(y_index + to, index.to(y_index.dtype.element_ty), mask=slot < left)


@jit
def _places(TILE: tl.constexpr):  # type: ignore[no-untyped-def]
    """0 to TILE - 1, one a lane: the compiler cannot know that the third program id is 0.

    Else it hands a thread several neighbours, whose words meet in one bank of shared memory.
    """
    return tl.arange(0, TILE) ^ tl.program_id(2)


@jit
def _in_ptx(text: tl.constexpr, what, place):  # type: ignore[no-untyped-def]
    return tl.inline_asm_elementwise(
        text, OPERANDS, [what, place], dtype=tl.int32, is_pure=True, pack=ITEMS
    )
