"""The windows and weights of an antialiased resize along one axis, for static and symbolic sizes.

Formulas (ATen's, `UpSampleKernel.cpp`), for an axis of `in` input and `out` output elements:

    scale   = in / out                                  (1 / factor where a factor is given)
              (in - 1) / (out - 1), 0 for out = 1       (align_corners)
    support = radius * max(scale, 1)                    (radius 1: bilinear, 2: bicubic)
    center  = scale * (i + 0.5)
    window  = [trunc(center - support + 0.5), trunc(center + support + 0.5)) within [0, in)
    weight  = filter((k - center + 0.5) / max(scale, 1)), divided by the window's sum

They are computed with ATen's own roundings, so that a NaN at a window's edge goes where ATen's
goes. An axis whose size does not change is left alone, whatever its factor says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch._ops import OpOverload

from .symbolic import Size, at_least, at_most, known

# A factor this small sees the whole input from its first output and nothing from the others;
# stopping there keeps centers and windows free of infinity minus infinity.
LARGEST_SCALE = 2.0**62


@dataclass(frozen=True)
class Filter:
    """A resampling filter: `weigh(abs(distance))`, zero from `radius` input elements on."""

    radius: int
    weigh: Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Axis:
    """One dim of a resize: its size, the size it becomes, and the factor if one was given."""

    size: Size
    target: Size
    align_corners: bool
    factor: float | None


@dataclass(frozen=True)
class Windows:
    """Where every output of an axis looks: element `start + t` of the input has `weights[t]`.

    Attributes:
        start: (out,) int64, the window's first element.
        end: (out,) int64, one past the window's last element.
        weights: (taps, out), floating; zero outside the window.
    """

    start: Tensor
    end: Tensor
    weights: Tensor


def resize_operators(resize: Callable[..., Tensor]) -> Mapping[OpOverload, Callable[..., Tensor]]:
    """ATen's antialiased resizes, by `resize(image, size, filter, align_corners, factors)`.

    Both filters, with the output size given (`default`) or worked out from factors (`vec`).
    """
    aten = torch.ops.aten
    return {
        aten._upsample_bilinear2d_aa.default: _with_scales(resize, BILINEAR),
        aten._upsample_bilinear2d_aa.vec: _with_scale_factors(resize, BILINEAR),
        aten._upsample_bicubic2d_aa.default: _with_scales(resize, BICUBIC),
        aten._upsample_bicubic2d_aa.vec: _with_scale_factors(resize, BICUBIC),
    }


def find_windows(axis: Axis, filter: Filter, dtype: torch.dtype, device: torch.device) -> Windows:
    """The windows and normalised weights of an axis, computed in `dtype` (float32, float64)."""
    taps = count_taps(axis, filter.radius)
    scale = _scale(axis, dtype, device)
    stretch = scale.clamp(min=1)
    support = stretch * filter.radius
    output = _count(axis.target, device).to(torch.float64)
    # float64 holds the product exactly, so that the one rounding is ATen's; and it keeps a
    # compiler from contracting the product with the subtraction below.
    center = ((output + 0.5) * scale).to(dtype)
    start = _truncate((center - support).to(torch.float64) + 0.5, axis.size)
    end = _truncate((center + support).to(torch.float64) + 0.5, axis.size)

    tap = _count(taps, device)[:, None]
    position = start + tap
    distance = (position.to(dtype) - center).to(torch.float64) + 0.5
    weights = filter.weigh((distance * (1 / stretch)).to(dtype).abs())
    weights = torch.where(position < end, weights, 0.0)
    total = weights.sum(0)
    weights = weights / torch.where(total == 0, 1.0, total)

    if not known(axis.size != axis.target):
        same = _number(axis.size, device) == _number(axis.target, device)
        output = _count(axis.target, device)
        start = torch.where(same, output, start)
        end = torch.where(same, output + 1, end)
        weights = torch.where(same, (tap == 0).to(dtype), weights)
    return Windows(start, end, weights)


def count_taps(axis: Axis, radius: int) -> Size:
    """The length of the longest window, `2 * support` rounded down and one, or somewhat more.

    Computed in integers where the scale is a ratio of sizes: it is a shape, and 21 / 7 in float32
    can come out above 3 in a compiled kernel. Symbolic sizes are bounded by sums and quotients,
    since ExecuTorch's edge verifier takes neither `sym_max` nor `sym_min`.
    """
    reach = 2 * radius
    if uses_factor(axis):
        assert axis.factor is not None
        scale = min(max(1 / axis.factor, 1.0), LARGEST_SCALE)
        return at_most(math.floor(reach * scale) + 1, axis.size)
    above, below = axis.size, axis.target
    if axis.align_corners:
        # For a target of 1 the scale is 0, and the quotient keeps the divisor at 1: a branch
        # on a symbolic size would be kept in the program as it was traced.
        above, below = above - 1, below - 1 + 1 // below
    return at_most(at_least(reach * above // below, reach) + 1, axis.size)


def uses_factor(axis: Axis) -> bool:
    """Whether the scale comes from the given factor; ATen ignores one that is not positive."""
    return axis.factor is not None and axis.factor > 0 and not axis.align_corners


def _triangle(x: Tensor) -> Tensor:
    return torch.where(x < 1, 1 - x, 0.0)


def _keys_cubic(x: Tensor) -> Tensor:
    """Keys' cubic convolution with coefficient -0.5."""
    near = (1.5 * x - 2.5) * x * x + 1
    far = ((-0.5 * x + 2.5) * x - 4) * x + 2
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))


BILINEAR = Filter(1, _triangle)
BICUBIC = Filter(2, _keys_cubic)


def _scale(axis: Axis, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Input elements per output element, a 0-d tensor; divided in float64 and rounded once."""
    if uses_factor(axis):
        assert axis.factor is not None
        given = min(1 / axis.factor, LARGEST_SCALE)
        return torch.full((), given, dtype=dtype, device=device)
    above, below = _number(axis.size, device), _number(axis.target, device)
    if axis.align_corners:
        scale = (above - 1) / (below - 1).clamp(min=1)
        return torch.where(below > 1, scale, 0.0).to(dtype)
    return (above / below).to(dtype)


def _number(size: Size, device: torch.device) -> Tensor:
    size = cast(int, size)  # torch's stubs know no SymInt here
    return torch.full((), size, dtype=torch.float64, device=device)


def _count(size: Size, device: torch.device) -> Tensor:
    return torch.arange(cast(int, size), device=device)


def _truncate(x: Tensor, size: Size) -> Tensor:
    """Cut a window's edge to an element from 0 to `size`, before the cast can overflow."""
    return x.clamp(min=0, max=cast(int, size)).to(torch.int64)


def _with_scales(resize: Callable[..., Tensor], filter: Filter) -> Callable[..., Tensor]:
    def resized(
        input: Tensor,
        output_size: Sequence[Size],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return resize(input, output_size, filter, align_corners, (scales_h, scales_w))

    return resized


def _with_scale_factors(resize: Callable[..., Tensor], filter: Filter) -> Callable[..., Tensor]:
    def resized(
        input: Tensor,
        output_size: Sequence[Size] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Tensor:
        factors = scale_factors or (None, None)
        size = output_size or [
            _scaled(n, factor) for n, factor in zip(input.shape[2:], factors, strict=True)
        ]
        return resize(input, size, filter, align_corners, factors)

    return resized


def _scaled(size: Size, factor: float | None) -> Size:
    """A size times a factor, rounded down; a whole factor stays in integers."""
    assert factor is not None
    if factor == int(factor):
        return size * int(factor)
    scaled: Size = torch.sym_int(size * factor)  # type: ignore[no-untyped-call]  # as in torch
    return scaled
