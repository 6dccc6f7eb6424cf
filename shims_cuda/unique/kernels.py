# mypy: ignore-errors
"""Runs of equal neighbours: which run each element is in, and how long each run is."""

import triton.language as tl

from graftwork.plugins.toolkit.kernels import jit


@jit
def write_runs(
    first, found, order, inverse, counts, count, size, stretch,
    ORDERED: tl.constexpr, INVERSE: tl.constexpr, COUNTS: tl.constexpr,
    STRETCHES: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """inverse[order[p]] = the run of p; counts[run] = its length.

    A run's first element, where `first` is not 0, takes its position from the run's count and
    adds it to that of the run before: two integer atomics a run, whose order does not matter.
    """
    s = tl.arange(0, STRETCHES)
    before = tl.sum(tl.load(found + s, mask=s < tl.program_id(0), other=0), 0)
    for at in range(0, stretch, TILE):
        p = tl.program_id(0).to(tl.int64) * stretch + at + tl.arange(0, TILE)
        inside = p < size
        begins = tl.load(first + p, mask=inside, other=0) != 0
        run = before + tl.cumsum(begins.to(tl.int32), 0) - 1
        before += tl.sum(begins.to(tl.int32), 0)
        if INVERSE:
            place = tl.load(order + p, mask=inside, other=0) if ORDERED else p
            tl.store(inverse + place, run, mask=inside)
        if COUNTS:
            begins &= run < count
            tl.atomic_add(counts + run, -p, mask=begins, sem="relaxed")
            tl.atomic_add(counts + run - 1, p, mask=begins & (run > 0), sem="relaxed")
            last = (p == size - 1) & (run < count)
            tl.atomic_add(counts + run, p + 1, mask=last, sem="relaxed")
