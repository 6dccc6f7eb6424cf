"""Planes: copies of the output that parts of a source are folded into, to be folded themselves.

Each part of the positions, a stretch, has a plane of its own, so that stretches run side by side
and yet nothing depends on which is first. `fold_planes` goes through the planes in order.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from graftwork.plugins.toolkit.kernels import cdiv, fits_int32, jit, launch

from .arithmetic import OPS, Fold, combine, identity, mean_of
from .landing import block_positions, unfold
from .marks import named_counts
from .problem import Problem

CACHED = 2**23  # cells of planes that the L2 cache holds
SEVERAL = 16  # planes, from where on they are folded together, by a tree


def fill_planes(planes: torch.Tensor, op: Fold) -> None:
    """Every cell becomes what a fold starts from."""
    cells = planes.numel()
    launch(
        fill_cells,
        (cdiv(cells, 4096),),
        planes.view(-1),
        cells,
        OP=OPS[op],
        BLOCK=4096,
        num_warps=8,
    )


def fill_strips(problem: Problem, planes: torch.Tensor, strip: int) -> None:
    """The only plane, in strips (`columns.py`), becomes the base."""
    base = problem.base
    outer, _, rows, inner = problem.sizes
    cells = planes.numel()
    launch(
        fill_from_base,
        (cdiv(cells, 1024),),
        planes,
        base,
        *base.stride(),
        rows,
        inner,
        outer * inner,
        cells,
        STRIP=strip,
        BLOCK=1024,
        num_warps=4,
    )


def fold_planes(
    problem: Problem,
    planes: torch.Tensor,
    op: Fold,
    include_self: bool,
    strip: int = 0,
    from_base: bool = False,
) -> torch.Tensor:
    """`base` folded with planes (S, cells), the first stretch first; (O, M, I), contiguous.

    With `from_base` the only plane, of products, holds the base already.
    A plane is laid out as the output; or, given the width of a `strip`, as `columns.py` says.
    Elements that no value landed on keep their bits.
    """
    base = problem.base
    outer, _, rows, inner = problem.sizes
    stretches, cells = planes.shape
    together, block = 1, 512
    if isinstance(stretches, int) and stretches > SEVERAL and op != "prod":
        together, block = min(64, triton.next_power_of_2(stretches)), 32
    counted = op == "mean" or not include_self
    counts = named_counts(problem).expand(base.shape) if counted else base
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    total = cdiv(outer * inner, strip) * (rows + 1) * strip if strip else outer * rows * inner
    launch(
        fold_cells,
        (cdiv(total, block),),
        planes,
        counts,
        base,
        out,
        *counts.stride(),
        *base.stride(),
        rows,
        inner,
        outer * inner,
        total,
        stretches,
        cells,
        OP=OPS[op],
        COUNTED=counted,
        INCLUDE_SELF=include_self,
        FROM_BASE=from_base,
        STRIP=strip,
        WIDE=problem.is_wide or not fits_int32(cells),
        TOGETHER=together,
        BLOCK=block,
        num_warps=4,
    )
    return out


@jit
def fill_cells(planes, cells, OP: tl.constexpr, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def]
    """Every cell becomes what a fold starts from."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    start = tl.broadcast_to(identity(OP, planes.dtype.element_ty), [BLOCK])
    tl.store(planes + p, start, mask=p < cells)


@jit
def differs(a, b):  # type: ignore[no-untyped-def]
    """Whether two values of a dtype have other bits."""
    if a.dtype == tl.float64:
        result = a.to(tl.int64, bitcast=True) != b.to(tl.int64, bitcast=True)
    elif a.dtype == tl.float32:
        result = a.to(tl.int32, bitcast=True) != b.to(tl.int32, bitcast=True)
    else:
        result = a != b
    return result


@jit
def fill_from_base(  # type: ignore[no-untyped-def]
    planes,
    base,
    bo,
    bm,
    bi,
    rows,
    inner,
    columns,
    cells,
    STRIP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The plane becomes the base; cells of no element become 0."""
    p = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    line = p // STRIP
    m = line % (rows + 1)
    column = line // (rows + 1) * STRIP + p % STRIP
    here = (m < rows) & (column < columns)
    place = base + column // inner * bo + m * bm + column % inner * bi
    value = tl.load(place, mask=here, other=0).to(planes.dtype.element_ty)
    tl.store(planes + p, value, mask=p < cells)


@jit
def fold_cells(  # type: ignore[no-untyped-def]
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
    columns,
    total,
    stretches,
    cells,
    OP: tl.constexpr,
    COUNTED: tl.constexpr,
    INCLUDE_SELF: tl.constexpr,
    FROM_BASE: tl.constexpr,
    STRIP: tl.constexpr,
    WIDE: tl.constexpr,
    TOGETHER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = base folded with the planes, some of them together; base where not named."""
    element: tl.constexpr = base.dtype.element_ty
    exact: tl.constexpr = planes.dtype.element_ty
    p, inside = block_positions(tl.program_id(0), total, WIDE, BLOCK)
    if STRIP:
        line = p // STRIP
        m = line % (rows + 1)
        column = line // (rows + 1) * STRIP + p % STRIP
        i = column % inner
        o = column // inner
        inside = inside & (m < rows) & (column < columns)
    else:
        o, m, i = unfold(p, rows, inner)
    old = tl.load(base + o * bo + m * bm + i * bi, mask=inside, other=0)
    if INCLUDE_SELF and not FROM_BASE:
        acc = old.to(exact)
    else:
        acc = tl.zeros([BLOCK], exact) + (1 if OP == 1 else 0)
    touched = tl.zeros([BLOCK], tl.int1)
    start = tl.broadcast_to(identity(OP, exact), [TOGETHER, BLOCK])
    part = tl.arange(0, TOGETHER).to(tl.int64)[:, None]
    for first in range(0, stretches, TOGETHER):
        here = (first + part < stretches) & inside[None, :]
        plane = planes + (first + part) * cells
        value = tl.load(plane + p[None, :], mask=here, other=0)
        value = tl.where(here, value, start)
        if FROM_BASE:
            named = differs(value, old.to(exact)[None, :])
        elif OP == 1:
            named = value != 1
        elif exact == tl.float64:
            named = value.to(tl.int64, bitcast=True) != -9223372036854775808
        elif exact == tl.float32:
            named = value.to(tl.int32, bitcast=True) != -2147483648
        else:
            named = value != 0
        touched |= tl.max(named.to(tl.int32), 0) > 0
        acc = combine(acc, tl.sum(value, 0), OP, element)
    result = acc.to(element)
    if COUNTED:
        times = tl.load(counts + o * co + m * cm + i * ci, mask=inside, other=0)
        touched = times > 0
        if OP == 2:
            result = mean_of(result, times + (1 if INCLUDE_SELF else 0))
    tl.store(out + (o * rows + m) * inner + i, tl.where(touched, result, old), mask=inside)
