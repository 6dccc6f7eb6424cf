"""Sorting networks inside one Triton program: the part every sort kernel shares.

A program holds its elements as a tensor ``[32, 2**WARPS, 2**REGS]``: lanes, warps, and the
elements that one thread owns. Where an element starts is free, because its index travels with
it; so a network counts the bits of a rank from the registers up: the low REGS bits live inside
a thread, the next five across the lanes of a warp, the rest across warps. A bitonic network
compares along bit j in SPAN - j stages, so most of its stages need neither a shuffle nor shared
memory.

Runs that a bitonic network sorts downwards are kept complemented instead, so that every
comparator points the same way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

jit: Callable[[Callable[..., Any]], Any] = triton.jit


@jit
def sort_words(word, SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Runs of ``2**SPAN`` of the distinct ``word``, ascending; see :func:`rank`.

    Words are int32, or int64 from 0 to 2**62 - 1. Those are compared as the float64 of the same
    bits, finite, positive and in the same order: where float64 runs at full rate, that takes one
    instruction, and the integer units, which are the bottleneck, are left the rest.
    """
    in_regs: tl.constexpr = REGS if SPAN >= REGS + 5 else (SPAN - 5 if SPAN > 5 else 0)
    thread = _thread(SPAN, REGS, WARPS)
    h = tl.reshape(word, [2] * (REGS + WARPS + 5))
    if in_regs == 0:
        h ^= _all_ones(-(thread & 1), h.dtype)
    for phase in tl.static_range(1, in_regs + 1):
        h ^= _all_ones(_flip(phase, thread, SPAN, REGS, WARPS), h.dtype)
        for step in tl.static_range(phase):
            h = _order_words(h, phase - 1 - step, SPAN, REGS, WARPS)
    for phase in range(in_regs + 1, SPAN + 1):
        h ^= _all_ones(_turn(phase - in_regs, thread), h.dtype)
        for step in tl.static_range(SPAN - in_regs):
            if phase >= SPAN - step:
                h = _order_words(h, SPAN - 1 - step, SPAN, REGS, WARPS)
        for step in tl.static_range(in_regs):
            h = _order_words(h, in_regs - 1 - step, SPAN, REGS, WARPS)
    return tl.reshape(h, word.shape)


@jit
def sort_pairs(key, index, SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Runs of ``2**SPAN`` by ascending ``key`` (int32 or int64), then by ``index`` (int32).

    No ``index`` is negative, and no pair occurs twice.
    """
    in_regs: tl.constexpr = REGS if SPAN >= REGS + 5 else (SPAN - 5 if SPAN > 5 else 0)
    thread = _thread(SPAN, REGS, WARPS)
    h = tl.reshape(key, [2] * (REGS + WARPS + 5))
    i = tl.reshape(index, [2] * (REGS + WARPS + 5))
    if in_regs == 0:
        first = -(thread & 1)
        h ^= first.to(h.dtype)
        i ^= first
    for phase in tl.static_range(1, in_regs + 1):
        flip = _flip(phase, thread, SPAN, REGS, WARPS)
        h ^= flip.to(h.dtype)
        i ^= flip
        for step in tl.static_range(phase):
            h, i = _order_pairs(h, i, phase - 1 - step, SPAN, REGS, WARPS)
    for phase in range(in_regs + 1, SPAN + 1):
        turn = _turn(phase - in_regs, thread)
        h ^= turn.to(h.dtype)
        i ^= turn
        for step in tl.static_range(SPAN - in_regs):
            if phase >= SPAN - step:
                h, i = _order_pairs(h, i, SPAN - 1 - step, SPAN, REGS, WARPS)
        for step in tl.static_range(in_regs):
            h, i = _order_pairs(h, i, in_regs - 1 - step, SPAN, REGS, WARPS)
    return tl.reshape(h, key.shape), tl.reshape(i, index.shape)


@jit
def start(REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where in the program's stretch each element is read from, ``[32, 2**WARPS, 2**REGS]``.

    Lanes are adjacent. The third grid axis has size one, so its program id is 0; the compiler
    cannot know, takes the positions for scattered and leaves one element a lane, where it
    would else hand each thread several adjacent ones and lose the layout above.
    """
    lane = tl.arange(0, 32)[:, None, None] ^ tl.program_id(2)
    warp = tl.arange(0, 2**WARPS)[None, :, None]
    reg = tl.arange(0, 2**REGS)[None, None, :]
    return (warp * 2**REGS + reg) * 32 + lane


@jit
def run(SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Which run of ``2**SPAN`` elements each element of the program is in, before and after."""
    lane = tl.arange(0, 32)[:, None, None]
    warp = tl.arange(0, 2**WARPS)[None, :, None]
    reg = tl.arange(0, 2**REGS)[None, None, :]
    if SPAN >= REGS + 5:
        return (warp >> (SPAN - REGS - 5)) + 0 * (lane + reg)
    else:
        return ((warp * 2**REGS + reg) * 32 + lane) >> SPAN


@jit
def rank(SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The rank in its run of the element that each place of the program ends up with."""
    lane = tl.arange(0, 32)[:, None, None]
    warp = tl.arange(0, 2**WARPS)[None, :, None]
    reg = tl.arange(0, 2**REGS)[None, None, :]
    if SPAN >= REGS + 5:
        return reg + lane * 2**REGS + (warp & (2 ** (SPAN - REGS - 5) - 1)) * 2 ** (REGS + 5)
    elif SPAN > 5:
        return (reg & (2 ** (SPAN - 5) - 1)) + lane * 2 ** (SPAN - 5) + 0 * warp
    else:
        return (lane & (2**SPAN - 1)) + 0 * (reg + warp)


@jit
def _rank_bit(j: tl.constexpr, SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """Bit ``j`` of :func:`rank` over the hypercube ``[2] * DIMS``, as int32."""
    in_regs: tl.constexpr = REGS if SPAN >= REGS + 5 else (SPAN - 5 if SPAN > 5 else 0)
    in_lanes: tl.constexpr = 5 if SPAN >= 5 else SPAN
    if j < in_regs:
        return _cube_bit(j, REGS + WARPS + 5)
    elif j < in_regs + in_lanes:
        return _cube_bit(REGS + WARPS + j - in_regs, REGS + WARPS + 5)
    else:
        return _cube_bit(REGS + j - in_regs - in_lanes, REGS + WARPS + 5)


@jit
def _cube_bit(at: tl.constexpr, DIMS: tl.constexpr):  # type: ignore[no-untyped-def]
    return tl.reshape(tl.arange(0, 2), [1] * (DIMS - 1 - at) + [2] + [1] * at)


@jit
def _thread(SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """The bits of a rank above those in registers, over the hypercube."""
    in_lanes: tl.constexpr = 5 if SPAN >= 5 else SPAN
    in_warps: tl.constexpr = SPAN - REGS - 5 if SPAN >= REGS + 5 else 0
    lane = tl.arange(0, 32)[:, None] & (2**in_lanes - 1)
    warp = tl.arange(0, 2**WARPS)[None, :] & (2**in_warps - 1)
    return tl.reshape(lane + warp * 32, [2] * (5 + WARPS) + [1] * REGS)


@jit
def _flip(  # type: ignore[no-untyped-def]
    phase: tl.constexpr, thread, SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr
):
    """All ones where ``phase``, in registers, sorts in another direction than the one before.

    Phase p sorts downwards where bit p of the rank is set.
    """
    in_regs: tl.constexpr = REGS if SPAN >= REGS + 5 else (SPAN - 5 if SPAN > 5 else 0)
    if phase < in_regs:
        down = _cube_bit(phase, REGS + WARPS + 5)
    else:
        down = thread & 1
    if phase > 1:
        down ^= _cube_bit(phase - 1, REGS + WARPS + 5)
    return -down


@jit
def _turn(bit, thread):  # type: ignore[no-untyped-def]
    """As :func:`_flip`, of a phase beyond the registers, by the bit of ``thread``."""
    return -(((thread >> bit) ^ (thread >> (bit - 1))) & 1)


@jit
def _partner(h, j: tl.constexpr, SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    """What stands at the rank that differs in bit ``j``.

    In a warp, the sum of both less the own; sums wrap, and compile to a shuffle or to nothing.
    Across warps, a gather: it goes through shared memory once, where a sum does so twice.
    """
    in_regs: tl.constexpr = REGS if SPAN >= REGS + 5 else (SPAN - 5 if SPAN > 5 else 0)
    in_lanes: tl.constexpr = 5 if SPAN >= 5 else SPAN
    if j < in_regs:
        return tl.sum(h, REGS + WARPS + 4 - j, keep_dims=True) - h
    elif j < in_regs + in_lanes:
        return tl.sum(h, 4 - j + in_regs, keep_dims=True) - h
    else:
        SIZE: tl.constexpr = 2 ** (REGS + WARPS + 5)
        other = tl.arange(0, SIZE) ^ 2 ** (REGS + j - in_regs - in_lanes)
        return tl.reshape(tl.gather(tl.reshape(h, [SIZE]), other, 0), h.shape)


@jit
def _all_ones(mask, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """What complements a word where the int32 ``mask`` is -1: its 32 or 62 bits."""
    if dtype == tl.int64:
        return mask.to(tl.int64) & tl.full([1], 0x3FFFFFFFFFFFFFFF, tl.int64)
    else:
        return mask


@jit
def _order_words(h, j: tl.constexpr, SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr):  # type: ignore[no-untyped-def]
    in_regs: tl.constexpr = REGS if SPAN >= REGS + 5 else (SPAN - 5 if SPAN > 5 else 0)
    y = _partner(h, j, SPAN, REGS, WARPS)
    upper = _rank_bit(j, SPAN, REGS, WARPS) != 0
    if h.dtype == tl.int64:
        own = h.to(tl.float64, bitcast=True)
        other = y.to(tl.float64, bitcast=True)
        if j < in_regs:  # the strict forms of both sides of a pair are one comparison
            return tl.where(tl.where(upper, own < other, other < own), y, h)
        else:
            return tl.where((own < other) == upper, y, h)
    elif j < in_regs:  # `upper` is known for each register: one minimum and one maximum a pair
        return tl.where(upper, tl.maximum(h, y), tl.minimum(h, y))
    else:
        return tl.where((h < y) == upper, y, h)


@jit
def _order_pairs(  # type: ignore[no-untyped-def]
    h, i, j: tl.constexpr, SPAN: tl.constexpr, REGS: tl.constexpr, WARPS: tl.constexpr
):
    in_regs: tl.constexpr = REGS if SPAN >= REGS + 5 else (SPAN - 5 if SPAN > 5 else 0)
    if j >= in_regs + 5 and h.dtype == tl.int32:  # one trip through shared memory for both
        both = _partner(_joined(h, i), j, SPAN, REGS, WARPS)
        y = (both >> 32).to(tl.int32)
        k = both.to(tl.int32)
    else:
        y = _partner(h, j, SPAN, REGS, WARPS)
        k = _partner(i, j, SPAN, REGS, WARPS)
    upper = _rank_bit(j, SPAN, REGS, WARPS) != 0
    if j < in_regs:  # the strict forms of both sides of a pair are one comparison
        swap = tl.where(upper, _less(h, i, y, k), _less(y, k, h, i))
    else:
        swap = _less(h, i, y, k) == upper
    return tl.where(swap, y, h), tl.where(swap, k, i)


@jit
def _less(h, i, y, k):  # type: ignore[no-untyped-def]
    if h.dtype == tl.int32:
        return _joined(h, i) < _joined(y, k)
    else:
        return (h < y) | ((h == y) & (i.to(tl.uint32) < k.to(tl.uint32)))


@jit
def _joined(h, i):  # type: ignore[no-untyped-def]
    """Two int32 as the halves of one int64, which costs nothing."""
    return (h.to(tl.int64) << 32) | (i.to(tl.int64) & tl.full([1], 0xFFFFFFFF, tl.int64))
