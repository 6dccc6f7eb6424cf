"""A resize as two weighted sums, in floating point or in ATen's fixed point."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from graftwork.plugins import Declined
from graftwork.plugins.toolkit.resample import Axis, Filter, Windows, find_windows
from graftwork.plugins.toolkit.symbolic import Size, known
from graftwork.plugins.torch_private import suggest_memory_format

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)


def resize(
    image: Tensor,
    output_size: Sequence[Size],
    filter: Filter,
    align_corners: bool,
    factors: Sequence[float | None],
) -> Tensor:
    """Resize the last two dims of `image` (N, C, H, W) to `output_size`, antialiased.

    float16 and bfloat16 are computed in float32 and rounded once; float64 in float64; uint8 in
    ATen's fixed point, rounded after each axis. The memory format of `image` is kept.

    Raises:
        Declined: another dtype, which ATen does not resize either.
    """
    if image.dtype not in DTYPES:
        raise Declined(f"ATen does not resize {image.dtype}")
    fixed_point = image.dtype == torch.uint8
    result = image if fixed_point else image.to(torch.promote_types(image.dtype, torch.float32))
    for dim in (3, 2):
        axis = Axis(image.shape[dim], output_size[dim - 2], align_corners, factors[dim - 2])
        if known(axis.size == axis.target):
            continue
        precision = torch.float64 if fixed_point else result.dtype
        windows = find_windows(axis, filter, precision, image.device)
        result = (_sum_fixed_point if fixed_point else _sum)(result, dim, windows)
    return _lay_out(result.to(image.dtype), suggest_memory_format(image))


def _lay_out(result: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Give `result` exactly the strides of a new tensor; `contiguous` lets those of 1-dims be."""
    if memory_format == torch.contiguous_format:
        return result.contiguous()
    return result.clone(memory_format=memory_format)


def _sum(image: Tensor, dim: int, windows: Windows) -> Tensor:
    """Weigh and add the elements of every output's window along `dim`."""
    picked, inside, weights = _pick(image, dim, windows)
    return torch.where(inside, picked * weights, 0.0).sum(dim + 1)


def _pick(image: Tensor, dim: int, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
    """Every window of `image` as a new dim after `dim`, which elements count, their weights."""
    taps = torch.arange(windows.weights.shape[1], device=image.device)
    position = windows.start[:, None] + taps
    inside, weights = position < windows.end[:, None], windows.weights
    index = position.clamp(max=image.shape[dim] - 1)
    if dim == 3:
        return image[:, :, :, index], inside, weights
    return image[:, :, index], inside[..., None], weights[..., None]


def _sum_fixed_point(image: Tensor, dim: int, windows: Windows) -> Tensor:
    """As ATen's CPU kernel for uint8: weights in 16 bits, sums in 32, rounded and clamped.

    The weights share one power of two, the largest up to 22 that keeps the largest weight below
    2 ** 15.
    """
    powers = 2.0 ** torch.arange(1, 23, device=image.device)
    largest = windows.weights.amax().clamp(min=0)
    precision = (torch.floor(largest * powers + 0.5) < 2**15).sum()
    unit = 2.0**precision

    scaled = windows.weights * unit
    scaled = torch.where(scaled < 0, scaled - 0.5, scaled + 0.5).to(torch.int32).to(torch.int16)
    picked, inside, weights = _pick(image, dim, Windows(windows.start, windows.end, scaled))
    terms = torch.where(inside, picked.to(torch.int32) * weights.to(torch.int32), 0)
    unit = unit.to(torch.int32)
    total = terms.sum(dim + 1, dtype=torch.int32) + unit // 2
    return torch.div(total, unit, rounding_mode="floor").clamp(0, 255).to(torch.uint8)
