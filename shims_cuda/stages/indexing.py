"""`index_put` as a three-dim problem: indexed dims become one, what stands before is shared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from graftwork.plugins.toolkit.kernels import is_traced

from . import mask as masks
from .last_writer import last_writer, pick
from .problem import Problem, broadcast, check_range, same
from .reduce import reduce_problem


def put_rows(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool,
    deterministic: bool,
) -> torch.Tensor:
    """`self` with `values` put (or added) where integer `indices` say, laid out as its clone."""
    at = [d for d, index in enumerate(indices) if index is not None]
    given = broadcast(*(index for index in indices if index is not None))
    if same(given[0].numel(), 0):
        return self.clone()
    for d, index in zip(at, given, strict=True):
        check_range(index, self, d, wraps=True)
    adjacent = at == list(range(at[0], at[0] + len(at)))
    first = at[0] if adjacent else 0
    order = list(range(self.dim()))
    if not adjacent:
        order = at + [d for d in order if d not in at]
    base = self.permute(order)
    outer, inner = base.shape[:first], base.shape[first + len(at) :]
    extents = base.shape[first : first + len(at)]
    count, rows = given[0].numel(), math.prod(extents)
    flat = math.prod(outer), count, math.prod(inner)
    if values.dim() == 0:
        src = _stored(values, self).expand(flat)
    else:
        src = values.expand((*outer, *given[0].shape, *inner)).reshape(flat)
    line = given[0] if len(at) == 1 else _line(given, extents)
    problem = Problem(
        base.reshape(flat[0], rows, flat[2]),
        line.reshape(1, count, 1),
        src,
        wraps=len(at) == 1,
    )
    if accumulate:
        result = reduce_problem(problem, "sum", True, deterministic)
    else:
        result = last_writer(problem)
    back = [order.index(d) for d in range(self.dim())]
    return laid_out_as(self, result.view(base.shape).permute(back))


def spread_values(
    self: torch.Tensor, mask: torch.Tensor, dim: int, values: torch.Tensor
) -> torch.Tensor:
    """`self` with the mask's dims, from `dim` on, filled from `values` in rank order."""
    outer, inner = self.shape[:dim], self.shape[dim + mask.dim() :]
    count = values.shape[dim]
    if not is_traced(mask) and mask.device.type == "cpu" and int(mask.sum()) != count:
        raise RuntimeError(
            f"shape mismatch: value tensor of shape {list(values.shape)} cannot be broadcast to "
            f"indexing result of shape {[*outer, int(mask.sum()), *inner]}"
        )
    src = values.expand((*outer, count, *inner))
    rank = masks.ranks(mask)
    problem = Problem(
        self.reshape(math.prod(outer), mask.numel(), math.prod(inner)),
        rank.view(1, -1, 1),
        src.reshape(math.prod(outer), count, math.prod(inner)),
    )
    return laid_out_as(self, pick(problem, problem.index, count).view(self.shape))


def laid_out_as(like: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """`result` with the strides that a clone of `like` has."""
    out = torch.empty_like(like)
    pairs = list(zip(out.stride(), result.stride(), out.shape, strict=True))
    if all(same(ours, theirs) for ours, theirs, _ in pairs):
        return result
    if all(same(ours, theirs) or same(size, 1) for ours, theirs, size in pairs):
        return result.as_strided(out.shape, out.stride())
    return out.copy_(result)


def _stored(number: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """A 0-d tensor, which eager takes from the CPU too, as one element on the device of `like`.

    Inductor keeps a constant as a number without storage, which it can neither reshape nor give
    to a kernel; a computed element it stores.
    """
    if not is_traced(number):
        return number.to(like.device)
    anyway = torch.ones(1, dtype=torch.bool, device=like.device)
    return torch.where(anyway, number, number)


def _line(given: Sequence[torch.Tensor], extents: Sequence[Any]) -> torch.Tensor:
    """Row numbers from one index a dim, wrapped; -1 where one is out of range."""
    line = torch.zeros((), dtype=torch.int64, device=given[0].device)
    inside = torch.ones((), dtype=torch.bool, device=given[0].device)
    for index, extent in zip(given, extents, strict=True):
        wrapped = torch.where(index < 0, index + extent, index)
        inside = inside & (wrapped >= 0) & (wrapped < extent)
        line = line * extent + wrapped
    return torch.where(inside, line, -1)
