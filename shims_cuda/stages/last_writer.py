"""Plain writes where the last in index order wins, whatever order the GPU runs them in.

Two kernels: an integer atomic maximum of the position that lands on each element, which does not
depend on order, then one pass over the output that picks either that position's value or the
element as it was. Where one index moves a row, both work a row at a time. A few entries for a
large tensor are written in another way.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from graftwork.plugins.toolkit.kernels import as_dtype, cdiv, fits_int32, jit, launch
from graftwork.plugins.toolkit.symbolic import Size, known

from .few_writes import are_few, write_few
from .landing import block_positions, landing, settle_row, strip_of, unfold
from .over_entries import over_entries, over_strips
from .problem import Problem, bits, suits_strips


def last_writer(problem: Problem) -> torch.Tensor:
    """`out[o, index[o, k, i], i] = src[o, k, i]` for k in order; (O, M, I), contiguous."""
    if are_few(problem):
        return write_few(problem)
    _, count, rows, _ = problem.sizes
    groups, _, width = problem.index.shape
    dtype = torch.int32 if fits_int32(count) else torch.int64
    writer = torch.full((groups, rows, width), -1, dtype=dtype, device=problem.base.device)
    operands = (problem.index, writer, *problem.index.stride())
    if suits_strips(problem, 16, 512):
        tile = {"columns": 16, "rows": 64, "chunk": 512}
        over_strips(mark_last_by_strips, problem, groups, width, *operands, **tile)
    else:
        peek = known(count >= 64 * rows)
        over_entries(mark_last, problem, groups, width, *operands, PEEK=peek)
    return pick(problem, writer, count)


def pick(problem: Problem, writer: torch.Tensor, count: Size) -> torch.Tensor:
    """`src` at position `writer` (O or 1, M, I or 1) where that is in [0, count), else `base`."""
    dtype, problem = problem.base.dtype, bits(problem)
    outer, _, rows, inner = problem.sizes
    out = torch.empty(problem.base.shape, dtype=problem.base.dtype, device=problem.base.device)
    shared = known(writer.shape[0] == 1)
    operands = (writer, problem.src, problem.base, out, *problem.src.stride())
    sizes = (*problem.base.stride(), 0 if shared else writer.stride(0), count, rows, inner)
    if problem.moves_rows:
        columns, block_rows = row_tile(inner)
        strips = cdiv(inner, columns)
        launch(
            pick_rows,
            (cdiv(outer * rows, block_rows) * strips,),
            *operands,
            *sizes,
            outer * rows,
            strips,
            ROWS=block_rows,
            COLUMNS=columns,
            num_warps=4 if columns * block_rows >= 1024 else 1,
        )
    else:
        launch(
            pick_elements,
            (cdiv(outer * rows * inner, 1024),),
            *operands,
            *sizes,
            outer * rows * inner,
            WIDE=problem.is_wide,
            BLOCK=1024,
            num_warps=4,
        )
    return as_dtype(out, dtype)


def fill(problem: Problem) -> torch.Tensor:
    """`out[o, index[o, k, i], i]` = the one value that `src` repeats; (O, M, I), contiguous."""
    dtype, problem = problem.base.dtype, bits(problem)
    outer, _, _, inner = problem.sizes
    out = problem.base.clone(memory_format=torch.contiguous_format)
    operands = (problem.index, problem.src, out, *problem.index_strides)
    over_entries(store_value, problem, outer, inner, *operands)
    return as_dtype(out, dtype)


def row_tile(inner: object) -> tuple[int, int]:
    """Columns and rows of a tile of about 1024 elements for rows of `inner` elements."""
    columns = min(1024, triton.next_power_of_2(max(inner, 1))) if isinstance(inner, int) else 256
    return columns, max(1, 1024 // max(columns, 16))


@jit
def mark_last(  # type: ignore[no-untyped-def]
    index,
    writer,
    so,
    sk,
    si,
    count,
    rows,
    inner,
    total,
    WRAP: tl.constexpr,
    WIDE: tl.constexpr,
    PEEK: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """writer[o, index[o, k, i], i] = the largest k that lands there. Later k run first."""
    p, inside = block_positions(tl.num_programs(0) - 1 - tl.program_id(0), total, WIDE, BLOCK)
    o, k, i = unfold(p, count, inner)
    entry = tl.load(index + o * so + k * sk + i * si, mask=inside, other=0)
    target, lands = landing(entry, o, i, inside, rows, inner, WRAP)
    tl.device_assert(lands, "index out of range", mask=inside)
    value = k.to(writer.dtype.element_ty)
    if PEEK:  # what is read may be old, but a writer only ever grows
        lands &= tl.load(writer + target, mask=lands, other=0) < value
    tl.atomic_max(writer + target, value, mask=lands, sem="relaxed")


@jit
def mark_last_by_strips(  # type: ignore[no-untyped-def]
    index,
    writer,
    so,
    sk,
    si,
    count,
    rows,
    inner,
    strips,
    parts,
    WRAP: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """As `mark_last`, a strip of columns a program: what lies below is left without an atomic."""
    o, i, r, first, end = strip_of(
        tl.program_id(0), count, inner, strips, parts, CHUNK, ROWS, COLUMNS
    )
    good = i >= 0
    for top in range(end, first, -ROWS):
        k = top - 1 - r
        inside = (k >= first) & (i < inner)
        row = tl.load(
            index + o * so + k * sk + i * si, mask=inside, other=0, eviction_policy="evict_first"
        )
        row, lands = settle_row(row, inside, rows, WRAP)
        good &= lands | (inside == 0)
        target = writer + (o * rows + row.to(tl.int32)) * inner + i
        # What is read may be old, but a writer only ever grows.
        seen = tl.load(target, mask=lands, other=0)
        tl.atomic_max(target, k, mask=lands & (seen < k), sem="relaxed")
    tl.device_assert(good, "index out of range")


@jit
def store_value(  # type: ignore[no-untyped-def]
    index,
    value,
    out,
    so,
    sk,
    si,
    count,
    rows,
    inner,
    total,
    WRAP: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[o, index[o, k, i], i] = the first element of value; every write is the same."""
    p, inside = block_positions(tl.program_id(0), total, WIDE, BLOCK)
    o, k, i = unfold(p, count, inner)
    entry = tl.load(index + o * so + k * sk + i * si, mask=inside, other=0)
    target, lands = landing(entry, o, i, inside, rows, inner, WRAP)
    tl.device_assert(lands, "index out of range", mask=inside)
    tl.store(out + target, tl.load(value), mask=lands)


@jit
def pick_elements(  # type: ignore[no-untyped-def]
    writer,
    src,
    base,
    out,
    so,
    sk,
    si,
    bo,
    bm,
    bi,
    wo,
    count,
    rows,
    inner,
    total,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = src at the writer's position, else base, element by element."""
    p, inside = block_positions(tl.program_id(0), total, WIDE, BLOCK)
    o, m, i = unfold(p, rows, inner)
    k = tl.load(writer + o * wo + m * inner + i, mask=inside, other=-1)
    taken = (k >= 0) & (k < count)
    old = tl.load(base + o * bo + m * bm + i * bi, mask=inside & (taken == 0), other=0)
    new = tl.load(src + o * so + k.to(p.dtype) * sk + i * si, mask=inside & taken, other=0)
    tl.store(out + p, tl.where(taken, new, old), mask=inside)


@jit
def pick_rows(  # type: ignore[no-untyped-def]
    writer,
    src,
    base,
    out,
    so,
    sk,
    si,
    bo,
    bm,
    bi,
    wo,
    count,
    rows,
    inner,
    total_rows,
    strips,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """As `pick_elements` where one writer holds for a whole row; a tile of rows a program."""
    pid = tl.program_id(0)
    line = (pid // strips).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    i = ((pid % strips) * COLUMNS + tl.arange(0, COLUMNS))[None, :].to(tl.int64)
    m = line % rows
    o = line // rows
    k = tl.load(writer + o * wo + m, mask=line < total_rows, other=-1).to(tl.int64)
    inside = (line < total_rows)[:, None] & (i < inner)
    taken = ((k >= 0) & (k < count))[:, None]
    new_line = (o * so + k * sk)[:, None]
    old_line = (o * bo + m * bm)[:, None]
    new = tl.load(src + new_line + i * si, mask=inside & taken, other=0)
    old = tl.load(base + old_line + i * bi, mask=inside & (taken == 0), other=0)
    tl.store(out + line[:, None] * inner + i, tl.where(taken, new, old), mask=inside)
