"""`aten._is_all_true`, which vision-language models reach through checks on their masks.

ExecuTorch and Inductor have no kernel for it; over bool it is `all`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import Declined, PluginInfo, hookimpl


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="_is_all_true as all")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The one overload."""
    return {torch.ops.aten._is_all_true.default: _is_all_true}


def _is_all_true(self: Tensor) -> Tensor:
    """A 0-d bool; True for an empty tensor."""
    if self.dtype != torch.bool:
        raise Declined(f"ATen takes bool only, not {self.dtype}")
    return self.all()
