"""`x.reshape(...)` where a view will not do, which functionalization writes as `_reshape_copy`.

Inductor calls ATen for `aten._reshape_copy` and ExecuTorch's CUDA delegate has no such kernel. It
is a contiguous copy viewed in the new shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import PluginInfo, hookimpl
from graftwork.plugins.toolkit.symbolic import Size


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="_reshape_copy as a contiguous clone and a view")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The one overload."""
    return {torch.ops.aten._reshape_copy.default: _reshape_copy}


def _reshape_copy(self: Tensor, size: Sequence[Size]) -> Tensor:
    """As ATen: one size may be -1; the result is contiguous and never an alias of `self`."""
    return self.clone(memory_format=torch.contiguous_format).view(size)
