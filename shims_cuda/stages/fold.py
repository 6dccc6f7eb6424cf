"""Sums, products and means over groups, in the order of the index, a row of elements at a time.

One program walks the entries of its rows and writes the rows once, so an output row without
entries costs a copy and nothing else. Entries are also cut into pieces of fixed length; a piece
that one row fills is folded beforehand, by a program of its own, so that a row that everything
lands on is not walked by one program alone. The cut depends on the index alone: the same bits
every run. Products of floats are not cut: the product of a piece alone may overflow, and be
infinite times a base of 0.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from graftwork.plugins.toolkit import kernels
from graftwork.plugins.toolkit.kernels import cdiv, jit, launch
from graftwork.plugins.toolkit.symbolic import Size, known

from .arithmetic import OPS, Fold, accumulator, combine, identity, mean_of
from .grouping import group_by_row
from .problem import Problem, three_dims

LENGTH = 64  # entries of a piece


def fold_groups(problem: Problem, op: Fold, include_self: bool) -> torch.Tensor:
    """Fold what lands on each element in index order; (O, M, I), contiguous.

    Half types add in float32 and round once; a product rounds to the dtype at every step; a mean
    rounds its sum, then divides, and its count wraps in the dtype. Integers wrap.
    """
    shape = problem.base.shape
    if not known(problem.index.shape[2] == 1):
        problem = _by_element(problem)
    base, src = problem.base, problem.src
    outer, count, rows, inner = problem.sizes
    shared = known(problem.index.shape[0] == 1)
    groups = group_by_row(problem)
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    entries = groups.order.numel()
    length = 4 if kernels.is_interpreted(base) else LENGTH
    split = op != "prod" or not base.dtype.is_floating_point
    pieces, copies = cdiv(entries, length) if split else 1, outer if shared else 1
    partial = torch.empty(
        (copies, pieces, inner), dtype=accumulator(base.dtype), device=base.device
    )
    tile_rows, columns = _tile(inner)
    strips = cdiv(inner, columns)
    settings = {
        "OP": OPS[op],
        "SHARED": shared,
        "LENGTH": length,
        "ROWS": tile_rows,
        "COLUMNS": columns,
        "num_warps": max(1, min(4, tile_rows * columns // 128)),
    }
    if split:
        launch(
            fold_pieces,
            (cdiv(pieces, tile_rows) * strips * copies,),
            groups.rows,
            groups.order,
            src,
            partial,
            base,
            *src.stride(),
            count,
            inner,
            strips,
            entries,
            rows if shared else outer * rows,
            pieces,
            **settings,
        )
    launch(
        fold_rows,
        (cdiv(outer * rows, tile_rows) * strips,),
        groups.bounds,
        groups.order,
        src,
        partial,
        base,
        out,
        *src.stride(),
        *base.stride(),
        count,
        rows,
        inner,
        strips,
        outer * rows,
        rows if shared else outer * rows,
        entries,
        pieces,
        INCLUDE_SELF=include_self,
        SPLIT=split,
        **settings,
    )
    return out.view(shape)


def _by_element(problem: Problem) -> Problem:
    """The same problem with every element a row of one."""
    outer, count, rows, inner = problem.sizes
    lines = torch.arange(outer, device=problem.base.device).view(-1, 1, 1) * rows
    row = problem.index.expand(outer, count, inner)
    inside = (row >= 0) & (row < rows)
    column = torch.arange(inner, device=problem.base.device)
    element = torch.where(inside, (lines + row) * inner + column, -1)
    return three_dims(
        problem.base.reshape(-1, 1), 0, element.reshape(-1, 1), problem.src.reshape(-1, 1)
    )


def _tile(inner: Size) -> tuple[int, int]:
    columns = min(1024, triton.next_power_of_2(max(inner, 1))) if isinstance(inner, int) else 128
    return max(1, 256 // columns), columns


@jit
def source_line(  # type: ignore[no-untyped-def]
    order, p, end, o, so, sk, count, SHARED: tl.constexpr
):
    """Offset of the source row of sorted entry `p`; `o` is the outer position where shared."""
    position = tl.load(order + p, mask=p < end, other=0).to(tl.int64)
    if SHARED:
        line = o * so + position * sk
    else:
        line = (position // count) * so + (position % count) * sk
    return line


@jit
def walk(  # type: ignore[no-untyped-def]
    acc,
    order,
    src,
    begin,
    end,
    o,
    so,
    sk,
    si,
    i,
    columns_inside,
    count,
    OP: tl.constexpr,
    SHARED: tl.constexpr,
    element: tl.constexpr,
):
    """Fold entries begin..end of every row of the tile into `acc`, in order, four in flight."""
    nothing = identity(OP, acc.dtype)
    for step in range(0, tl.max(end - begin, 0).to(tl.int32), 4):
        p = begin + step
        line0 = source_line(order, p, end, o, so, sk, count, SHARED)
        line1 = source_line(order, p + 1, end, o, so, sk, count, SHARED)
        line2 = source_line(order, p + 2, end, o, so, sk, count, SHARED)
        line3 = source_line(order, p + 3, end, o, so, sk, count, SHARED)
        in0 = (p < end)[:, None] & columns_inside
        in1 = (p + 1 < end)[:, None] & columns_inside
        in2 = (p + 2 < end)[:, None] & columns_inside
        in3 = (p + 3 < end)[:, None] & columns_inside
        v0 = tl.load(src + line0[:, None] + i * si, mask=in0, other=0).to(acc.dtype)
        v1 = tl.load(src + line1[:, None] + i * si, mask=in1, other=0).to(acc.dtype)
        v2 = tl.load(src + line2[:, None] + i * si, mask=in2, other=0).to(acc.dtype)
        v3 = tl.load(src + line3[:, None] + i * si, mask=in3, other=0).to(acc.dtype)
        acc = combine(acc, tl.where(in0, v0, nothing), OP, element)
        acc = combine(acc, tl.where(in1, v1, nothing), OP, element)
        acc = combine(acc, tl.where(in2, v2, nothing), OP, element)
        acc = combine(acc, tl.where(in3, v3, nothing), OP, element)
    return acc


@jit
def fold_pieces(  # type: ignore[no-untyped-def]
    sorted_rows,
    order,
    src,
    partial,
    base,
    so,
    sk,
    si,
    count,
    inner,
    strips,
    entries,
    dropped,
    pieces,
    OP: tl.constexpr,
    SHARED: tl.constexpr,
    LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """partial[o, piece] = the fold of a piece's entries, for whole pieces of a single row."""
    pid = tl.program_id(0)
    tiles = tl.cdiv(pieces, ROWS)
    i = (((pid % strips) * COLUMNS) + tl.arange(0, COLUMNS))[None, :].to(tl.int64)
    piece = ((pid // strips) % tiles).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    o = (pid // strips // tiles).to(tl.int64)
    begin = piece * LENGTH
    whole = begin + LENGTH <= entries
    head = tl.load(sorted_rows + begin, mask=whole, other=dropped)
    tail = tl.load(sorted_rows + begin + LENGTH - 1, mask=whole, other=dropped)
    single = whole & (head == tail) & (head != dropped)
    if tl.max(single.to(tl.int32), 0) > 0:
        end = tl.where(single, begin + LENGTH, begin)
        acc = tl.zeros([ROWS, COLUMNS], partial.dtype.element_ty)
        acc += identity(OP, partial.dtype.element_ty)
        acc = walk(
            acc,
            order,
            src,
            begin,
            end,
            o,
            so,
            sk,
            si,
            i,
            i < inner,
            count,
            OP,
            SHARED,
            base.dtype.element_ty,
        )
        target = partial + (o * pieces + piece)[:, None] * inner + i
        tl.store(target, acc, mask=single[:, None] & (i < inner))


@jit
def fold_rows(  # type: ignore[no-untyped-def]
    bounds,
    order,
    src,
    partial,
    base,
    out,
    so,
    sk,
    si,
    bo,
    bm,
    bi,
    count,
    rows,
    inner,
    strips,
    total_rows,
    many,
    entries,
    pieces,
    OP: tl.constexpr,
    SHARED: tl.constexpr,
    LENGTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    INCLUDE_SELF: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """out = base folded with its row's entries: single ones, whole pieces, single ones."""
    element: tl.constexpr = base.dtype.element_ty
    exact: tl.constexpr = partial.dtype.element_ty
    pid = tl.program_id(0)
    i = (((pid % strips) * COLUMNS) + tl.arange(0, COLUMNS))[None, :].to(tl.int64)
    line = (pid // strips).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    exists = line < total_rows
    columns_inside = i < inner
    inside = exists[:, None] & columns_inside
    o = line // rows
    m = line % rows
    group = m if SHARED else line
    begin = entries - tl.load(bounds + group, mask=exists, other=0).to(tl.int64)
    end = tl.load(bounds + many + group, mask=exists, other=0).to(tl.int64)
    old = tl.load(base + (o * bo + m * bm)[:, None] + i * bi, mask=inside, other=0)
    if INCLUDE_SELF:
        acc = old.to(exact)
    elif OP == 1:
        acc = tl.zeros([ROWS, COLUMNS], exact) + 1
    else:
        acc = tl.zeros([ROWS, COLUMNS], exact)
    first_piece = (begin + LENGTH - 1) // LENGTH
    end_piece = end // LENGTH
    split = (end_piece > first_piece) & SPLIT
    before = tl.where(split, first_piece * LENGTH, end)
    after = tl.where(split, end_piece * LENGTH, end)
    acc = walk(
        acc,
        order,
        src,
        begin,
        before,
        o,
        so,
        sk,
        si,
        i,
        columns_inside,
        count,
        OP,
        SHARED,
        element,
    )
    first_piece = tl.where(split, first_piece, 0)
    end_piece = tl.where(split, end_piece, 0)
    nothing = identity(OP, exact)
    for step in range(0, tl.max(end_piece - first_piece, 0).to(tl.int32), 4):
        piece = first_piece + step
        place = ((o * pieces + piece if SHARED else piece) * inner)[:, None] + i
        in0 = (piece < end_piece)[:, None] & columns_inside
        in1 = (piece + 1 < end_piece)[:, None] & columns_inside
        in2 = (piece + 2 < end_piece)[:, None] & columns_inside
        in3 = (piece + 3 < end_piece)[:, None] & columns_inside
        v0 = tl.load(partial + place, mask=in0, other=0)
        v1 = tl.load(partial + place + inner, mask=in1, other=0)
        v2 = tl.load(partial + place + 2 * inner, mask=in2, other=0)
        v3 = tl.load(partial + place + 3 * inner, mask=in3, other=0)
        acc = combine(acc, tl.where(in0, v0, nothing), OP, element)
        acc = combine(acc, tl.where(in1, v1, nothing), OP, element)
        acc = combine(acc, tl.where(in2, v2, nothing), OP, element)
        acc = combine(acc, tl.where(in3, v3, nothing), OP, element)
    acc = walk(
        acc,
        order,
        src,
        after,
        end,
        o,
        so,
        sk,
        si,
        i,
        columns_inside,
        count,
        OP,
        SHARED,
        element,
    )
    result = acc.to(element)
    if OP == 2:
        result = mean_of(result, (end - begin)[:, None] + (1 if INCLUDE_SELF else 0))
    tl.store(
        out + line[:, None] * inner + i,
        tl.where((end > begin)[:, None], result, old),
        mask=inside,
    )
