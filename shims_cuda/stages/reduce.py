"""Chooses how a reduction is computed, from its dtype and shape alone."""

from __future__ import annotations

import torch

from .arithmetic import Fold
from .atomic_sum import atomic_sum
from .columns import fold_columns, suits_columns
from .extremum import extremum
from .fold import fold_groups
from .marks import named_counts
from .problem import Problem, bits
from .tiles import fold_tiles, suits_tiles


def reduce_problem(
    problem: Problem, reduce: str, include_self: bool, deterministic: bool
) -> torch.Tensor:
    """Reduce what lands on each element; (O, M, I), contiguous, of the base's dtype."""
    base = problem.base
    if reduce in ("amax", "amin"):
        return extremum(problem, reduce == "amax", include_self)
    op: Fold = "prod" if reduce == "prod" else "mean" if reduce == "mean" else "sum"
    exact = not base.dtype.is_floating_point or not deterministic
    if op == "sum" and exact:
        return _sum_in_any_order(problem, include_self)
    if suits_columns(problem, op) and (op == "prod" or base.dtype.is_floating_point):
        return fold_columns(problem, op, include_self)
    if suits_tiles(problem, op, include_self):
        return fold_tiles(problem, op, include_self)
    return fold_groups(problem, op, include_self)


def _sum_in_any_order(problem: Problem, include_self: bool) -> torch.Tensor:
    base = problem.base
    problem = bits(problem)
    total = atomic_sum(problem, problem.base if include_self else None)
    total = total.ne(0) if base.dtype == torch.bool else total.to(base.dtype)
    if include_self:
        return total
    return torch.where(named_counts(problem) > 0, total, base)
