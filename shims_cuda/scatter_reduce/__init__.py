"""`x.scatter_reduce(dim, index, src, reduce)` and `x.scatter_add(dim, index, src)`.

The stock delegate lowers amax, amin, prod, mean and int64 sums without a word into a call that its
runtime does not have (pytorch/pytorch#101105 tells the same of deterministic mode); the sum of
floats differs from run to run. Here a result is a function of the inputs alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from graftwork.plugins import Declined, PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.kernels import kernel_op

from ..stages.arguments import checked_by_aten, refuse_unsupported
from ..stages.problem import check_range, solve
from ..stages.reduce import reduce_problem

aten = torch.ops.aten


@dataclass(frozen=True)
class Options:
    """Options of `scatter-reduce`.

    Attributes:
        deterministic: add floats in a fixed order. False allows the order the GPU happens to
            take, which is faster where the index has few columns; it is ignored while
            `torch.use_deterministic_algorithms` is on.
    """

    deterministic: bool = True


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="scatter_reduce and scatter_add as Triton kernels, in a fixed order",
        options=Options,
    )


@hookimpl
def list_kernels(options: Options) -> Mapping[OpOverload, Callable[..., Any]]:
    """Reductions of scatter, in their several spellings."""
    deterministic = options.deterministic or torch.are_deterministic_algorithms_enabled()
    return {
        aten.scatter_reduce.two: partial(_scatter_reduce, deterministic=deterministic),
        aten.scatter_add.default: partial(_scatter_add, deterministic=deterministic),
        aten.scatter.reduce: partial(_scatter_with, deterministic=deterministic),
    }


@hookimpl
def list_properties() -> Sequence[Property]:
    """Properties, refused inputs and benchmark sizes."""
    from .properties import properties

    return properties()


@kernel_op("graftwork::scatter_reduce")
def scatter_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    include_self: bool,
    deterministic: bool,
) -> torch.Tensor:
    """`aten.scatter_reduce.two`; contiguous.

    Elements that the index does not name are unchanged. Half and bfloat16 sums add in float32 and
    round once; a product rounds at every step; a mean rounds its sum, then divides (integers
    round down) by a count that wraps in the dtype; amax and amin propagate NaN; a sum of bool is
    a logical or.

    Raises:
        RuntimeError: an index outside [0, self.size(dim)), on the CPU. A GPU stops at a device
            assert where asserts are compiled in, and drops the value where they are not.
    """
    check_range(index, self, dim)
    kernel = partial(
        reduce_problem, reduce=reduce, include_self=include_self, deterministic=deterministic
    )
    return solve(self, dim, index, src, kernel)


def _scatter_reduce(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    reduce: str,
    *,
    include_self: bool = True,
    deterministic: bool,
) -> torch.Tensor:
    refuse_unsupported(self)
    checked_by_aten(aten.scatter_reduce.two, self, dim, index, src, reduce)
    if self.dtype == torch.bool and reduce != "sum":
        raise Declined(f"bool has no scatter_reduce by {reduce}, only by sum (a logical or)")
    return scatter_reduce(self, dim, index, src, reduce, include_self, deterministic)


def _scatter_add(
    self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor, *, deterministic: bool
) -> torch.Tensor:
    refuse_unsupported(self)
    checked_by_aten(aten.scatter_add.default, self, dim, index, src)
    return scatter_reduce(self, dim, index, src, "sum", True, deterministic)


def _scatter_with(
    self: torch.Tensor,
    dim: int,
    index: torch.Tensor,
    src: torch.Tensor,
    *,
    reduce: str,
    deterministic: bool,
) -> torch.Tensor:
    refuse_unsupported(self)
    checked_by_aten(aten.scatter.src, self, dim, index, src)
    names = {"add": "sum", "multiply": "prod"}
    if reduce not in names:
        raise Declined(f"scatter has no reduction '{reduce}'")
    if self.dtype == torch.bool and reduce != "add":
        raise Declined("bool has no scatter by multiply, only by add (a logical or)")
    return scatter_reduce(self, dim, index, src, names[reduce], True, deterministic)
