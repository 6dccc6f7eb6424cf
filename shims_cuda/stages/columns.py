# ruff: noqa: SIM108, RUF059 - in a kernel an if is resolved at compile time, one branch a type
"""Sums and products in a fixed order where every element has an index of its own.

A column (all `k` of one `o`, `i`) is cut into a few stretches, and one lane owns each: it folds
its values in index order into a plane of its own, so nothing races. A second kernel folds the
planes into the output, stretch by stretch. Sums go through atomic adds that return nothing: a
single lane's operations on one address keep their order, and nothing waits for memory (in float32
they flush subnormal numbers, as ATen's do). Products have no such instruction; four are in flight
at a time, and a cell that two of the four name is passed on in registers.
"""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import cdiv, jit, launch

from .fold import OPS, Fold, accumulator, combine, identity, mean_of
from .landing import settle_row, unfold
from .marks import named_counts
from .problem import Problem


def suits_columns(problem: Problem) -> bool:
    """Whether there are columns enough to keep a GPU busy, and planes are not too large."""
    outer, count, rows, inner = problem.sizes
    columns = outer * inner
    return not problem.moves_rows and isinstance(columns, int) and columns >= 512


def fold_columns(problem: Problem, op: Fold, include_self: bool) -> torch.Tensor:
    """Fold what lands on each element; as `fold.fold_groups`, but the planes are folded last."""
    base, src = problem.base, problem.src
    outer, count, rows, inner = problem.sizes
    stretches = _stretches(problem)
    # One row more, for what is out of range: cheaper than a branch around every access.
    cells = stretches * outer * (rows + 1) * inner
    planes = torch.empty(cells, dtype=accumulator(base.dtype), device=base.device)
    launch(fill_identity, (cdiv(cells, 4096),), planes, cells, OP=OPS[op], BLOCK=4096, num_warps=8)
    launch(
        fold_stretches,
        (cdiv(outer * inner, 32), stretches),
        problem.index,
        src,
        planes,
        base,
        *problem.index_strides,
        *src.stride(),
        count,
        rows,
        inner,
        outer * inner,
        cdiv(count, stretches),
        OP=OPS[op],
        WRAP=problem.wraps,
        ATOMIC=op != "prod",
        COLUMNS=32,
        num_warps=1,
    )
    counted = op == "mean" or not include_self
    counts = named_counts(problem).expand(base.shape) if counted else base
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    launch(
        fold_planes,
        (cdiv(outer * rows * inner, 512),),
        planes,
        counts,
        base,
        out,
        *counts.stride(),
        *base.stride(),
        rows,
        inner,
        outer * rows * inner,
        STRETCHES=stretches,
        OP=OPS[op],
        COUNTED=counted,
        INCLUDE_SELF=include_self,
        BLOCK=512,
        num_warps=4,
    )
    return out


def _stretches(problem: Problem) -> int:
    """Enough lanes for a GPU (8192), in planes that stay small beside the source."""
    outer, count, rows, inner = problem.sizes
    columns = outer * inner
    most = 8192 // columns if isinstance(columns, int) else 1
    if isinstance(count, int) and isinstance(rows, int):
        most = min(most, 4 * count // max(rows, 1), count // 64)
    return next((s for s in (16, 8, 4, 2) if s <= most), 1)


@jit
def fill_identity(planes, cells, OP: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Every cell becomes what a fold starts from."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    exact: tl.constexpr = planes.dtype.element_ty
    tl.store(planes + p, tl.broadcast_to(identity(OP, exact), [BLOCK]), mask=p < cells)


@jit
def fetch(  # type: ignore[no-untyped-def]
    index, src, k, end, sk, vk, alive, exact: tl.constexpr
):
    """The index and the value of position `k` of every column; -1 and 0 past the end."""
    inside = alive & (k < end)
    row = tl.load(index + k * sk, mask=inside, other=-1, eviction_policy="evict_first")
    value = tl.load(src + k * vk, mask=inside, other=0, eviction_policy="evict_first")
    return row.to(tl.int64), value.to(exact)


@jit
def place(row, k, end, alive, good, rows, WRAP: tl.constexpr):  # type: ignore[no-untyped-def]
    """The plane's row for an index, the extra one where out of range; and is all `good`."""
    inside = alive & (k < end)
    row, lands = settle_row(row, inside, rows, WRAP)
    return tl.where(lands, row, rows), good & (lands | (inside == 0))


@jit
def fold_four(  # type: ignore[no-untyped-def]
    planes, inner, alive, r0, r1, r2, r3, v0, v1, v2, v3, OP: tl.constexpr, element: tl.constexpr
):
    """Fold four values in order into their cells; one that is named again is passed on."""
    a0 = tl.load(planes + r0 * inner, mask=alive, other=0)
    a1 = tl.load(planes + r1 * inner, mask=alive, other=0)
    a2 = tl.load(planes + r2 * inner, mask=alive, other=0)
    a3 = tl.load(planes + r3 * inner, mask=alive, other=0)
    a0 = combine(a0, v0, OP, element)
    a1 = combine(tl.where(r1 == r0, a0, a1), v1, OP, element)
    a2 = tl.where(r2 == r0, a0, a2)
    a2 = combine(tl.where(r2 == r1, a1, a2), v2, OP, element)
    a3 = tl.where(r3 == r0, a0, a3)
    a3 = tl.where(r3 == r1, a1, a3)
    a3 = combine(tl.where(r3 == r2, a2, a3), v3, OP, element)
    tl.store(planes + r0 * inner, a0, mask=alive)
    tl.store(planes + r1 * inner, a1, mask=alive)
    tl.store(planes + r2 * inner, a2, mask=alive)
    tl.store(planes + r3 * inner, a3, mask=alive)
    # The next loads may run on other lanes than these stores.
    tl.debug_barrier()


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
    count,
    rows,
    inner,
    columns,
    stretch,
    OP: tl.constexpr,
    WRAP: tl.constexpr,
    ATOMIC: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """Each lane folds its stretch of its column into its plane, in order."""
    element: tl.constexpr = base.dtype.element_ty
    exact: tl.constexpr = planes.dtype.element_ty
    column = tl.program_id(0).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    alive = column < columns
    i = column % inner
    o = column // inner
    part = tl.program_id(1).to(tl.int64)
    begin = part * stretch
    end = tl.minimum(begin + stretch, count)
    index += o * so + i * si
    src += o * vo + i * vi
    planes += (part * (columns // inner) + o) * (rows + 1) * inner + i
    good = alive | (alive == 0)
    for k in range(begin, end, 8):
        r0, v0 = fetch(index, src, k, end, sk, vk, alive, exact)
        r1, v1 = fetch(index, src, k + 1, end, sk, vk, alive, exact)
        r2, v2 = fetch(index, src, k + 2, end, sk, vk, alive, exact)
        r3, v3 = fetch(index, src, k + 3, end, sk, vk, alive, exact)
        r4, v4 = fetch(index, src, k + 4, end, sk, vk, alive, exact)
        r5, v5 = fetch(index, src, k + 5, end, sk, vk, alive, exact)
        r6, v6 = fetch(index, src, k + 6, end, sk, vk, alive, exact)
        r7, v7 = fetch(index, src, k + 7, end, sk, vk, alive, exact)
        r0, good = place(r0, k, end, alive, good, rows, WRAP)
        r1, good = place(r1, k + 1, end, alive, good, rows, WRAP)
        r2, good = place(r2, k + 2, end, alive, good, rows, WRAP)
        r3, good = place(r3, k + 3, end, alive, good, rows, WRAP)
        r4, good = place(r4, k + 4, end, alive, good, rows, WRAP)
        r5, good = place(r5, k + 5, end, alive, good, rows, WRAP)
        r6, good = place(r6, k + 6, end, alive, good, rows, WRAP)
        r7, good = place(r7, k + 7, end, alive, good, rows, WRAP)
        if ATOMIC:
            tl.atomic_add(planes + r0 * inner, v0, mask=alive, sem="relaxed")
            tl.atomic_add(planes + r1 * inner, v1, mask=alive, sem="relaxed")
            tl.atomic_add(planes + r2 * inner, v2, mask=alive, sem="relaxed")
            tl.atomic_add(planes + r3 * inner, v3, mask=alive, sem="relaxed")
            tl.atomic_add(planes + r4 * inner, v4, mask=alive, sem="relaxed")
            tl.atomic_add(planes + r5 * inner, v5, mask=alive, sem="relaxed")
            tl.atomic_add(planes + r6 * inner, v6, mask=alive, sem="relaxed")
            tl.atomic_add(planes + r7 * inner, v7, mask=alive, sem="relaxed")
        else:
            fold_four(planes, inner, alive, r0, r1, r2, r3, v0, v1, v2, v3, OP, element)
            fold_four(planes, inner, alive, r4, r5, r6, r7, v4, v5, v6, v7, OP, element)
    tl.device_assert(good, "index out of range")


@jit
def fold_planes(  # type: ignore[no-untyped-def]
    planes,
    counts,
    base,
    out,
    co,
    cm,
    ci,
    bo,
    bm,
    bi,
    rows,
    inner,
    total,
    STRETCHES: tl.constexpr,
    OP: tl.constexpr,
    COUNTED: tl.constexpr,
    INCLUDE_SELF: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = base folded with the planes, first stretch first; base where not named."""
    element: tl.constexpr = base.dtype.element_ty
    exact: tl.constexpr = planes.dtype.element_ty
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = p < total
    o, m, i = unfold(p, rows, inner)
    cell = (o * (rows + 1) + m) * inner + i
    plane = total + total // rows
    old = tl.load(base + o * bo + m * bm + i * bi, mask=inside, other=0)
    if INCLUDE_SELF:
        acc = old.to(exact)
    else:
        acc = tl.zeros([BLOCK], exact) + (1 if OP == 1 else 0)
    touched = tl.zeros([BLOCK], tl.int1)
    for part in tl.static_range(STRETCHES):
        value = tl.load(planes + part * plane + cell, mask=inside, other=0)
        if OP == 1:
            touched |= value != 1
            acc = combine(acc, value, 1, element)
        else:
            if exact == tl.float64:
                touched |= value.to(tl.int64, bitcast=True) != -9223372036854775808
            else:
                touched |= value.to(tl.int32, bitcast=True) != -2147483648
            acc += value
    result = acc.to(element)
    if COUNTED:
        times = tl.load(counts + o * co + m * cm + i * ci, mask=inside, other=0)
        touched = times > 0
        if OP == 2:
            result = mean_of(result, times + (1 if INCLUDE_SELF else 0))
    tl.store(out + p, tl.where(touched, result, old), mask=inside)
