"""Brings a scatter of any rank, dim and strides to three dims, without a copy where views do.

`scatter(self, dim, index, src)` writes `src[o, k, i]` to `out[o, index[o, k, i], i]`, once the
dims before `dim` are folded into `o` and those after it into `i`. An index that is the same for
all `i` (an expanded one: a mixture of experts moving whole rows) has one value a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from graftwork.plugins.toolkit.kernels import as_bytes, cdiv, fits_int32, is_traced
from graftwork.plugins.toolkit.symbolic import Size, known

ENOUGH = 256  # programs, for a GPU


@dataclass(frozen=True)
class Problem:
    """One scatter: `base` (O, M, I), `src` (O, N, I), `index` (O or 1, N, I or 1); any strides.

    An index with one outer entry counts for all `o`, with one inner entry for all `i`. With
    `wraps`, negative ones count from the end, as in `index_put`; else they are out of range.
    """

    base: torch.Tensor
    index: torch.Tensor
    src: torch.Tensor
    wraps: bool = False

    @property
    def sizes(self) -> tuple[Any, Any, Any, Any]:
        """O, N, M, I; each an integer or symbolic (torch's stubs do not know the latter)."""
        outer, rows, inner = self.base.shape
        return outer, self.index.shape[1], rows, inner

    @property
    def moves_rows(self) -> bool:
        """Whether one index value moves `I > 1` elements."""
        return known(self.index.shape[2] == 1) and not known(self.base.shape[2] == 1)

    @property
    def index_strides(self) -> tuple[Size, Size, Size]:
        """The index's strides over `o`, `k`, `i`; 0 where it has one entry for all."""
        outer, step, inner = self.index.stride()
        shared_outer = known(self.index.shape[0] == 1)
        shared_inner = known(self.index.shape[2] == 1)
        return 0 if shared_outer else outer, step, 0 if shared_inner else inner

    @property
    def is_wide(self) -> bool:
        """Whether positions need 64-bit integers."""
        outer, count, rows, inner = self.sizes
        spans = [_span(t) for t in (self.base, self.index, self.src)]
        return not fits_int32(outer * count * inner, outer * rows * inner, *spans)


def solve(
    base: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    kernel: Callable[[Problem], torch.Tensor],
) -> torch.Tensor:
    """`kernel`, which takes a three-dim problem to its contiguous result, on any scatter.

    `index` may be smaller than `base` apart from `dim`, and smaller than `src` in every dim.
    The result is contiguous and shares no memory with an argument.
    """
    if base.dim() == 0:  # ATen takes a 1-d index too, of any number of elements
        return solve(base.view(1), 0, index.reshape(-1), src.reshape(-1), kernel).view(())
    if index.dim() == 0:  # ATen takes a 0-d index for a 1-d tensor
        index, src = index.view(1), src.view(1) if src.dim() == 0 else src
    if known(index.numel() == 0):
        return base.clone(memory_format=torch.contiguous_format)
    dim = dim % base.dim()
    for d in range(base.dim()):
        src = src.narrow(d, 0, index.shape[d])
    whole = [d == dim or same(index.shape[d], base.shape[d]) for d in range(base.dim())]
    if all(whole):
        problem = three_dims(base, dim, index, src)
        return kernel(problem).view(base.shape)
    out = base.clone(memory_format=torch.contiguous_format)
    region = out
    for d in range(base.dim()):
        if not whole[d]:
            region = region.narrow(d, 0, index.shape[d])
    region.copy_(kernel(three_dims(region, dim, index, src)).view(region.shape))
    return out


def three_dims(base: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> Problem:
    """Fold the dims before and after `dim`; an inner index of strides 0 becomes one entry."""
    outer, inner = math.prod(base.shape[:dim]), math.prod(base.shape[dim + 1 :])
    count, rows = index.shape[dim], base.shape[dim]
    trailing = range(dim + 1, base.dim())
    width: Size = inner
    if trailing and all(_is_constant(index, d) for d in trailing):
        for d in reversed(trailing):
            index = index.select(d, 0)
        width = 1
    problem = Problem(
        base.reshape(outer, rows, inner),
        index.reshape(outer, count, width),
        src.reshape(outer, count, inner),
    )
    return problem


def bits(problem: Problem) -> Problem:
    """The problem over plain integers where its dtype is bool, which Triton holds as one bit."""
    return replace(problem, base=as_bytes(problem.base), src=as_bytes(problem.src))


def suits_strips(problem: Problem, columns: int, chunk: int) -> bool:
    """Whether strips of `columns`, `chunk` positions a program, are many, and values collide.

    Only there does it pay to look at what is there before an atomic.
    """
    groups, count, width = problem.index.shape
    programs = groups * cdiv(width, columns) * cdiv(count, chunk)
    collide = known(count >= problem.base.shape[1])
    return collide and known(programs >= ENOUGH) and known(width >= 32) and not problem.is_wide


def check_range(index: torch.Tensor, base: torch.Tensor, dim: int, wraps: bool = False) -> None:
    """On the CPU, refuse an index out of range as ATen does; a GPU asserts in the kernel.

    Raises:
        RuntimeError: an index outside [0, size).
        IndexError: with `wraps`, one outside [-size, size).
    """
    if is_traced(index) or index.device.type != "cpu" or index.numel() == 0:
        return
    size = base.shape[dim] if base.dim() else 1
    for value in (int(index.min()), int(index.max())):
        if not (-size if wraps else 0) <= value < size:
            raise (IndexError if wraps else RuntimeError)(
                f"index {value} is out of bounds for dimension {dim % max(base.dim(), 1)} "
                f"with size {size}"
            )


def broadcast(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """`torch.broadcast_tensors`, which has no types."""
    out: tuple[torch.Tensor, ...] = torch.broadcast_tensors(*tensors)  # type: ignore[no-untyped-call]
    return out


def same(a: Size, b: Size) -> bool:
    """Whether two sizes are equal for every input the program takes."""
    return known(a == b)


def _is_constant(index: torch.Tensor, d: int) -> bool:
    return same(index.stride(d), 0) or same(index.shape[d], 1)


def _span(tensor: torch.Tensor) -> Size:
    """One more than the largest offset of an element."""
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    return sum(((size - 1) * stride for size, stride in steps), start=1)
