"""Transposed and dilated convolutions by plain ones: stride 1, no dilation.

Inductor's convolution templates know neither, and ExecuTorch's CUDA runtime has no cuDNN. For any
number of spatial dims that aten has a plain convolution for, two or three.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import pad

from .symbolic import Size

__all__ = ["dilated_convolution", "transposed_convolution", "widen"]

aten = torch.ops.aten


def dilated_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    margins: Sequence[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    """`x` (N, C, *sizes), `weight` (K, C / groups, *kernel), `bias` (K), to (N, K, *lengths).

    length = (size + the two margins - dilation (kernel - 1) - 1) // stride + 1. Every so many rows
    and columns are an image of their own: those are the batch of one plain convolution.
    """
    x = widen(x, margins)
    dims, batch, sizes = weight.dim() - 2, x.shape[0], x.shape[2:]
    # Padded by a fixed amount and cut, as padding by a symbolic one would be a branch.
    x = widen(x, [(0, step - 1) for step in dilation])
    for d, step in reversed(list(enumerate(dilation))):
        count = (sizes[d] + step - 1) // step
        x = torch.unflatten(x.narrow(2 + d, 0, count * step), 2 + d, (count, step))
    steps, places = [3 + 2 * d for d in range(dims)], [2 + 2 * d for d in range(dims)]
    images = x.permute(*steps, 0, 1, *places).flatten(0, dims)

    result = _plain(images, weight, bias, [0] * dims, groups)

    result = torch.unflatten(result, 0, (*dilation, batch))
    order = [axis for d in range(dims) for axis in (dims + 2 + d, d)]
    result = result.permute(dims, dims + 1, *order)
    for d, step in enumerate(dilation):
        length = sizes[d] - step * (weight.shape[2 + d] - 1)
        result = result.flatten(2 + d, 3 + d).narrow(2 + d, 0, length)
        result = result[(slice(None),) * (2 + d) + (slice(None, None, stride[d]),)]
    return result.contiguous()


def transposed_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Tensor:
    """`x` (N, C, *sizes), `weight` (C, K / groups, *kernel), `bias` (K), to (N, K, *lengths).

    length = (size - 1) stride - 2 padding + dilation (kernel - 1) + output_padding + 1. Each of
    the `stride` phases of the result is a plain convolution with every `stride`-th tap of the
    kernel: phases are channels of one convolution, interleaved after it (sub-pixel convolution,
    Shi et al. 2016). Nothing is multiplied by zero, so an infinity stays where it is; with a
    dilation `x` gets zeros between its elements, which only an infinite weight would show.
    """
    reach = [step * (k - 1) + 1 for step, k in zip(dilation, weight.shape[2:], strict=True)]
    full = [k + extra for k, extra in zip(reach, output_padding, strict=True)]
    if max(dilation) > 1:
        whole = _spread(x, weight, stride, full, groups, dilation)
    else:
        whole = _in_phases(x, weight, stride, full, groups)
    for d in range(len(stride)):
        length = (x.shape[2 + d] - 1) * stride[d] + full[d] - 2 * padding[d]
        whole = whole.narrow(2 + d, padding[d], length)
    return whole.contiguous() if bias is None else whole + bias.view(-1, *[1] * len(stride))


def _in_phases(
    x: Tensor, weight: Tensor, stride: Sequence[int], full: Sequence[int], groups: int
) -> Tensor:
    """The result before its margins are cut: each dim (size - 1) stride + `full` or longer.

    Phases with as many taps are channels of one convolution, two in each dim: where the kernel is
    no multiple of the stride some phases have one tap more.
    """
    dims = len(stride)
    batch, outputs = x.shape[0], weight.shape[1] * groups
    taps = [-(-length // step) for length, step in zip(full, stride, strict=True)]
    sizes: list[Size] = [x.shape[2 + d] + taps[d] - 1 for d in range(dims)]

    def phases(d: int, chosen: list[tuple[int, int, int]]) -> Tensor:
        """(N, K, *phases, *sizes), where the dims before `d` are at the phases chosen."""
        if d < dims:
            parts = [
                phases(d + 1, [*chosen, run]) for run in _runs(weight.shape[2 + d], stride[d])
            ]
            return parts[0] if len(parts) == 1 else torch.cat(parts, 2 + d)
        counts, lengths = [run[1] for run in chosen], [run[2] for run in chosen]
        if 0 in lengths:
            return x.new_zeros(batch, outputs, *counts, *sizes)
        kernel = _kernel_of(weight, stride, chosen, groups)
        part = _plain(x, kernel, None, [length - 1 for length in lengths], groups)
        missing = [taps[d] - lengths[d] for d in range(dims)]
        part = widen(part, [(0, end) for end in missing])
        return part.reshape(batch, outputs, *counts, *sizes)

    order = [axis for d in range(dims) for axis in (2 + dims + d, 2 + d)]
    lengths: list[Size] = [size * step for size, step in zip(sizes, stride, strict=True)]
    return phases(0, []).permute(0, 1, *order).reshape(batch, outputs, *lengths)


def _runs(kernel: int, stride: int) -> list[tuple[int, int, int]]:
    """The phases of one dim as runs with equally many taps: (first, how many, taps of each)."""
    longer = kernel % stride
    runs = [(0, longer, kernel // stride + 1), (longer, stride - longer, kernel // stride)]
    return [run for run in runs if run[1]]


def _kernel_of(
    weight: Tensor, stride: Sequence[int], chosen: Sequence[tuple[int, int, int]], groups: int
) -> Tensor:
    """The kernel for runs of phases, one a dim: (K * phases, C / groups, *taps)."""
    dims, channels = len(stride), weight.shape[0] // groups
    for d, (first, count, length) in reversed(list(enumerate(chosen))):
        axis = weight.dim() - dims + d
        end = length * stride[d] - weight.shape[axis]
        weight = pad(weight, [0, 0] * (dims - d - 1) + [0, end])
        weight = torch.unflatten(weight, axis, (length, stride[d]))
        weight = weight.narrow(axis + 1, first, count)
        weight = weight.flip(axis).movedim(axis + 1, 2)
    outputs, taps = weight.shape[1], weight.shape[-dims:]
    weight = torch.unflatten(weight, 0, (groups, channels)).movedim(1, 2 + dims)
    return weight.reshape(groups * outputs * math.prod(run[1] for run in chosen), channels, *taps)


def _spread(
    x: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    full: Sequence[int],
    groups: int,
    dilation: Sequence[int],
) -> Tensor:
    """The same where the kernel has gaps: a convolution over `x` with zeros in between."""
    margins: list[tuple[int, int]] = []
    for d, step in enumerate(stride):
        size = x.shape[2 + d]
        apart = widen(x.unsqueeze(3 + d), [(0, step - 1), *[(0, 0)] * (x.dim() - d - 3)])
        x = apart.flatten(2 + d, 3 + d).narrow(2 + d, 0, (size - 1) * step + 1)
        before = dilation[d] * (weight.shape[2 + d] - 1)
        margins.append((before, full[d] - 1))
    runs = [(0, 1, length) for length in weight.shape[2:]]
    kernel = _kernel_of(weight, [1] * len(stride), runs, groups)
    return dilated_convolution(x, kernel, None, [1] * len(stride), margins, dilation, groups)


def widen(x: Tensor, margins: Sequence[tuple[int, int]]) -> Tensor:
    """Zeros around the last dims, joined to `x`: `pad` makes a number of every symbolic size."""
    for axis, sides in enumerate(margins, start=x.dim() - len(margins)):
        if any(sides):
            shapes = ([*x.shape[:axis], side, *x.shape[axis + 1 :]] for side in sides)
            before, after = map(x.new_zeros, shapes)
            x = torch.cat([before, x, after], axis)
    return x


def _plain(
    x: Tensor, kernel: Tensor, bias: Tensor | None, padding: Sequence[int], groups: int
) -> Tensor:
    operator = aten.conv2d.default if len(padding) == 2 else aten.conv3d.default
    result: Tensor = operator(x, kernel, bias, [1], padding, [1], groups)
    return result
