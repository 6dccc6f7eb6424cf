"""`nn.ConvTranspose2d`, `nn.ConvTranspose3d`: decoders of segmentation, depth and image models.

Inductor has no template for a transposed convolution; without cuDNN, which ExecuTorch's CUDA
runtime lacks, there is "no choice to select". The phases of the result are channels of plain
convolutions, interleaved after them.
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
from graftwork.plugins.toolkit.convolutions import transposed_convolution
from graftwork.plugins.toolkit.float_cases import (
    CLOSE,
    HALVES,
    ROUNDED,
    WHY_ROUNDED,
    WIDE,
    rounded,
)

aten = torch.ops.aten


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="transposed convolutions as plain ones whose channels are interleaved",
        targets=frozenset({"cuda"}),
    )


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The forms that export keeps."""
    return {
        aten.conv_transpose2d.input: _expand,
        aten.conv_transpose3d.input: _expand,
    }


def _expand(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1,),
    padding: Sequence[int] = (0,),
    output_padding: Sequence[int] = (0,),
    groups: int = 1,
    dilation: Sequence[int] = (1,),
) -> Tensor:
    """`input` (N, C, *sizes) or (C, *sizes); a list of one number stands for every dim."""
    dims = weight.dim() - 2
    strides, paddings, ends, steps = (
        list(values) * dims if len(values) == 1 else list(values)
        for values in (stride, padding, output_padding, dilation)
    )
    batch = input if input.dim() == dims + 2 else input.unsqueeze(0)
    result = transposed_convolution(batch, weight, bias, strides, paddings, ends, groups, steps)
    return result if input.dim() == dims + 2 else result.squeeze(0)


def on_planes(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """`F.conv_transpose2d`."""
    return torch.nn.functional.conv_transpose2d(x, weight, bias, **settings)


def on_volumes(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """`F.conv_transpose3d`."""
    return torch.nn.functional.conv_transpose3d(x, weight, bias, **settings)


def on_either(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """`on_planes` or `on_volumes`, as the kernel has dims."""
    return (on_planes if weight.dim() == 4 else on_volumes)(x, weight, bias, **settings)


def plain(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution that is not this plugin's."""
    return torch.nn.functional.conv2d(x, weight)


@st.composite
def _cases(draw: st.DrawFn, dtypes: Sequence[torch.dtype]) -> Case:
    """Every argument, static and dynamic sizes, batched or not, an infinity or a NaN."""
    dims = draw(st.sampled_from((2, 2, 3)))
    dtype = draw(st.sampled_from(dtypes))

    def numbers(least: int, most: int) -> list[int]:
        return [draw(st.integers(least, most)) for _ in range(dims)]

    groups, kernel, stride, dilation = draw(st.integers(1, 2)), *(numbers(1, 3) for _ in "ksd")
    settings: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    reach = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
    settings["padding"] = [draw(st.integers(0, min(2, most))) for most in reach]
    tops = [max(s, d) - 1 for s, d in zip(stride, dilation, strict=True)]
    settings["output_padding"] = [draw(st.integers(0, top)) for top in tops]
    ins, outs = groups * draw(st.integers(1, 2)), draw(st.integers(1, 2))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.randn(ins, outs, *kernel, generator=generator, dtype=dtype)
    bias = (
        torch.randn(outs * groups, generator=generator, dtype=dtype)
        if draw(st.booleans())
        else None
    )
    batched, dynamic = draw(st.booleans()), draw(st.booleans())
    special = draw(st.sampled_from((0.0, math.inf, math.nan)))

    def inputs(extra: int) -> tuple[Any, ...]:
        lead = (2, ins) if batched else (ins,)
        sizes = (
            [size + 2 for size in numbers(1, 3)] if not dynamic else [4 + extra, *[3] * (dims - 1)]
        )
        x = torch.randn(*lead, *sizes, generator=generator, dtype=dtype)
        x.view(-1)[draw(st.integers(0, x.numel() - 1))] = special
        return x, weight, bias

    size = Dim("size", min=3, max=32)
    return Case(
        on_planes if dims == 2 else on_volumes,
        inputs(1),
        settings,
        dynamic_shapes=(({int(batched) + 1: size}, None, None),) if dynamic else None,
        more_inputs=(inputs(draw(st.integers(2, 9))),) if dynamic else (),
    )


@hookimpl
def list_properties() -> Sequence[Property]:
    """Transposed convolutions fire once and equal eager; plain ones are left alone."""
    other = Case(plain, (torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3)), fires=0)
    misfit = Case(on_planes, (torch.randn(1, 3, 5, 5), torch.randn(2, 2, 3, 3), None))
    refused = [Refusal("channels that do not fit", misfit, Exception, "channels")]
    return [
        Property("equals-eager", _cases(WIDE), CLOSE, refused=refused),
        Property(
            "halves-are-rounded-once-or-twice",
            _cases(HALVES),
            ROUNDED,
            reference=rounded(on_either),
            reference_reason=WHY_ROUNDED,
        ),
        Property("plain-ones-are-left-alone", st.just(other)),
    ]
