"""`nn.Conv1d` and `nn.ConvTranspose1d`: audio encoders, state-space models, action heads.

Inductor's convolution template, the only one ExecuTorch's CUDA delegate can take, is
two-dimensional. A convolution over a length is one over an image of height 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.export import Dim

from graftwork.plugins import Case, PluginInfo, Property, Refusal, Tolerance, hookimpl
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
    result: Tensor = aten.conv2d.default(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        _with_height(padding, 0),
        _with_height(dilation, 1),
        groups,
    )
    return result.squeeze(-2)


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
    result: Tensor = aten.conv2d.padding(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        padding,
        _with_height(dilation, 1),
        groups,
    )
    return result.squeeze(-2)


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
    result: Tensor = aten.conv_transpose2d.input(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        _with_height(padding, 0),
        _with_height(output_padding, 0),
        groups,
        _with_height(dilation, 1),
    )
    return result.squeeze(-2)


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
        return NotImplemented  # type: ignore[no-any-return]  # the contract's answer
    result: Tensor = aten.convolution.default(
        input.unsqueeze(-2),
        weight.unsqueeze(-2),
        bias,
        _with_height(stride, 1),
        _with_height(padding, 0),
        _with_height(dilation, 1),
        transposed,
        _with_height(output_padding, 0),
        groups,
    )
    return result.squeeze(-2)


def _with_height(values: Sequence[Size], height: Size) -> list[Size]:
    """The arguments of two dims; a list of one value may stand for every dim."""
    return [height, values[-1]]


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """`F.conv1d`."""
    return torch.nn.functional.conv1d(x, weight, bias, **settings)


def transposed(x: Tensor, weight: Tensor, bias: Tensor | None, **settings: Any) -> Tensor:
    """`F.conv_transpose1d`."""
    return torch.nn.functional.conv_transpose1d(x, weight, bias, **settings)


def lowest_form(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, transposed: bool, **settings: Any
) -> Tensor:
    """`aten.convolution`, which the others decompose to."""
    lists = {name: [settings.get(name, 0)] for name in ("padding", "output_padding")}
    return torch.convolution(
        x,
        weight,
        bias,
        [settings["stride"]],
        lists["padding"],
        [settings["dilation"]],
        transposed,
        lists["output_padding"],
        settings["groups"],
    )


def two_dimensional(x: Tensor, weight: Tensor) -> Tensor:
    """A convolution that is not this plugin's."""
    return torch.nn.functional.conv2d(x, weight)


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    """Every argument of the three forms, static and dynamic lengths, batched or not."""
    program = draw(st.sampled_from((convolved, transposed, lowest_form)))
    turned = program is transposed or (program is lowest_form and draw(st.booleans()))
    groups, kernel = draw(st.integers(1, 3)), draw(st.integers(1, 4))
    stride, dilation = draw(st.integers(1, 3)), draw(st.integers(1, 3))
    settings: dict[str, Any] = {"stride": stride, "dilation": dilation, "groups": groups}
    if program is convolved and draw(st.booleans()):
        settings["padding"] = draw(st.sampled_from(("valid", "same")))
        if settings["padding"] == "same":
            settings["stride"] = 1
    else:
        settings["padding"] = draw(st.integers(0, 2))
    if turned:
        settings["output_padding"] = draw(st.integers(0, max(stride, dilation) - 1))
    if program is lowest_form:
        settings["transposed"] = turned

    ins, outs = groups * draw(st.integers(1, 2)), groups * draw(st.integers(1, 2))
    shape = (ins, outs // groups, kernel) if turned else (outs, ins // groups, kernel)
    weight = torch.randn(shape)
    bias = torch.randn(outs) if draw(st.booleans()) else None
    batched = program is lowest_form or draw(st.booleans())
    shortest = (kernel - 1) * dilation + 2
    dynamic = draw(st.booleans())

    def inputs(extra: int) -> tuple[Any, ...]:
        lead = (2, ins) if batched else (ins,)
        return torch.randn(*lead, shortest + 3 + extra), weight, bias

    length = Dim("length", min=shortest + 3, max=64)
    return Case(
        program,
        inputs(2),
        settings,
        dynamic_shapes=(({int(batched) + 1: length}, None, None),) if dynamic else None,
        more_inputs=(inputs(draw(st.integers(0, 9))),) if dynamic else (),
    )


@hookimpl
def list_properties() -> Sequence[Property]:
    """One-dimensional convolutions fire once and equal eager; others are left alone."""
    plane = Case(two_dimensional, (torch.randn(1, 1, 5, 5), torch.randn(1, 1, 3, 3)), fires=0)
    misfit = Case(convolved, (torch.randn(1, 3, 5), torch.randn(1, 2, 3), None))
    return [
        Property(
            "lengths-equal-eager",
            _cases(),
            Tolerance(relative=1e-5, absolute=1e-5),
            refused=[Refusal("channels that do not fit", misfit, Exception, "channels")],
        ),
        Property("planes-are-left-alone", st.just(plane)),
    ]
