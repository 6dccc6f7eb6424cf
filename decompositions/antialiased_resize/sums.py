"""A resize as two weighted sums, in floating point or in ATen's fixed point."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from graftwork.plugins import Declined
from graftwork.plugins.toolkit.resample import (
    BILINEAR,
    Axis,
    Filter,
    Windows,
    find_windows,
    uses_factor,
)
from graftwork.plugins.toolkit.symbolic import Size, known
from graftwork.plugins.torch_private import suggest_memory_format

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.uint8)

# An interpreter runs node by node; a compiler fuses nodes into loops, for a CPU or a GPU.
Runner = Literal["interpreter", "cpu", "cuda"]

# An unrolled sum makes five nodes a tap; strong downscales are left to a loop.
UNROLLED_TAPS = 64


def resize(
    image: Tensor,
    output_size: Sequence[Size],
    filter: Filter,
    align_corners: bool,
    factors: Sequence[float | None],
    runs_on: Runner,
) -> Tensor:
    """Resize the last two dims of `image` (N, C, H, W) to `output_size`, antialiased.

    float16 and bfloat16 are computed in float32 and rounded once; float64 in float64; uint8 in
    ATen's fixed point, rounded after each axis. The memory format of `image` is kept.

    Args:
        runs_on: what the sums are written for.

    Raises:
        Declined: another dtype, which ATen does not resize either; on a CPU, what ATen's own
            kernel computes faster.
    """
    if image.dtype not in DTYPES:
        raise Declined(f"ATen does not resize {image.dtype}")
    memory_format = suggest_memory_format(image)
    axes = [
        Axis(image.shape[dim], output_size[dim - 2], align_corners, factors[dim - 2])
        for dim in (2, 3)
    ]
    if runs_on == "cpu" and _aten_is_faster(image.dtype, axes, filter):
        raise Declined("ATen's own kernel, which torch's runtime has, is faster")
    if image.dtype == torch.uint8:
        result = _resize_bytes(image, axes, filter)
    elif memory_format == torch.channels_last:
        last = image.permute(0, 2, 3, 1)
        result = _resize_floats(last, 1, axes, filter, runs_on).permute(0, 3, 1, 2)
    else:
        result = _resize_floats(image, 2, axes, filter, runs_on)
    return _lay_out(result, memory_format)


def _aten_is_faster(dtype: torch.dtype, axes: Sequence[Axis], filter: Filter) -> bool:
    """Whether ATen's CPU kernel is faster than loops (measured), and right.

    It reads outside the image for some factors, and repeats rows where the width becomes 1.
    """
    if any(uses_factor(axis) for axis in axes) or not known(axes[1].target > 1):
        return False
    if dtype == torch.uint8:
        return True
    shrinks = all(known(axis.target < axis.size) for axis in axes)
    return filter is BILINEAR and shrinks and dtype in (torch.float32, torch.float64)


def _resize_bytes(image: Tensor, axes: Sequence[Axis], filter: Filter) -> Tensor:
    """The width first: it is rounded before the height."""
    for dim, axis in ((3, axes[1]), (2, axes[0])):
        if not known(axis.size == axis.target):
            windows = find_windows(axis, filter, torch.float64, image.device)
            image = _sum_fixed_point(image, dim, windows)
    return image


def _resize_floats(
    image: Tensor, height_dim: int, axes: Sequence[Axis], filter: Filter, runs_on: Runner
) -> Tensor:
    """The width first, or where the height shrinks, the height.

    The order changes only the rounding, but a shrinking height reads whole rows, and leaves less
    to the width.
    """
    dtype = image.dtype
    image = image.to(torch.promote_types(dtype, torch.float32))
    steps = [(height_dim + 1, axes[1]), (height_dim, axes[0])]
    if known(axes[0].target <= axes[0].size):
        steps.reverse()
    for dim, axis in steps:
        if known(axis.size == axis.target):
            continue
        windows = find_windows(axis, filter, image.dtype, image.device)
        taps = windows.weights.shape[0]
        if runs_on == "interpreter":
            image = _sum(image, dim, windows)
            continue
        windows = Windows(_stored(windows.start), _stored(windows.end), _stored(windows.weights))
        if isinstance(taps, int) and taps <= UNROLLED_TAPS:
            image = _sum_one_by_one(image, dim, windows, masked_loads=runs_on == "cuda")
        else:
            image = _sum(image, dim, windows)
        image = _stored(image)
    return image.to(dtype)


def _stored(value: Tensor) -> Tensor:
    """`value`, which Inductor then computes once and keeps, not anew for everyone who reads it."""
    value = value.contiguous()
    return value.as_strided(value.shape, value.stride())


def _lay_out(result: Tensor, memory_format: torch.memory_format) -> Tensor:
    """Give `result` exactly the strides of a new tensor; `contiguous` lets those of 1-dims be."""
    if memory_format == torch.contiguous_format:
        return result.contiguous()
    return result.clone(memory_format=memory_format)


def _sum(image: Tensor, dim: int, windows: Windows) -> Tensor:
    """Weigh and add the elements of every output's window along `dim`."""
    picked, inside, weights = _pick(image, dim, windows)
    return torch.where(inside, picked * weights, 0.0).sum(dim)


def _sum_one_by_one(image: Tensor, dim: int, windows: Windows, masked_loads: bool) -> Tensor:
    """The same, an element of the windows at a time: no dim to reduce over is ever made.

    A GPU does not even load what is outside a window; vector units load and select faster.
    """
    shape = (-1,) + (1,) * (3 - dim)
    result = (*image.shape[:dim], *windows.start.shape, *image.shape[dim + 1 :])
    total = torch.zeros((), dtype=image.dtype, device=image.device)
    for tap, weights in enumerate(windows.weights.unbind()):
        position = windows.start + tap
        inside = (position < windows.end).view(shape)
        if masked_loads:
            where, index = inside.expand(result), [None] * dim + [position]
            picked = torch.ops.aten._unsafe_masked_index(image, where, index, 0)
            term = picked * weights.view(shape)
        else:
            index = [None] * dim + [position.clamp(max=image.shape[dim] - 1)]
            picked = torch.ops.aten._unsafe_index.Tensor(image, index)
            term = torch.where(inside, picked * weights.view(shape), 0.0)
        total = total + term
    return total


def _pick(image: Tensor, dim: int, windows: Windows) -> tuple[Tensor, Tensor, Tensor]:
    """Every window of `image` as a new dim before `dim`, which elements count, their weights."""
    count = windows.weights.shape[0]
    taps = torch.arange(count, dtype=windows.start.dtype, device=image.device)
    position = windows.start + taps[:, None]
    index = position.clamp(max=image.shape[dim] - 1)
    picked = torch.ops.aten.index(image, [None] * dim + [index])
    shape = (*index.shape, *(1,) * (3 - dim))
    return picked, (position < windows.end).view(shape), windows.weights.view(shape)


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
    picked, _, weights = _pick(image, dim, Windows(windows.start, windows.end, scaled))
    # Nothing to mask: bytes have no NaN, and weights are zero outside a window.
    terms = picked.to(torch.int32) * weights.to(torch.int32)
    unit = unit.to(torch.int32)
    total = terms.sum(dim, dtype=torch.int32) + unit // 2
    return torch.div(total, unit, rounding_mode="floor").clamp(0, 255).to(torch.uint8)
