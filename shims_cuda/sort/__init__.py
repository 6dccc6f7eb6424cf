"""`torch.sort`, `argsort`, `msort`, `topk`, `kthvalue` and `median` in programs for a GPU.

Sorting is stable, ascending and descending, along any dimension: NaN is the greatest value, -0.0
equals 0.0, values come back with their own bits. A top-k is sorted, and of equal values takes
those that come first. Rows of up to 8192 elements are sorted in one launch by a network inside a
program, longer ones by a radix sort; a top-k of long rows sorts only what stands behind the best
groups. Nothing is read back to the host, no program waits for another, and results do not change
from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch._ops import OpOverload

from graftwork.plugins import Declined, PluginInfo, Property, hookimpl
from graftwork.shims_cuda.sort import operators
from graftwork.shims_cuda.sort.rows import LONGEST_ROW, fits

DTYPES = frozenset(
    {
        torch.float64,
        torch.float32,
        torch.float16,
        torch.bfloat16,
        torch.int8,
        torch.int16,
        torch.int32,
        torch.int64,
        torch.uint8,
        torch.bool,
    }
)
Pair = tuple[torch.Tensor, torch.Tensor]
aten = torch.ops.aten


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="sort, argsort, topk, kthvalue and median by Triton kernels")


@hookimpl
def list_kernels() -> Mapping[OpOverload, Callable[..., object]]:
    """Sorting in all its forms, and what is an element of a sorted row."""
    return {
        aten.sort.default: _sort,
        aten.sort.stable: _sort_stable,
        aten.argsort.default: _argsort,
        aten.argsort.stable: _argsort_stable,
        aten.msort.default: _msort,
        aten.topk.default: _topk,
        aten.kthvalue.default: _kthvalue,
        aten.median.default: _median,
        aten.median.dim: _median_dim,
    }


@hookimpl
def list_properties() -> Sequence[Property]:
    """Sorting and selecting give what eager gives."""
    from graftwork.shims_cuda.sort.promises import PROPERTIES

    return PROPERTIES


def _sort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> Pair:
    _check(x, dim)
    values, indices = torch.ops.graftwork.sort(x, dim, descending)
    return values, indices


def _sort_stable(
    x: torch.Tensor, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> Pair:
    return _sort(x, dim, descending)


def _argsort(x: torch.Tensor, dim: int = -1, descending: bool = False) -> torch.Tensor:
    return _sort(x, dim, descending)[1]


def _argsort_stable(
    x: torch.Tensor, *, stable: bool, dim: int = -1, descending: bool = False
) -> torch.Tensor:
    return _sort(x, dim, descending)[1]


def _msort(x: torch.Tensor) -> torch.Tensor:
    return _sort(x, 0)[0]


def _topk(
    x: torch.Tensor, k: int, dim: int = -1, largest: bool = True, sorted: bool = True
) -> Pair:
    _check(x, dim)
    values, indices = torch.ops.graftwork.topk(x, k, dim, largest)
    return values, indices


def _kthvalue(x: torch.Tensor, k: int, dim: int = -1, keepdim: bool = False) -> Pair:
    _check(x, dim)
    size = x.shape[dim] if x.dim() else 1
    torch._check(  # type: ignore[no-untyped-call]
        1 <= k <= size, lambda: f"kthvalue of {k} along a dimension of size {size}"
    )
    return operators.kth_in_order(x, k - 1, dim, keepdim)


def _median(x: torch.Tensor) -> torch.Tensor:
    if fits(x.numel(), 0):
        raise Declined("the median of an empty tensor")
    return _median_dim(x.reshape(-1), 0)[0]


def _median_dim(x: torch.Tensor, dim: int, keepdim: bool = False) -> Pair:
    """The lower of two middle values; where the row holds a NaN, the first of these."""
    _check(x, dim)
    size = x.shape[dim] if x.dim() else 1
    middle = (size - 1) // 2
    if not x.is_floating_point():
        return operators.kth_in_order(x, middle, dim, keepdim)
    numbers = (~x.isnan()).sum(dim, keepdim=True)
    place = torch.where(numbers < size, numbers, middle)
    return operators.kth_in_order(x, place, dim, keepdim)


def _check(x: torch.Tensor, dim: int) -> None:
    if x.dtype not in DTYPES:
        raise Declined(f"no kernel sorts {x.dtype}")
    size = x.shape[dim] if x.dim() else 1
    if isinstance(size, int) and size > LONGEST_ROW:
        raise Declined(f"a row of {size} elements; the longest is {LONGEST_ROW}")
