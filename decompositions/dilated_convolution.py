"""Convolutions with `dilation`: semantic segmentation, WaveNets, temporal convolutions.

Inductor's convolution templates have no dilation; without cuDNN, which ExecuTorch's CUDA runtime
lacks, there is "no choice to select". Every `dilation`-th row and column is an image of its own
to such a convolution: those images are the batch of a plain one, and go back to their places.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.export import Dim

from graftwork.plugins import Case, PluginInfo, Property, Refusal, hookimpl
from graftwork.plugins.toolkit.convolutions import dilated_convolution
from graftwork.plugins.toolkit.float_cases import (
    CLOSE,
    HALVES,
    ROUNDED,
    WIDE,
)

aten = torch.ops.aten


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="dilated convolutions as plain ones over every so many rows and columns",
        targets=frozenset({"cuda"}),
    )


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The forms that export keeps."""
    return {
        aten.conv2d.default: _by_numbers,
        aten.conv2d.padding: _by_name,
        aten.conv3d.default: _by_numbers,
        aten.conv3d.padding: _by_name,
    }


def _by_numbers(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor:
    """`input` (N, C, *sizes) or (C, *sizes); a list of one number stands for every dim."""
    margins = [(side, side) for side in _each(padding, weight)]
    return _expand(input, weight, bias, stride, margins, dilation, groups)


def _by_name(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: str = "valid",
    dilation: Sequence[int] = (1,),
    groups: int = 1,
) -> Tensor:
    """`padding` is `valid` or `same`, which adds the odd one at the end."""
    steps = zip(_each(dilation, weight), weight.shape[2:], strict=True)
    reach = [step * (k - 1) * (padding == "same") for step, k in steps]
    margins = [(total // 2, total - total // 2) for total in reach]
    return _expand(input, weight, bias, stride, margins, dilation, groups)


def _each(values: Sequence[int], weight: Tensor) -> list[int]:
    return list(values) * (weight.dim() - 2) if len(values) == 1 else list(values)


def _expand(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    margins: list[tuple[int, int]],
    dilation: Sequence[int],
    groups: int,
) -> Tensor:
    if max(dilation) == 1:
        return NotImplemented  # type: ignore[no-any-return]  # the contract's answer
    batch = x if x.dim() == weight.dim() else x.unsqueeze(0)
    strides, steps = _each(stride, weight), _each(dilation, weight)
    result = dilated_convolution(batch, weight, bias, strides, margins, steps, groups)
    return result if x.dim() == weight.dim() else result.squeeze(0)


def on_planes(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """`F.conv2d`."""
    return torch.nn.functional.conv2d(x, weight, bias, **settings)


def on_volumes(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """`F.conv3d`."""
    return torch.nn.functional.conv3d(x, weight, bias, **settings)


@st.composite
def _cases(draw: st.DrawFn, dilated: bool, dtypes: Sequence[torch.dtype] = WIDE) -> Case:
    """Every argument, static and dynamic sizes, batched or not, an infinity or a NaN."""
    dims = draw(st.sampled_from((2, 2, 3)))
    dtype = draw(st.sampled_from(dtypes))
    kernel, stride = ([draw(st.integers(1, 3)) for _ in range(dims)] for _ in "ks")
    dilation = [draw(st.integers(1, 3)) if dilated else 1 for _ in range(dims)]
    dilation[draw(st.integers(0, dims - 1))] += int(dilated)
    groups = draw(st.integers(1, 2))
    settings: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    settings["padding"] = draw(st.sampled_from(("valid", "same", "numbers")))
    if settings["padding"] == "numbers":
        settings["padding"] = [draw(st.integers(0, 2)) for _ in range(dims)]
    elif settings["padding"] == "same":
        settings["stride"] = 1
    ins, outs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.randn(outs, ins // groups, *kernel, generator=generator, dtype=dtype)
    bias = torch.randn(outs, generator=generator, dtype=dtype) if draw(st.booleans()) else None
    batched, dynamic = draw(st.booleans()), draw(st.booleans())
    special = draw(st.sampled_from((0.0, math.inf, math.nan)))
    shortest = [step * (k - 1) + 1 for step, k in zip(dilation, kernel, strict=True)]
    shortest[0] += 3

    def inputs(extra: int) -> tuple[Any, ...]:
        lead = (2, ins) if batched else (ins,)
        spare = [1 if dynamic else draw(st.integers(0, 2)) for _ in shortest[1:]]
        rest = [size + more for size, more in zip(shortest[1:], spare, strict=True)]
        x = torch.randn(*lead, shortest[0] + extra, *rest, generator=generator, dtype=dtype)
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = special
        return x, weight, bias

    size = Dim("size", min=shortest[0], max=64)
    return Case(
        on_planes if dims == 2 else on_volumes,
        inputs(2),
        settings,
        fires=int(dilated),
        dynamic_shapes=(({int(batched) + 1: size}, None, None),) if dynamic else None,
        more_inputs=(inputs(draw(st.integers(3, 9))),) if dynamic else (),
    )


@hookimpl
def list_properties() -> Sequence[Property]:
    """Dilated convolutions fire once and equal eager; plain ones are left alone."""
    misfit = Case(
        on_planes, (torch.randn(1, 3, 5, 5), torch.randn(2, 2, 3, 3), None), {"dilation": 2}
    )
    refused = [Refusal("channels that do not fit", misfit, Exception, "channels")]
    return [
        Property("equals-eager", _cases(True), CLOSE, refused=refused),
        Property("halves-equal-eager", _cases(True, HALVES), ROUNDED),
        Property("plain-ones-are-left-alone", _cases(False), CLOSE),
    ]
