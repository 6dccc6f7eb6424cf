"""`F.interpolate(x, size, mode="bilinear" or "bicubic", antialias=True)` as Triton kernels.

Height and width in one launch that reads the image once. Where a bilinear filter at least halves
the height it makes the windows too, elsewhere a second, small one does. Bytes are summed in fixed
point, as ATen's CPU kernel sums them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.resample import resize_operators

from .operator import resize


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="antialiased bilinear and bicubic resizes as a Triton kernel")


@hookimpl
def list_kernels() -> Mapping[OpOverload, Callable[..., Tensor]]:
    """Both filters, with the output size given (`default`) or worked out from factors (`vec`)."""
    return resize_operators(resize)


@hookimpl
def list_properties() -> Sequence[Property]:
    """As ATen's CPU kernels, or by the formulas where those cannot be asked."""
    from .properties import PROPERTIES

    return PROPERTIES
