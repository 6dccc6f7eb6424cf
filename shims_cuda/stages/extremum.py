"""Largest or smallest value that lands on each element, through integer atomics.

An order-preserving map turns every value into an integer, and an integer maximum does not depend
on the order it is taken in. NaN maps above everything, so that it wins both ways, as in ATen.
"""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import cdiv, from_ordered_key, jit, launch, ordered_key

from .landing import block_positions, landing, settle_row, strip_of, unfold
from .marks import named_counts
from .over_entries import over_entries, over_strips
from .problem import Problem, suits_strips


def extremum(problem: Problem, largest: bool, include_self: bool) -> torch.Tensor:
    """amax or amin of what lands on each element; elements not named stay. (O, M, I)."""
    base = problem.base
    outer, _, rows, inner = problem.sizes
    dtype = torch.int64 if base.dtype.itemsize == 8 else torch.int32
    keys = torch.full(base.shape, torch.iinfo(dtype).min, dtype=dtype, device=base.device)
    operands = (problem.index, problem.src, keys, *problem.index_strides, *problem.src.stride())
    if suits_strips(problem, 32, 256):
        tile = {"columns": 32, "rows": 32, "chunk": 256}
        over_strips(
            raise_keys_by_strips, problem, outer, inner, *operands, **tile, LARGEST=largest
        )
    else:
        over_entries(raise_keys, problem, outer, inner, *operands, LARGEST=largest)
    out = torch.empty(base.shape, dtype=base.dtype, device=base.device)
    counts = keys if include_self else named_counts(problem).expand(base.shape)
    launch(
        settle_keys,
        (cdiv(outer * rows * inner, 1024),),
        keys,
        counts,
        base,
        out,
        *counts.stride(),
        *base.stride(),
        rows,
        inner,
        outer * rows * inner,
        LARGEST=largest,
        INCLUDE_SELF=include_self,
        WIDE=problem.is_wide,
        BLOCK=1024,
        num_warps=4,
    )
    return out


@jit
def raise_keys(  # type: ignore[no-untyped-def]
    index,
    src,
    keys,
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
    LARGEST: tl.constexpr,
    WRAP: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """keys[o, index[o, k, i], i] = the largest key of src that lands there."""
    p, inside = block_positions(tl.program_id(0), total, WIDE, BLOCK)
    o, k, i = unfold(p, count, inner)
    entry = tl.load(index + o * so + k * sk + i * si, mask=inside, other=0)
    target, lands = landing(entry, o, i, inside, rows, inner, WRAP)
    tl.device_assert(lands, "index out of range", mask=inside)
    value = tl.load(src + o * vo + k * vk + i * vi, mask=inside, other=0)
    key = rank_key(value, LARGEST, keys.dtype.element_ty)
    tl.atomic_max(keys + target, key, mask=lands, sem="relaxed")


@jit
def raise_keys_by_strips(  # type: ignore[no-untyped-def]
    index,
    src,
    keys,
    so,
    sk,
    si,
    vo,
    vk,
    vi,
    count,
    rows,
    inner,
    strips,
    parts,
    LARGEST: tl.constexpr,
    WRAP: tl.constexpr,
    CHUNK: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """As `raise_keys`, a strip of columns a program: what is beaten is left without an atomic."""
    exact: tl.constexpr = keys.dtype.element_ty
    o, i, r, first, end = strip_of(
        tl.program_id(0), count, inner, strips, parts, CHUNK, ROWS, COLUMNS
    )
    good = i >= 0
    for top in range(end, first, -ROWS):
        k = top - 1 - r
        inside = (k >= first) & (i < inner)
        row = tl.load(
            index + o * so + k * sk + i * si, mask=inside, other=0, eviction_policy="evict_first"
        )
        value = tl.load(
            src + o * vo + k * vk + i * vi, mask=inside, other=0, eviction_policy="evict_first"
        )
        row, lands = settle_row(row, inside, rows, WRAP)
        good &= lands | (inside == 0)
        key = rank_key(value, LARGEST, exact)
        target = keys + (o * rows + row.to(tl.int32)) * inner + i
        # What is read may be old, but a key only ever grows.
        seen = tl.load(target, mask=lands, other=0)
        tl.atomic_max(target, key, mask=lands & (seen < key), sem="relaxed")
    tl.device_assert(good, "index out of range")


@jit
def settle_keys(  # type: ignore[no-untyped-def]
    keys,
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
    LARGEST: tl.constexpr,
    INCLUDE_SELF: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out = the value of the key where it beats base's (or base does not count), else base."""
    p, inside = block_positions(tl.program_id(0), total, WIDE, BLOCK)
    o, m, i = unfold(p, rows, inner)
    key = tl.load(keys + p, mask=inside, other=0)
    old = tl.load(base + o * bo + m * bm + i * bi, mask=inside, other=0)
    if INCLUDE_SELF:
        wins = key > rank_key(old, LARGEST, keys.dtype.element_ty)
    else:
        wins = tl.load(counts + o * co + m * cm + i * ci, mask=inside, other=0) > 0
    value = value_of_rank(key, LARGEST, base.dtype.element_ty)
    tl.store(out + p, tl.where(wins, value, old), mask=inside)


@jit
def rank_key(x, LARGEST: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """An integer that is greatest for what wins: the largest or the smallest, or NaN."""
    key = ordered_key(x)
    if not LARGEST:
        if x.dtype.is_floating():
            nan = (1 << (x.dtype.primitive_bitwidth - 1)) - 1
            key = tl.where(key == nan, key, ~key)
        else:
            key = ~key
    return key.to(dtype)


@jit
def value_of_rank(key, LARGEST: tl.constexpr, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """What `rank_key` maps to `key`."""
    if not LARGEST:
        if dtype.is_floating():
            nan = (1 << (dtype.primitive_bitwidth - 1)) - 1
            key = tl.where(key == nan, key, ~key)
        else:
            key = ~key
    return from_ordered_key(key, dtype)
