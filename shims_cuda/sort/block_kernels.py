"""Rows that fit one Triton program: sorted in one launch by a network."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
import triton.language as tl

from graftwork.shims_cuda.sort.key_kernels import is_ambiguous, sort_key, value_of
from graftwork.shims_cuda.sort.network_kernels import rank, run, sort_pairs, sort_words, start

jit: Callable[[Callable[..., Any]], Any] = triton.jit


@jit
def sort_block(  # type: ignore[no-untyped-def]
    x,
    groups,
    values,
    indices,
    rows,
    n,
    k,
    DESCENDING: tl.constexpr,
    GROUP: tl.constexpr,
    WITH_VALUES: tl.constexpr,
    FLOAT64: tl.constexpr,
    SPAN: tl.constexpr,
    REGS: tl.constexpr,
    WARPS: tl.constexpr,
):
    """The first ``k`` of each row of ``x`` [rows, n] by value, equal ones by index.

    A row's candidates are its ``n <= 2**SPAN`` elements; or, where GROUP is not 0, those in the
    stretches of GROUP elements that ``groups`` [rows, k] numbers, ``k * GROUP <= 2**SPAN``.
    ``values`` and ``indices`` are [rows, k]; where a row has fewer than k candidates the rest of
    its indices are n or more and its values anything. FLOAT64 says that the GPU compares float64
    at full rate; n is then at most 2**29.
    """
    within = start(REGS, WARPS)
    slot = within & (2**SPAN - 1)
    row = tl.program_id(0).to(tl.int64)
    if SPAN < REGS + WARPS + 5:  # else the row is the program's, and no tensor
        row = row * 2 ** (REGS + WARPS + 5 - SPAN) + (within >> SPAN)
    if GROUP > 0:
        present = (row < rows) & (slot < k * GROUP)
        group = tl.load(groups + row * k + slot // GROUP, mask=present, other=0)
        column = group.to(tl.int64) * GROUP + slot % GROUP
        present = present & (column < n)
        index = tl.where(present, column, n + slot).to(tl.int32)
    else:
        present = (row < rows) & (slot < n)
        index = slot
    value = tl.load(x + row * n + index, mask=present, other=0)
    key = sort_key(value, DESCENDING)
    if GROUP == 0 and key.dtype.primitive_bitwidth <= 16:
        word = tl.where(present, key.to(tl.int32), 32767) * 2**SPAN + slot
        word = sort_words(word, SPAN, REGS, WARPS)
        first = word & (2**SPAN - 1)
        key = (word >> SPAN).to(key.dtype)
    elif key.dtype == tl.int64:
        key = tl.where(present, key, 0x7FFFFFFFFFFFFFFF)
        key, first = sort_pairs(key, index, SPAN, REGS, WARPS)
    elif FLOAT64:
        wide = tl.where(present, key.to(tl.int64), 0x7FFFFFFF) + 2**31
        word = sort_words((wide << 30) | index.to(tl.int64), SPAN, REGS, WARPS)
        first = (word & (2**30 - 1)).to(tl.int32)
        key = ((word >> 30) - 2**31).to(key.dtype)
    else:
        wide = tl.where(present, key.to(tl.int32), 0x7FFFFFFF)
        wide, first = sort_pairs(wide, index, SPAN, REGS, WARPS)
        key = wide.to(key.dtype)
    at = rank(SPAN, REGS, WARPS)
    row = tl.program_id(0).to(tl.int64)
    if SPAN < REGS + WARPS + 5:
        row = row * 2 ** (REGS + WARPS + 5 - SPAN) + run(SPAN, REGS, WARPS)
    kept = (row < rows) & (at < k)
    if WITH_VALUES:
        value = value_of(key, DESCENDING, x.dtype.element_ty)
        unclear = kept & (first < n) & is_ambiguous(value)
        value = tl.load(x + row * n + first, mask=unclear, other=value)
        tl.store(values + row * k + at, value, mask=kept)
    tl.store(indices + row * k + at, first.to(indices.dtype.element_ty), mask=kept)


@jit
def best_of_groups(  # type: ignore[no-untyped-def]
    x, best, n, blocks, groups, DESCENDING: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr
):
    """The first key in the wanted order of each stretch of GROUP elements of a row.

    ``x`` is [rows, n], ``best`` [rows, groups] of int32 or int64; ``blocks`` programs a row.
    """
    row = (tl.program_id(0) // blocks).to(tl.int64)
    block = tl.program_id(0) % blocks
    at = (
        block * BLOCK
        + tl.arange(0, BLOCK // GROUP)[:, None] * GROUP
        + tl.arange(0, GROUP)[None, :]
    )
    key = sort_key(tl.load(x + row * n + at, mask=at < n, other=0), DESCENDING)
    key = key.to(best.dtype.element_ty)
    if key.dtype == tl.int64:
        key = tl.where(at < n, key, 0x7FFFFFFFFFFFFFFF)
    else:
        key = tl.where(at < n, key, 0x7FFFFFFF)
    group = block * (BLOCK // GROUP) + tl.arange(0, BLOCK // GROUP)
    tl.store(best + row * groups + group, tl.min(key, 1), mask=group < groups)
