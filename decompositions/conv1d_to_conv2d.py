"""`nn.Conv1d` and `nn.ConvTranspose1d`: audio encoders, state-space models, action heads.

Inductor's convolution template, the only one ExecuTorch's CUDA delegate can take, is
two-dimensional. A convolution over a length is one over an image of height 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import PluginInfo, hookimpl
from graftwork.plugins.toolkit.symbolic import Size

aten = torch.ops.aten


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="one-dimensional convolutions as two-dimensional ones of height 1")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The composite forms that export keeps, and what they decompose to."""
    return {
        aten.conv1d.default: _conv1d,
        aten.conv1d.padding: _conv1d_padding,
        aten.conv_transpose1d.default: _conv_transpose1d,
        aten.convolution.default: _convolution,
    }


def _conv1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[Size] = (1,),
    padding: Sequence[Size] = (0,),
    dilation: Sequence[Size] = (1,),
    groups: int = 1,
) -> Tensor:
    """`input` (N, C, L) or (C, L)."""
    return aten.conv2d.default(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        _with_height(padding, 0),
        _with_height(dilation, 1),
        groups,
    ).squeeze(-2)


def _conv1d_padding(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[Size] = (1,),
    padding: str = "valid",
    dilation: Sequence[Size] = (1,),
    groups: int = 1,
) -> Tensor:
    """`padding` is `valid` or `same`; over the height of 1 both add nothing."""
    return aten.conv2d.padding(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        padding,
        _with_height(dilation, 1),
        groups,
    ).squeeze(-2)


def _conv_transpose1d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[Size] = (1,),
    padding: Sequence[Size] = (0,),
    output_padding: Sequence[Size] = (0,),
    groups: int = 1,
    dilation: Sequence[Size] = (1,),
) -> Tensor:
    """`input` (N, C, L) or (C, L)."""
    return aten.conv_transpose2d.input(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        _with_height(padding, 0),
        _with_height(output_padding, 0),
        groups,
        _with_height(dilation, 1),
    ).squeeze(-2)


def _convolution(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[Size],
    padding: Sequence[Size],
    dilation: Sequence[Size],
    transposed: bool,
    output_padding: Sequence[Size],
    groups: int,
) -> Tensor:
    """`input` (N, C, L); one over more spatial dims is not ours."""
    if weight.dim() != 3:
        return NotImplemented
    return aten.convolution.default(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        _with_height(padding, 0),
        _with_height(dilation, 1),
        transposed,
        _with_height(output_padding, 0),
        groups,
    ).squeeze(-2)


def _with_height(values: Sequence[Size], height: Size) -> list[Size]:
    """The arguments of two dims; a list of one value may stand for every dim."""
    return [height, values[-1]]
