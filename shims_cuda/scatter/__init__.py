"""`x.scatter(dim, index, src)` and `x.scatter(dim, index, value)`, the last write in index order.

PyTorch's CUDA kernel keeps any one of several values that land on one element, and its
deterministic mode sorts; the stock delegate calls a library kernel for int64 and bool that its
runtime does not have. Here the last in index order always wins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from graftwork.plugins import PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.kernels import kernel_op

from ..stages.arguments import checked_by_aten, refuse_unsupported
from ..stages.last_writer import fill, last_writer
from ..stages.problem import check_range, solve

aten = torch.ops.aten


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="scatter as Triton kernels; the last write in index order wins")


@hookimpl
def list_kernels() -> Mapping[OpOverload, Callable[..., Any]]:
    """Both forms of scatter without a reduction."""
    return {aten.scatter.src: _scatter_src, aten.scatter.value: _scatter_value}


@hookimpl
def list_properties() -> Sequence[Property]:
    """Properties, refused inputs and benchmark sizes."""
    from .properties import properties

    return properties()


@kernel_op("graftwork::scatter_src")
def scatter_src(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> torch.Tensor:
    """`aten.scatter.src`: out[..., index[k], ...] = src[k], in index order; contiguous.

    Raises:
        RuntimeError: an index outside [0, self.size(dim)), on the CPU. A GPU stops at a device
            assert where asserts are compiled in, and drops the write where they are not.
    """
    check_range(index, self, dim)
    return solve(self, dim, index, src, last_writer)


@kernel_op("graftwork::scatter_value")
def scatter_value(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: torch.Tensor
) -> torch.Tensor:
    """`aten.scatter.value`, the value given as a 0-d tensor of self's dtype; contiguous.

    Raises:
        RuntimeError: as `scatter_src`.
    """
    check_range(index, self, dim)
    return solve(self, dim, index, value.expand(index.shape), fill)


def _scatter_src(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor
) -> torch.Tensor:
    refuse_unsupported(self)
    checked_by_aten(aten.scatter.src, self, dim, index, src)
    return scatter_src(self, dim, index, src)


def _scatter_value(
    self: torch.Tensor, dim: int, index: torch.Tensor, value: float | bool
) -> torch.Tensor:
    refuse_unsupported(self)
    checked_by_aten(aten.scatter.value, self, dim, index, value)
    filled = torch.full((), value, dtype=self.dtype, device=self.device)
    return scatter_value(self, dim, index, filled)
