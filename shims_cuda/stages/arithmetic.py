"""Sums, products and means, a step at a time, as ATen takes them."""

from __future__ import annotations

from typing import Literal

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import jit

Fold = Literal["sum", "prod", "mean"]
OPS = {"sum": 0, "prod": 1, "mean": 2}


def accumulator(dtype: torch.dtype) -> torch.dtype:
    """What values of `dtype` are folded in."""
    if dtype.itemsize == 8:
        return dtype
    return torch.float32 if dtype.is_floating_point else torch.int32


@jit
def identity(OP: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """What changes nothing: -0.0 for a sum of floats, since 0.0 + -0.0 is 0.0.

    Triton makes a literal -0.0 (and 0.0 negated) 0.0, so it is made of its bits.
    """
    if OP == 1:
        value = tl.full([], 1, dtype)
    elif dtype == tl.float64:
        value = tl.full([], -9223372036854775808, tl.int64).to(dtype, bitcast=True)
    elif dtype == tl.float32:
        value = tl.full([], -2147483648, tl.int32).to(dtype, bitcast=True)
    else:
        value = tl.full([], 0, dtype)
    return value


@jit
def combine(a, b, OP: tl.constexpr, element: tl.constexpr):  # type: ignore[no-untyped-def]
    """One step; a product rounds to the tensor's dtype."""
    if OP == 1:
        result = (a * b).to(element).to(a.dtype)
    else:
        result = a + b
    return result


@jit
def mean_of(total, count):  # type: ignore[no-untyped-def]
    """A rounded sum over a count that wraps in its dtype, and that counts as 1 where it is 0."""
    dtype: tl.constexpr = total.dtype
    if dtype.is_floating():
        exact: tl.constexpr = tl.float64 if dtype == tl.float64 else tl.float32
        divisor = count.to(exact).to(dtype).to(exact) + tl.zeros(total.shape, exact)
        if exact == tl.float32:
            mean = tl.div_rn(total.to(exact), divisor).to(dtype)
        else:
            mean = total / divisor
    else:
        divisor = count.to(dtype)
        divisor = tl.where(divisor == 0, 1, divisor).to(dtype)
        quotient = total // divisor
        inexact = (total % divisor) != 0
        mean = quotient - (inexact & ((total < 0) != (divisor < 0))).to(dtype)
    return mean
