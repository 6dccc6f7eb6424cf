# ruff: noqa: RUF059 - in a kernel an if is resolved at compile time, one branch a type
"""Sums and products in a fixed order where every element has an index of its own.

A column (all `k` of one `o`, `i`) is cut into a few stretches, and one lane owns each: it folds
its values in index order into a plane of its own, so nothing races. A second kernel folds the
planes into the output, stretch by stretch. Sums go through atomic adds that return nothing: a
single lane's operations on one address keep their order, and nothing waits for memory (in float32
they flush subnormal numbers, as ATen's do). Products have no such instruction; four are in flight
at a time, and an element that two of the four name is passed on in registers.
"""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import cdiv, jit, launch

from .fold import OPS, Fold, accumulator, identity, mean_of
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
    cells = stretches * outer * rows * inner
    planes = torch.empty(
        (stretches, outer, rows, inner), dtype=accumulator(base.dtype), device=base.device
    )
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
        COLUMNS=32,
        num_warps=1,
    )
    counted = op == "mean" or not include_self
    counts = named_counts(problem).expand(base.shape) if counted else planes[0]
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
    """Enough lanes for a GPU (16384), in planes that stay small beside the source."""
    outer, count, rows, inner = problem.sizes
    columns = outer * inner
    most = 16384 // columns if isinstance(columns, int) else 1
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
    index, src, k, end, sk, vk, rows, alive, good, WRAP: tl.constexpr, exact: tl.constexpr
):
    """Row, value and whether it counts, for position `k` of every column; and is all `good`."""
    inside = alive & (k < end)
    row = tl.load(index + k * sk, mask=inside, other=0, eviction_policy="evict_first")
    value = tl.load(src + k * vk, mask=inside, other=0, eviction_policy="evict_first")
    row, lands = settle_row(row.to(tl.int64), inside, rows, WRAP)
    return row, value.to(exact), lands, good & (lands | (inside == 0))


@jit
def rounded_product(a, b, element: tl.constexpr):  # type: ignore[no-untyped-def]
    """`a * b`, rounded to the tensor's dtype."""
    return (a * b).to(element).to(a.dtype)


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
    planes += (part * (columns // inner) + o) * rows * inner + i
    good = alive | (alive == 0)
    r0, v0, m0, good = fetch(index, src, begin, end, sk, vk, rows, alive, good, WRAP, exact)
    r1, v1, m1, good = fetch(index, src, begin + 1, end, sk, vk, rows, alive, good, WRAP, exact)
    r2, v2, m2, good = fetch(index, src, begin + 2, end, sk, vk, rows, alive, good, WRAP, exact)
    r3, v3, m3, good = fetch(index, src, begin + 3, end, sk, vk, rows, alive, good, WRAP, exact)
    for k in range(begin + 4, end + 4, 4):
        n0, w0, l0, good = fetch(index, src, k, end, sk, vk, rows, alive, good, WRAP, exact)
        n1, w1, l1, good = fetch(index, src, k + 1, end, sk, vk, rows, alive, good, WRAP, exact)
        n2, w2, l2, good = fetch(index, src, k + 2, end, sk, vk, rows, alive, good, WRAP, exact)
        n3, w3, l3, good = fetch(index, src, k + 3, end, sk, vk, rows, alive, good, WRAP, exact)
        if OP == 1:
            a0 = tl.load(planes + r0 * inner, mask=m0, other=0)
            a1 = tl.load(planes + r1 * inner, mask=m1, other=0)
            a2 = tl.load(planes + r2 * inner, mask=m2, other=0)
            a3 = tl.load(planes + r3 * inner, mask=m3, other=0)
            p0 = rounded_product(a0, v0, element)
            a1 = tl.where(m0 & (r1 == r0), p0, a1)
            p1 = rounded_product(a1, v1, element)
            a2 = tl.where(m0 & (r2 == r0), p0, a2)
            a2 = tl.where(m1 & (r2 == r1), p1, a2)
            p2 = rounded_product(a2, v2, element)
            a3 = tl.where(m0 & (r3 == r0), p0, a3)
            a3 = tl.where(m1 & (r3 == r1), p1, a3)
            a3 = tl.where(m2 & (r3 == r2), p2, a3)
            p3 = rounded_product(a3, v3, element)
            tl.store(planes + r0 * inner, p0, mask=m0)
            tl.store(planes + r1 * inner, p1, mask=m1)
            tl.store(planes + r2 * inner, p2, mask=m2)
            tl.store(planes + r3 * inner, p3, mask=m3)
            # The next loads may run on other lanes than these stores.
            tl.debug_barrier()
        else:
            tl.atomic_add(planes + r0 * inner, v0, mask=m0, sem="relaxed")
            tl.atomic_add(planes + r1 * inner, v1, mask=m1, sem="relaxed")
            tl.atomic_add(planes + r2 * inner, v2, mask=m2, sem="relaxed")
            tl.atomic_add(planes + r3 * inner, v3, mask=m3, sem="relaxed")
        r0, v0, m0 = n0, w0, l0
        r1, v1, m1 = n1, w1, l1
        r2, v2, m2 = n2, w2, l2
        r3, v3, m3 = n3, w3, l3
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
    old = tl.load(base + o * bo + m * bm + i * bi, mask=inside, other=0)
    if INCLUDE_SELF:
        acc = old.to(exact)
    else:
        acc = tl.zeros([BLOCK], exact) + (1 if OP == 1 else 0)
    touched = tl.zeros([BLOCK], tl.int1)
    for part in tl.static_range(STRETCHES):
        value = tl.load(planes + part * total + p, mask=inside, other=0)
        if OP == 1:
            touched |= value != 1
            acc = rounded_product(acc, value, element)
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
