"""`nn.Conv1d` and `nn.ConvTranspose1d`: audio encoders, state-space models, action heads.

Inductor's convolution template, the only one ExecuTorch's CUDA delegate can take, is
two-dimensional. A convolution over a length is one over an image of height 1; for CUDA one without
dilation or transposition, which the template does not have.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.export import Dim

from graftwork.plugins import (
    Case,
    LoweringContext,
    PluginInfo,
    Property,
    Refusal,
    hookimpl,
)
from graftwork.plugins.toolkit.convolutions import (
    dilated_convolution,
    transposed_convolution,
    widen,
)
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
    return PluginInfo(summary="one-dimensional convolutions as two-dimensional ones of height 1")


@hookimpl
def list_decompositions(
    context: LoweringContext,
) -> Mapping[OpOverload, Callable[..., object]]:
    """The composite forms that export keeps, and what they decompose to."""
    form = _Plain() if context.target == "cuda" else _Stock()
    return {
        aten.conv1d.default: form.conv1d,
        aten.conv1d.padding: form.conv1d_padding,
        aten.conv_transpose1d.default: form.conv_transpose1d,
        aten.convolution.default: form.convolution,
    }


class _Stock:
    """The two-dimensional convolutions of ATen."""

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        margins: tuple[int, int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        """Of images (N, C, 1, L)."""
        before, after = margins
        if before != after:
            x, before = widen(x, [margins]), 0
        result: Tensor = aten.conv2d.default(
            x, weight, bias, stride, [0, before], dilation, groups
        )
        return result

    def transposed(self, *arguments: Any) -> Tensor:
        """Of images (N, C, 1, L); the arguments of `aten.conv_transpose2d`."""
        result: Tensor = aten.conv_transpose2d.input(*arguments)
        return result

    def conv1d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Tensor:
        """`input` (N, C, L) or (C, L)."""
        margins = (padding[-1], padding[-1])
        return self._of_images(input, weight, bias, stride, margins, dilation, groups)

    def conv1d_padding(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] = (1,),
        padding: str = "valid",
        dilation: Sequence[int] = (1,),
        groups: int = 1,
    ) -> Tensor:
        """`padding` is `valid` or `same`, which adds the odd one at the end."""
        reach = dilation[-1] * (weight.shape[-1] - 1) if padding == "same" else 0
        margins = (reach // 2, reach - reach // 2)
        return self._of_images(input, weight, bias, stride, margins, dilation, groups)

    def _of_images(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        margins: tuple[int, int],
        dilation: Sequence[int],
        groups: int,
    ) -> Tensor:
        batch = input if input.dim() == 3 else input.unsqueeze(0)
        result = self.forward(
            batch.unsqueeze(-2),
            weight.unsqueeze(-2),
            bias,
            [1, stride[-1]],
            margins,
            [1, dilation[-1]],
            groups,
        ).squeeze(-2)
        return result if input.dim() == 3 else result.squeeze(0)

    def conv_transpose1d(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        stride: Sequence[int] = (1,),
        padding: Sequence[int] = (0,),
        output_padding: Sequence[int] = (0,),
        groups: int = 1,
        dilation: Sequence[int] = (1,),
    ) -> Tensor:
        """`input` (N, C, L) or (C, L)."""
        batch = input if input.dim() == 3 else input.unsqueeze(0)
        result = self.transposed(
            batch.unsqueeze(-2),
            weight.unsqueeze(-2),
            bias,
            [1, stride[-1]],
            [0, padding[-1]],
            [0, output_padding[-1]],
            groups,
            [1, dilation[-1]],
        ).squeeze(-2)
        return result if input.dim() == 3 else result.squeeze(0)

    def convolution(
        self,
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: Sequence[int],
        padding: Sequence[int],
        dilation: Sequence[int],
        transposed: bool,
        output_padding: Sequence[int],
        groups: int,
    ) -> Tensor:
        """`input` (N, C, L); one over more spatial dims is not ours."""
        if weight.dim() != 3:
            return NotImplemented  # type: ignore[no-any-return]  # the contract's answer
        if transposed:
            return self.conv_transpose1d(
                input, weight, bias, stride, padding, output_padding, groups, dilation
            )
        return self.conv1d(input, weight, bias, stride, padding, dilation, groups)


class _Plain(_Stock):
    """Without dilation or transposition, for which Inductor has no template."""

    def forward(
        self,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        stride: list[int],
        margins: tuple[int, int],
        dilation: list[int],
        groups: int,
    ) -> Tensor:
        """Of images (N, C, 1, L)."""
        if dilation == [1, 1]:
            return super().forward(x, weight, bias, stride, margins, dilation, groups)
        both = [(0, 0), margins]
        return dilated_convolution(x, weight, bias, stride, both, dilation, groups)

    def transposed(self, *arguments: Any) -> Tensor:
        """Of images (N, C, 1, L); the arguments of `aten.conv_transpose2d`."""
        return transposed_convolution(*arguments)


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
def _cases(
    draw: st.DrawFn,
    programs: Sequence[Callable[..., Tensor]] = (convolved, transposed, lowest_form),
    dtypes: Sequence[torch.dtype] = WIDE,
) -> Case:
    """Every argument of the three forms, static and dynamic lengths, batched or not."""
    program, dtype = draw(st.sampled_from(programs)), draw(st.sampled_from(dtypes))
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
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    weight = torch.randn(shape, generator=generator, dtype=dtype)
    bias = torch.randn(outs, generator=generator, dtype=dtype) if draw(st.booleans()) else None
    batched = program is lowest_form or draw(st.booleans())
    shortest = (kernel - 1) * dilation + 2
    dynamic = draw(st.booleans())

    def inputs(extra: int) -> tuple[Any, ...]:
        lead = (2, ins) if batched else (ins,)
        sizes = (*lead, shortest + 3 + extra)
        return torch.randn(sizes, generator=generator, dtype=dtype), weight, bias

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
    refused = [Refusal("channels that do not fit", misfit, Exception, "channels")]
    return [
        Property("lengths-equal-eager", _cases(), CLOSE, refused=refused),
        Property("halves-equal-eager", _cases((convolved,), HALVES), ROUNDED),
        Property(
            "transposed-halves-are-rounded-once-or-twice",
            _cases((transposed,), HALVES),
            ROUNDED,
            reference=rounded(transposed),
            reference_reason=WHY_ROUNDED,
        ),
        Property("planes-are-left-alone", st.just(plane)),
    ]
