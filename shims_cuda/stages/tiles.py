# ruff: noqa: RUF005 - kernels have no unpacking; and to a type checker their tuples never grow
"""Sums and means in a fixed order where columns are few, or values in each.

Every 32 entries of a column, a tile, are compared with one another at once: the first that names
an element gets the sum of all that do, and the others get nothing. Then a warp adds the sums of a
column to their elements tile by tile, in order, by atomics that return nothing; those of one tile
cannot meet. Long columns are cut into stretches with a plane each, a single stretch adds to the
result itself. (In float32 the atomics flush subnormal numbers, as ATen's do.)
"""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit import kernels
from graftwork.plugins.toolkit.kernels import cdiv, fits_int32, jit, launch
from graftwork.plugins.toolkit.symbolic import Size, known

from .arithmetic import Fold, accumulator, identity
from .landing import settle_row
from .planes import CACHED, fill_planes, fold_planes
from .problem import Problem

TILE = 32
AHEAD = 16  # tiles that a warp reads before it adds them


def suits_tiles(problem: Problem, op: Fold, include_self: bool) -> bool:
    """Whether to add up tiles: sums of floats by element, or by rows few or of few columns."""
    outer, count, rows, inner = problem.sizes
    if op == "prod" or not problem.base.dtype.is_floating_point:
        return False
    if not problem.moves_rows or known(inner <= 4):
        return True
    few = known(count <= 1024) and known(count * inner <= 2**19)
    return few and (_is_exact(problem, op, include_self) or known(outer * rows * inner <= CACHED))


def _is_exact(problem: Problem, op: Fold, include_self: bool) -> bool:
    """Whether values may be added to the result itself: nothing is rounded or divided after."""
    return op == "sum" and include_self and accumulator(problem.base.dtype) == problem.base.dtype


def fold_tiles(problem: Problem, op: Fold, include_self: bool) -> torch.Tensor:
    """Add up what lands on each element (`op` is a sum or a mean); (O, M, I), contiguous."""
    base, src = problem.base, problem.src
    outer, count, rows, inner = problem.sizes
    exact = accumulator(base.dtype)
    tile, ahead = (4, 2) if kernels.is_interpreted(base) else (TILE, AHEAD)
    wide = problem.is_wide or not fits_int32(count + 2 * ahead * tile)
    place = torch.int64 if wide else torch.int32
    places = torch.empty((outer, inner, count), dtype=place, device=base.device)
    joined = torch.empty((outer, inner, count), dtype=exact, device=base.device)
    columns = 4 if known(inner >= 4) else 1
    groups = cdiv(inner, columns)
    sizes = (count, rows, inner)
    launch(
        join_tiles,
        (cdiv(count, tile) * groups * outer,),
        problem.index,
        src,
        places,
        joined,
        *problem.index_strides,
        *src.stride(),
        *sizes,
        groups,
        WRAP=problem.wraps,
        TILE=tile,
        COLUMNS=columns,
        num_warps=columns,
    )
    stretches = stretches_of(problem)
    direct = known(stretches == 1) and _is_exact(problem, op, include_self)
    if direct:
        sums = base.clone(memory_format=torch.contiguous_format).view(1, -1)
    else:
        sums = torch.empty((stretches, outer * rows * inner), dtype=exact, device=base.device)
        fill_planes(sums, "sum")
    launch(
        add_in_order,
        (outer * inner, stretches),
        places,
        joined,
        sums,
        *sizes,
        cdiv(count, stretches * tile) * tile,
        outer * rows * inner,
        TILE=tile,
        AHEAD=ahead,
        num_warps=1,
    )
    return sums.view(base.shape) if direct else fold_planes(problem, sums, op, include_self)


def stretches_of(problem: Problem) -> Size:
    """How many stretches take the least time, by a guess in microseconds on an H200."""
    outer, count, rows, inner = problem.sizes
    warps = outer * inner
    if not all(isinstance(size, int) for size in problem.sizes):
        return max(1, min(8, 2000 // max(warps, 1))) if isinstance(warps, int) else 8
    turns = cdiv(count, TILE * AHEAD)
    best, least = 1, float("inf")
    for stretches in (2**power for power in range(10) if 2**power <= max(turns, 1)):
        cells = stretches * warps * rows
        slow = 3 if stretches > 1 and cells > CACHED else 1
        steps = slow * cdiv(turns, stretches) * max(1, warps * stretches / 2000)
        planes = (stretches > 1) * (4 + stretches / 50 + cells / 3e5)
        if 0.8 * steps + planes < least:
            best, least = stretches, 0.8 * steps + planes
    return best


@jit
def join_tiles(  # type: ignore[no-untyped-def]
    index,
    src,
    places,
    joined,
    so,
    sk,
    si,
    vo,
    vk,
    vi,
    count,
    rows,
    inner,
    groups,
    WRAP: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """joined[o, i, k] = the sum of what a tile has for the element at places[o, i, k].

    The element (within its `o`) stands where a tile first names it, elsewhere -1.
    """
    kind: tl.constexpr = places.dtype.element_ty
    exact: tl.constexpr = joined.dtype.element_ty
    tiles = tl.cdiv(count, TILE)
    pid = tl.program_id(0)
    lane = tl.arange(0, TILE)[:, None]
    i = (pid % groups).to(kind) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    k = (pid // groups % tiles).to(kind) * TILE + lane
    o = (pid // groups // tiles).to(tl.int64)
    inside = (k < count) & (i < inner)
    entry = tl.load(index + o * so + (k * sk + i * si), mask=inside, other=0)
    value = tl.load(src + o * vo + (k * vk + i * vi), mask=inside, other=0).to(exact)
    row, lands = settle_row(entry, inside, rows, WRAP)
    tl.device_assert(lands, "index out of range", mask=inside)
    row = tl.where(lands, row, -1).to(kind)
    same = row[:, None, :] == row[None, :, :]
    nothing = identity(0, exact)
    total = tl.sum(tl.where(same, value[:, None, :], nothing), 0)
    leader = tl.min(tl.where(same, tl.arange(0, TILE)[:, None, None], TILE), 0)
    target = (o * inner + i) * count + k
    tl.store(joined + target, total, mask=inside)
    place = tl.where(leader == lane, row * inner + i, -1)  # negative where out of range
    tl.store(places + target, place, mask=inside)


@jit
def add_in_order(  # type: ignore[no-untyped-def]
    places,
    joined,
    sums,
    count,
    rows,
    inner,
    stretch,
    cells,
    TILE: tl.constexpr,
    AHEAD: tl.constexpr,
):
    """sums[part, o, place] += the joined values of one column's stretch, tile after tile."""
    kind: tl.constexpr = places.dtype.element_ty
    line = tl.program_id(0).to(tl.int64)
    begin = tl.program_id(1).to(kind) * stretch
    end = tl.minimum(begin + stretch, count)
    places += line * count
    joined += line * count
    sums += tl.program_id(1).to(tl.int64) * cells + line // inner * rows * inner
    lane = tl.arange(0, TILE)
    targets = ()
    values = ()
    for j in tl.static_range(AHEAD):
        k = begin + j * TILE + lane
        targets = targets + (tl.load(places + k, mask=k < end, other=-1),)  # type: ignore[assignment]
        values = values + (tl.load(joined + k, mask=k < end, other=0),)  # type: ignore[assignment]
    for first in range(begin, end, AHEAD * TILE):
        next_targets = ()
        next_values = ()
        for j in tl.static_range(AHEAD):
            k = first + (AHEAD + j) * TILE + lane
            target = tl.load(places + k, mask=k < end, other=-1)
            value = tl.load(joined + k, mask=k < end, other=0)
            next_targets = next_targets + (target,)  # type: ignore[assignment]
            next_values = next_values + (value,)  # type: ignore[assignment]
        for j in tl.static_range(AHEAD):
            lands = targets[j] >= 0
            tl.atomic_add(sums + targets[j], values[j], mask=lands, sem="relaxed")
            tl.debug_barrier()  # the next tile's atomics may run on other lanes
        targets = next_targets
        values = next_values
