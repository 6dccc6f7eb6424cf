"""Which elements an index names, and how often."""

from __future__ import annotations

import torch
import triton.language as tl

from graftwork.plugins.toolkit.kernels import jit

from .landing import block_positions, landing, unfold
from .over_entries import over_entries
from .problem import Problem


def named_counts(problem: Problem) -> torch.Tensor:
    """How often each element is named: int32, (O or 1, M, I or 1), which broadcasts."""
    groups, _, width = problem.index.shape
    rows = problem.base.shape[1]
    counts = torch.zeros((groups, rows, width), dtype=torch.int32, device=problem.base.device)
    operands = (problem.index, counts, *problem.index.stride())
    over_entries(count_names, problem, groups, width, *operands)
    return counts


@jit
def count_names(  # type: ignore[no-untyped-def]
    index,
    counts,
    so,
    sk,
    si,
    count,
    rows,
    inner,
    total,
    WRAP: tl.constexpr,
    WIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """counts[o, index[o, k, i], i] += 1; integers, so the order does not matter."""
    p, inside = block_positions(tl.program_id(0), total, WIDE, BLOCK)
    o, k, i = unfold(p, count, inner)
    entry = tl.load(index + o * so + k * sk + i * si, mask=inside, other=0)
    target, lands = landing(entry, o, i, inside, rows, inner, WRAP)
    tl.device_assert(lands, "index out of range", mask=inside)
    tl.atomic_add(counts + target, 1, mask=lands, sem="relaxed")
