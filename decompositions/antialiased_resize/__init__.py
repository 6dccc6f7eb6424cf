"""`F.interpolate(x, size, mode="bilinear" or "bicubic", antialias=True)`: resizes of images.

Inductor has no lowering for the antialiased resizes and ExecuTorch has no kernel, so image
preprocessing and position-embedding resizes do not lower. A resize is separable: the width, then
the height, each as a weighted sum over every output's window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import LoweringContext, PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.resample import BICUBIC, BILINEAR, Filter
from graftwork.plugins.toolkit.symbolic import Size

from .properties import PROPERTIES
from .sums import Runner, resize


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="antialiased bilinear and bicubic resizes as weighted sums")


@hookimpl
def list_decompositions(context: LoweringContext) -> Mapping[OpOverload, Callable[..., object]]:
    """Both filters, with the output size given (`default`) or worked out from factors (`vec`)."""
    aten = torch.ops.aten
    runs_on: Runner = "interpreter"
    if context.target != "cpu":
        runs_on = "cuda" if context.device == "cuda" else "cpu"
    return {
        aten._upsample_bilinear2d_aa.default: _with_scales(BILINEAR, runs_on),
        aten._upsample_bilinear2d_aa.vec: _with_scale_factors(BILINEAR, runs_on),
        aten._upsample_bicubic2d_aa.default: _with_scales(BICUBIC, runs_on),
        aten._upsample_bicubic2d_aa.vec: _with_scale_factors(BICUBIC, runs_on),
    }


@hookimpl
def list_properties() -> Sequence[Property]:
    """Per dtype as ATen's CPU kernels; by the formulas where those cannot be asked."""
    return PROPERTIES


def _with_scales(filter: Filter, runs_on: Runner) -> Callable[..., Tensor]:
    def decomposition(
        input: Tensor,
        output_size: Sequence[Size],
        align_corners: bool,
        scales_h: float | None = None,
        scales_w: float | None = None,
    ) -> Tensor:
        return resize(input, output_size, filter, align_corners, (scales_h, scales_w), runs_on)

    return decomposition


def _with_scale_factors(filter: Filter, runs_on: Runner) -> Callable[..., Tensor]:
    def decomposition(
        input: Tensor,
        output_size: Sequence[Size] | None,
        align_corners: bool,
        scale_factors: Sequence[float] | None,
    ) -> Tensor:
        factors = scale_factors or (None, None)
        size = output_size or [
            _scaled(n, factor) for n, factor in zip(input.shape[2:], factors, strict=True)
        ]
        return resize(input, size, filter, align_corners, factors, runs_on)

    return decomposition


def _scaled(size: Size, factor: float | None) -> Size:
    """A size times a factor, rounded down; a whole factor stays in integers."""
    assert factor is not None
    if factor == int(factor):
        return size * int(factor)
    scaled: Size = torch.sym_int(size * factor)  # type: ignore[no-untyped-call]  # as in torch
    return scaled
