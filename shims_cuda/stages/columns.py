# ruff: noqa: RUF005 - kernels have no unpacking; and to a type checker their tuples never grow
"""Sums and products in a fixed order where every element has an index of its own.

A column (all `k` of one `o`, `i`) is cut into a few stretches, and one lane owns each: it folds
its values in index order into a plane of its own, so nothing races. A second kernel folds the
planes into the output, stretch by stretch. A product of a single stretch begins with the base, as
eager does; several stretches, of 64 values and more, are products of their own. A lane reads its
next sixteen values while it folds the last, as nothing else hides how far memory is. Sums go
through atomic adds that return nothing: a single lane's operations on one address keep their
order, and nothing waits for memory (in float32 they flush subnormal numbers, as ATen's do).
Products have no such instruction; eight are in flight at a time, and an element that two of the
eight name is passed on in registers.

A plane holds its columns 32 at a time, and one row more than the output, for what is out of
range: cheaper than a branch around every access.
"""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import cdiv, fits_int32, jit, launch
from graftwork.plugins.toolkit.symbolic import known

from .arithmetic import OPS, Fold, accumulator, combine, identity
from .landing import settle_row
from .planes import CACHED, fill_planes, fill_strips, fold_planes
from .problem import Problem

COLUMNS = 32
AHEAD = 16  # how many values a lane reads before it folds them
TOGETHER = 8  # and of those, how many products it holds at a time
FEW_ROWS = 2048  # that the one warp which folds into them may set to the identity itself
LANES = 8192  # enough for a GPU


def suits_columns(problem: Problem, op: Fold) -> bool:
    """Whether there are columns enough to keep a GPU busy, in planes that are not too large.

    Products go here in any case where columns are not few: otherwise they are sorted.
    """
    outer, count, rows, inner = problem.sizes
    columns = outer * inner
    if not isinstance(columns, int):
        return False
    stretches = stretches_of(problem)
    if op == "prod":
        return not problem.moves_rows and columns >= 512
    lanes = columns * stretches if columns >= COLUMNS else 0
    if lanes < (LANES if problem.moves_rows else LANES // 2):
        return False
    if known(columns * rows * stretches <= CACHED):
        return True
    return not problem.moves_rows and known(2 * rows * stretches <= count)


def stretches_of(problem: Problem) -> int:
    """How many stretches: as many as make up enough lanes, in planes that stay near the source."""
    outer, count, rows, inner = problem.sizes
    columns = outer * inner
    wanted = 4 * LANES if problem.moves_rows else LANES
    most = wanted // max(columns, 1) if isinstance(columns, int) else 1
    if isinstance(count, int) and isinstance(rows, int):
        share = 1 if problem.moves_rows else 4
        most = min(most, share * count // max(rows, 1), count // 64)
    else:
        most = min(most, 8)
    return int(2 ** (max(most, 1).bit_length() - 1))


def fold_columns(problem: Problem, op: Fold, include_self: bool) -> torch.Tensor:
    """Fold what lands on each element; as `fold.fold_groups`, but the planes are folded last."""
    base, src = problem.base, problem.src
    outer, count, rows, inner = problem.sizes
    columns, stretches = outer * inner, stretches_of(problem)
    strips = cdiv(columns, COLUMNS)
    planes = torch.empty(
        (stretches, strips * (rows + 1) * COLUMNS),
        dtype=accumulator(base.dtype),
        device=base.device,
    )
    fills = known(rows <= FEW_ROWS)
    from_base = op == "prod" and include_self and stretches == 1
    if not fills and from_base:
        fill_strips(problem, planes, COLUMNS)
    elif not fills:
        fill_planes(planes, op)
    launch(
        fold_stretches,
        (strips, stretches),
        problem.index,
        src,
        planes,
        base,
        *problem.index_strides,
        *src.stride(),
        *base.stride(),
        count,
        rows,
        inner,
        columns,
        cdiv(count, stretches),
        OP=OPS[op],
        WRAP=problem.wraps,
        WIDE=not fits_int32(count, (rows + 1) * COLUMNS),
        FILLS=fills,
        FROM_BASE=from_base,
        AHEAD=AHEAD,
        TOGETHER=TOGETHER,
        COLUMNS=COLUMNS,
        num_warps=1,
    )
    return fold_planes(problem, planes, op, include_self, COLUMNS, from_base)


@jit
def cells_of(  # type: ignore[no-untyped-def]
    entries,
    left,
    alive,
    good,
    rows,
    WRAP: tl.constexpr,
    COLUMNS: tl.constexpr,
    kind: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """Where in its column of a plane each entry lands; and is all `good`."""
    cells = ()
    for j in tl.static_range(AHEAD):
        inside = alive & (j < left)
        row, lands = settle_row(entries[j], inside, rows, WRAP)
        good &= lands | (inside == 0)
        cells = cells + (tl.where(lands, row.to(kind), rows) * COLUMNS,)  # type: ignore[assignment]
    return cells, good


@jit
def multiply_into(  # type: ignore[no-untyped-def]
    plane, cells, values, FIRST: tl.constexpr, TOGETHER: tl.constexpr, element: tl.constexpr
):
    """Multiply some of the cells in order; one that is named again is passed on."""
    old = ()
    for j in tl.static_range(TOGETHER):
        old = old + (tl.load(plane + cells[FIRST + j]),)  # type: ignore[assignment]
    new = ()
    for j in tl.static_range(TOGETHER):
        product = old[j]  # type: ignore[var-annotated]
        for earlier in tl.static_range(j):
            again = cells[FIRST + j] == cells[FIRST + earlier]
            product = tl.where(again, new[earlier], product)
        value = values[FIRST + j].to(product.dtype)
        new = new + (combine(product, value, 1, element),)  # type: ignore[assignment]
    for j in tl.static_range(TOGETHER):
        tl.store(plane + cells[FIRST + j], new[j])


@jit
def fold_stretches(  # type: ignore[no-untyped-def]
    index,
    src,
    planes,
    base,
    so,
    sk,
    si,
    vo,
    vk,
    vi,
    bo,
    bm,
    bi,
    count,
    rows,
    inner,
    columns,
    stretch,
    OP: tl.constexpr,
    WRAP: tl.constexpr,
    WIDE: tl.constexpr,
    FILLS: tl.constexpr,
    FROM_BASE: tl.constexpr,
    AHEAD: tl.constexpr,
    TOGETHER: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each lane folds its stretch of its column into its plane, in order."""
    exact: tl.constexpr = planes.dtype.element_ty
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    strip = tl.program_id(0)
    part = tl.program_id(1).to(tl.int64)
    lane = tl.arange(0, COLUMNS)
    column = strip.to(tl.int64) * COLUMNS + lane
    alive = column < columns
    i = column % inner
    o = column // inner
    begin = part * stretch
    left = tl.maximum(tl.minimum(begin + stretch, count) - begin, 0).to(kind)
    sk = tl.cast(sk, tl.int64)
    vk = tl.cast(vk, tl.int64)
    index += o * so + i * si + begin * sk
    src += o * vo + i * vi + begin * vk
    plane = planes + (part * tl.num_programs(0) + strip) * (tl.cast(rows, tl.int64) + 1) * COLUMNS
    if FILLS:
        for first in range(0, rows + 1, 32):
            row = first + tl.arange(0, 32)[:, None]
            cell = row.to(kind) * COLUMNS + lane[None, :]
            start = tl.broadcast_to(identity(OP, exact), [32, COLUMNS])
            if FROM_BASE:
                here = (row < rows) & alive[None, :]
                place = base + (o * bo + i * bi)[None, :] + row.to(tl.int64) * bm
                start = tl.where(here, tl.load(place, mask=here, other=0).to(exact), start)
            tl.store(plane + cell, start, mask=(row <= rows) & (lane[None, :] >= 0))
        tl.debug_barrier()  # another lane may have written what this one adds to
    plane += lane
    good = alive | (alive == 0)
    entries = ()
    values = ()
    for j in tl.static_range(AHEAD):
        inside = alive & (j < left)
        entry = tl.load(index + j * sk, mask=inside, other=-1, eviction_policy="evict_first")
        value = tl.load(src + j * vk, mask=inside, other=0, eviction_policy="evict_first")
        entries = entries + (entry,)  # type: ignore[assignment]
        values = values + (value,)  # type: ignore[assignment]
    for done in range(0, left, AHEAD):
        index += AHEAD * sk
        src += AHEAD * vk
        rest = left - done
        next_entries = ()
        next_values = ()
        for j in tl.static_range(AHEAD):
            inside = alive & (j + AHEAD < rest)
            entry = tl.load(index + j * sk, mask=inside, other=-1, eviction_policy="evict_first")
            value = tl.load(src + j * vk, mask=inside, other=0, eviction_policy="evict_first")
            next_entries = next_entries + (entry,)  # type: ignore[assignment]
            next_values = next_values + (value,)  # type: ignore[assignment]
        cells, good = cells_of(entries, rest, alive, good, rows, WRAP, COLUMNS, kind, AHEAD)
        if OP == 1:
            for turn in tl.static_range(AHEAD // TOGETHER):
                multiply_into(
                    plane, cells, values, turn * TOGETHER, TOGETHER, base.dtype.element_ty
                )
                tl.debug_barrier()  # the next loads may run on other lanes than these stores
        else:
            for j in tl.static_range(AHEAD):
                tl.atomic_add(plane + cells[j], values[j].to(exact), sem="relaxed")
        entries = next_entries
        values = next_values
    tl.device_assert(good, "index out of range")
