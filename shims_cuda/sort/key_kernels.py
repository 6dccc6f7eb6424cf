"""From values to integers that sort as ``torch.sort`` sorts the values, and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from graftwork.plugins.toolkit.kernels import from_ordered_key, ordered_key

jit: Callable[[Callable[..., Any]], Any] = triton.jit


@jit
def sort_key(x, DESCENDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Signed integers whose ascending order is the wanted one; equal values have equal keys.

    Every NaN is one value above all others, and -0.0 is 0.0. Complementing reverses the order
    and keeps equal keys equal, so a descending sort by (key, index) is stable as well.
    """
    key = x.to(tl.int8) if x.dtype == tl.int1 else ordered_key(x)
    if x.dtype.is_floating():
        key = tl.where(key == -1, tl.zeros(key.shape, key.dtype), key)  # -0.0
    if DESCENDING:
        key = ~key
    return key


@jit
def value_of(key, DESCENDING: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """A value with that key; the sign of a zero and the bits of a NaN are not in the key."""
    if DESCENDING:
        key = ~key
    if dtype == tl.int1:
        return key != 0
    else:
        return from_ordered_key(key, dtype)


@jit
def is_ambiguous(x):  # type: ignore[no-untyped-def]
    """Where a key stands for several bit patterns: NaN and zero of the float types."""
    if x.dtype.is_floating():
        if x.dtype.primitive_bitwidth == 16:  # the interpreter compares a bfloat16 by its bits
            x = x.to(tl.float32)
        return (x != x) | (x == 0)
    else:
        return tl.zeros(x.shape, tl.int1)


@jit
def digit_of(x, shift, DESCENDING: tl.constexpr):  # type: ignore[no-untyped-def]
    """Eight bits of the key, from bit ``shift`` up, as 0 to 255 in the order of the key.

    ``shift`` is an argument like any other, so that one kernel serves all passes; Inductor of
    torch 2.11 reads the kernel with a number in its place.
    """
    key = sort_key(x, DESCENDING)
    digit = (key >> tl.full([], shift, key.dtype)).to(tl.int32) & 255
    if x.dtype != tl.uint8:
        width: tl.constexpr = 8 if x.dtype == tl.int1 else x.dtype.primitive_bitwidth
        digit ^= tl.where(shift == width - 8, 128, 0)  # the sign bit: negative keys come first
    return digit
