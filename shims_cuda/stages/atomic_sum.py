"""Sums in whatever order the GPU takes them: exact for integers, the fast way out for floats."""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import jit

from .landing import block_positions, landing, unfold
from .over_entries import over_entries
from .problem import Problem


def atomic_sum(problem: Problem, start: torch.Tensor | None) -> torch.Tensor:
    """`start` (zeros where None) plus all that lands on each element; (O, M, I).

    The result is int32 or int64 for integers and bool (it wraps to the narrower dtypes), float32
    or float64 for floats. The sum of floats may differ in its last bits from run to run.
    """
    base, src = problem.base, problem.src
    outer, _, _, inner = problem.sizes
    dtype = sum_dtype(base.dtype)
    if start is None:
        total = torch.zeros(base.shape, dtype=dtype, device=base.device)
    else:
        total = torch.empty(base.shape, dtype=dtype, device=base.device).copy_(start)
    operands = (problem.index, src, total, *problem.index_strides, *src.stride())
    over_entries(add_all, problem, outer, inner, *operands)
    return total


def sum_dtype(dtype: torch.dtype) -> torch.dtype:
    """What values of `dtype` are added in."""
    if dtype.itemsize == 8:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int32


@jit
def add_all(  # type: ignore[no-untyped-def]
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
    total,
    WRAP: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """sums[o, index[o, k, i], i] += src[o, k, i]."""
    p, inside = block_positions(tl.program_id(0), total, WIDE, BLOCK)
    o, k, i = unfold(p, count, inner)
    entry = tl.load(index + o * so + k * sk + i * si, mask=inside, other=0)
    target, lands = landing(entry, o, i, inside, rows, inner, WRAP)
    tl.device_assert(lands, "index out of range", mask=inside)
    value = tl.load(src + o * vo + k * vk + i * vi, mask=inside, other=0)
    tl.atomic_add(sums + target, value.to(sums.dtype.element_ty), mask=lands, sem="relaxed")
