# mypy: ignore-errors
"""Runs of equal neighbours: which run each element is in, and how long each run is."""

import triton.language as tl

from graftwork.plugins.toolkit.kernels import jit

from ..stages.mask import positions, rank_block


@jit
def write_runs(
    first, offsets, order, inverse, counts, size, count,
    ORDERED: tl.constexpr, INVERSE: tl.constexpr, COUNTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """inverse[order[p]] = the run of p; counts[run] = its length.

    A run's first element, where `first` is not 0, takes its position from the run's count and
    adds it to that of the run before: two integer atomics a run, whose order does not matter.
    """
    p = positions(BLOCK)
    inside = p < size
    begins, run = rank_block(
        tl.load(first + p, mask=inside, other=0), tl.load(offsets + tl.program_id(0))
    )
    if INVERSE:
        place = tl.load(order + p, mask=inside, other=0) if ORDERED else p
        tl.store(inverse + place, run, mask=inside)
    if COUNTS:
        begins &= run < count
        tl.atomic_add(counts + run, -p, mask=begins, sem="relaxed")
        tl.atomic_add(counts + run - 1, p, mask=begins & (run > 0), sem="relaxed")
        last = (p == size - 1) & (run < count)
        tl.atomic_add(counts + run, p + 1, mask=last, sem="relaxed")
