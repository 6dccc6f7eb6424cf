"""`F.interpolate(x, size, mode="bilinear" or "bicubic", antialias=True)`: resizes of images.

Inductor has no lowering for the antialiased resizes and ExecuTorch has no kernel, so image
preprocessing and position-embedding resizes do not lower. A resize is separable: the width, then
the height, each as a weighted sum over every output's window.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence

from torch._ops import OpOverload

from graftwork.plugins import LoweringContext, PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.resample import resize_operators

from .properties import PROPERTIES
from .sums import Runner, resize


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="antialiased bilinear and bicubic resizes as weighted sums")


@hookimpl
def list_decompositions(context: LoweringContext) -> Mapping[OpOverload, Callable[..., object]]:
    """Both filters, with the output size given (`default`) or worked out from factors (`vec`)."""
    runs_on: Runner = "interpreter"
    if context.target != "cpu":
        runs_on = "cuda" if context.device == "cuda" else "cpu"
    return resize_operators(functools.partial(resize, runs_on=runs_on))


@hookimpl
def list_properties() -> Sequence[Property]:
    """Per dtype as ATen's CPU kernels; by the formulas where those cannot be asked."""
    return PROPERTIES
