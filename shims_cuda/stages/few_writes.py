"""Plain writes of a few entries into a large tensor: one position of a cache, some tokens.

The tensor is copied, and one kernel writes each entry that no later one of its column falls on,
which it finds by comparing all pairs. The two kernels of `last_writer` would go through a table
of the size of the tensor as well.
"""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import as_dtype, cdiv, jit, launch
from graftwork.plugins.toolkit.symbolic import known

from .landing import settle_row
from .problem import Problem, bits

FEW = 64  # entries of a column that one program compares; a power of two
SPARSE = 8  # rows an entry from which on the copy costs less than the table


def are_few(problem: Problem) -> bool:
    """Whether `write_few` takes a problem, and is worth it."""
    _, count, rows, _ = problem.sizes
    return known(count <= FEW) and known(SPARSE * count <= rows)


def write_few(problem: Problem) -> torch.Tensor:
    """`out[o, index[o, k, i], i] = src[o, k, i]` for k in order; (O, M, I), contiguous."""
    dtype, problem = problem.base.dtype, bits(problem)
    outer, count, rows, inner = problem.sizes
    out = problem.base.clone(memory_format=torch.contiguous_format)
    strips = cdiv(inner, 16)
    launch(
        write_last_of_few,
        (outer * strips,),
        problem.index,
        problem.src,
        out,
        *problem.index_strides,
        *problem.src.stride(),
        count,
        rows,
        inner,
        strips,
        WRAP=problem.wraps,
        FEW=FEW,
        COLUMNS=16,
        num_warps=4,
    )
    return as_dtype(out, dtype)


@jit
def write_last_of_few(  # type: ignore[no-untyped-def]
    index,
    src,
    out,
    io,
    ik,
    ii,
    so,
    sk,
    si,
    count,
    rows,
    inner,
    strips,
    WRAP: tl.constexpr,
    FEW: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """out = src, from each entry of a strip of columns that no later one falls on."""
    o = (tl.program_id(0) // strips).to(tl.int64)
    i = (tl.program_id(0) % strips).to(tl.int64) * COLUMNS + tl.arange(0, COLUMNS)
    k = tl.arange(0, FEW).to(tl.int64)[:, None]
    entries = index + o * io + i * ii
    inside = (k < count) & (i < inner)[None, :]
    row = tl.load(entries[None, :] + k * ik, mask=inside, other=0)
    row, last = settle_row(row, inside, rows, WRAP)
    tl.device_assert(last, "index out of range", mask=inside)
    for later in range(1, count):
        other = tl.load(entries + tl.cast(later, tl.int64) * ik, mask=i < inner, other=0)
        other, _ = settle_row(other, i < inner, rows, WRAP)
        last &= (k >= later) | (row != other[None, :])
    value = tl.load(src + o * so + k * sk + i[None, :] * si, mask=last, other=0)
    tl.store(out + (o * rows + row.to(tl.int64)) * inner + i[None, :], value, mask=last)
