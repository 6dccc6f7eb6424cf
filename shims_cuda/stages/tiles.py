# ruff: noqa: RUF005 - kernels have no unpacking; and to a type checker their tuples never grow
"""Sums and means in a fixed order where columns are few, or values in each.

A program takes the entries of a few columns a tile at a time. Each entry is compared with every
other of its tile and column: the first that names a row adds up the values of all that do, by an
atomic that no other entry of the tile can meet. Tiles of a stretch follow one another behind a
barrier, and each stretch has a plane of its own; a single stretch adds to the result itself. (In
float32 the atomics flush subnormal numbers, as ATen's do.)
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from graftwork.plugins.toolkit.kernels import cdiv, fits_int32, jit, launch
from graftwork.plugins.toolkit.symbolic import Size, known

from .arithmetic import Fold, accumulator, identity
from .landing import settle_row
from .planes import fill_planes, fold_planes
from .problem import Problem

TILE = 64
AHEAD = 4  # tiles that are read before they are added
CACHED = 2**23  # cells of planes that the L2 cache holds


def fold_tiles(problem: Problem, op: Fold, include_self: bool) -> torch.Tensor:
    """Add up what lands on each element (`op` is a sum or a mean); (O, M, I), contiguous."""
    base, src = problem.base, problem.src
    outer, count, rows, inner = problem.sizes
    exact = accumulator(base.dtype)
    tile, columns = tile_of(problem)
    stretches = stretches_of(problem)
    direct = known(stretches == 1) and op == "sum" and include_self and exact == base.dtype
    if direct:
        sums = base.clone(memory_format=torch.contiguous_format).view(1, -1)
    else:
        sums = torch.empty((stretches, outer * rows * inner), dtype=exact, device=base.device)
        fill_planes(sums, "sum")
    groups = cdiv(inner, columns)
    launch(
        add_tiles,
        (outer * groups, stretches),
        problem.index,
        src,
        sums,
        *problem.index_strides,
        *src.stride(),
        count,
        rows,
        inner,
        groups,
        cdiv(cdiv(count, stretches), tile) * tile,
        outer * rows * inner,
        WRAP=problem.wraps,
        WIDE=problem.is_wide or not fits_int32(count + 2 * AHEAD * tile),
        AHEAD=AHEAD,
        TILE=tile,
        COLUMNS=columns,
        num_warps=max(1, tile * columns // 32),
    )
    return sums.view(base.shape) if direct else fold_planes(problem, sums, op, include_self)


def suits_tiles(problem: Problem, op: Fold) -> bool:
    """Whether to add up tiles: sums of floats by element, of few columns, or of few rows."""
    _, count, _, inner = problem.sizes
    if op == "prod" or not problem.base.dtype.is_floating_point:
        return False
    return not problem.moves_rows or known(inner <= 4) or known(count <= 1024)


def tile_of(problem: Problem) -> tuple[int, int]:
    """Entries and columns of a tile."""
    outer, _, _, inner = problem.sizes
    return TILE, 4 if known(outer * inner >= 512) and known(inner >= 4) else 1


def stretches_of(problem: Problem) -> Size:
    """How many stretches take the least time, by a guess in microseconds on an H200."""
    outer, count, rows, inner = problem.sizes
    if not all(isinstance(size, int) for size in problem.sizes):
        return 8
    tile, columns = tile_of(problem)
    tiles, warps = cdiv(count, tile), outer * inner * tile // 32

    def cost(stretches: int) -> float:
        cells = stretches * outer * rows * inner
        turns = cdiv(tiles, stretches) * max(1, warps * stretches / 2000)
        turns *= 3 if stretches > 1 and cells > CACHED else 1
        return 0.65 * turns + (stretches > 1) * (3 + stretches / 50 + cells / 3e5)

    return min((2**power for power in range(10) if 2**power <= max(tiles, 1)), key=cost)


@jit
def add_tiles(  # type: ignore[no-untyped-def]
    index,
    src,
    sums,
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
    stretch,
    cells,
    WRAP: tl.constexpr,
    WIDE: tl.constexpr,
    AHEAD: tl.constexpr,
    TILE: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """sums[part, o, index[o, k, i], i] += src[o, k, i], tile after tile of a stretch of k."""
    kind: tl.constexpr = tl.int64 if WIDE else tl.int32
    exact: tl.constexpr = sums.dtype.element_ty
    o = (tl.program_id(0) // groups).to(tl.int64)
    i = (tl.program_id(0) % groups).to(kind) * COLUMNS + tl.arange(0, COLUMNS)[None, :]
    begin = tl.program_id(1).to(kind) * stretch
    end = tl.minimum(begin + stretch, count)
    lane = tl.arange(0, TILE)[:, None]
    index += o * so
    src += o * vo
    sums += tl.program_id(1).to(tl.int64) * cells + o * rows * inner
    entries = ()
    values = ()
    for j in tl.static_range(AHEAD):
        k = begin + j * TILE + lane
        inside = (k < end) & (i < inner)
        entries = entries + (tl.load(index + (k * sk + i * si), mask=inside, other=0),)  # type: ignore[assignment]
        values = values + (tl.load(src + (k * vk + i * vi), mask=inside, other=0),)  # type: ignore[assignment]
    nothing = identity(0, exact)
    good = (lane >= 0) & (i >= 0)
    for first in range(begin, end, AHEAD * TILE):
        next_entries = ()
        next_values = ()
        for j in tl.static_range(AHEAD):
            k = first + (AHEAD + j) * TILE + lane
            inside = (k < end) & (i < inner)
            entry = tl.load(index + (k * sk + i * si), mask=inside, other=0)
            value = tl.load(src + (k * vk + i * vi), mask=inside, other=0)
            next_entries = next_entries + (entry,)  # type: ignore[assignment]
            next_values = next_values + (value,)  # type: ignore[assignment]
        for j in tl.static_range(AHEAD):
            k = first + j * TILE + lane
            inside = (k < end) & (i < inner)
            row, lands = settle_row(entries[j], inside, rows, WRAP)
            good &= lands | (inside == 0)
            row = tl.where(lands, row, -1).to(kind)
            same = row[:, None, :] == row[None, :, :]
            value = tl.where(same, values[j].to(exact)[:, None, :], nothing)
            leader = tl.min(tl.where(same, tl.arange(0, TILE)[:, None, None], TILE), 0)
            target = sums + (row * inner + i)
            tl.atomic_add(target, tl.sum(value, 0), mask=lands & (leader == lane), sem="relaxed")
            tl.debug_barrier()
        entries = next_entries
        values = next_values
    tl.device_assert(good, "index out of range")
