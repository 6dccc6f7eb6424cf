"""`torch.unique` and `unique_consecutive`: distinct ids, voxels of a point cloud, token sets.

PyTorch has kernels of its own for them, which ExecuTorch's CUDA runtime lacks ("missing fallback
kernels: _unique2"). Here the elements are sorted, what differs from its neighbour begins a run,
and the number of runs, the size of the result, is read by the host once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch
from torch._ops import OpOverload

from graftwork.plugins import Declined, PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.kernels import kernel_op
from graftwork.plugins.toolkit.symbolic import known
from graftwork.plugins.torch_private import upper_bound

from ..index_put.operators import count_as_size, mask_counts, mask_positions, mask_values
from ..sort.operators import sort
from ..stages.arguments import refuse_unsupported
from ..stages.mask import walk
from . import kernels

MOST_COLUMNS = 64
"""Each column of a row to be compared is one more sort."""

Triple = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
aten = torch.ops.aten


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="unique and unique_consecutive by Triton kernels")


@hookimpl
def list_kernels() -> Mapping[OpOverload, Callable[..., object]]:
    """Of all elements, and of slices along a dim."""
    return {
        aten._unique2.default: _unique,
        aten.unique_dim.default: _unique_dim,
        aten.unique_consecutive.default: _unique_consecutive,
    }


@hookimpl
def list_properties() -> Sequence[Property]:
    """Distinct elements, where each one is, and how often."""
    from .properties import properties

    return properties()


@kernel_op("graftwork::runs")
def runs(
    first: torch.Tensor,
    found: torch.Tensor,
    order: torch.Tensor | None,
    count: int,
    return_inverse: bool,
    return_counts: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The run of each element, (N), and the length of each run, (count), int64.

    `first` (N) says where runs begin, and `found` is what `mask_counts` gives for it. Element
    `p` of the runs is element `order[p]` of the first result, p itself without `order`. What is
    not asked for has the shape (0).
    """
    size = first.numel()
    lengths = size if return_inverse else 0, count if return_counts else 0
    inverse = first.new_empty(lengths[0], dtype=torch.int64)
    counts = first.new_zeros(lengths[1], dtype=torch.int64)
    options = {"ORDERED": order is not None, "INVERSE": return_inverse, "COUNTS": return_counts}
    places = found if order is None else order
    walk(kernels.write_runs, first, found, places, inverse, counts, count, **options)
    return inverse, counts


def _unique(
    x: torch.Tensor,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Triple:
    """Ascending, whether that is asked for or not; each NaN is an element of its own."""
    refuse_unsupported(x)
    values, order = sort(x.reshape(-1), 0, False)
    return _of_elements(x, values, order, return_inverse, return_counts)


def _unique_dim(
    x: torch.Tensor,
    dim: int,
    sorted: bool = True,
    return_inverse: bool = False,
    return_counts: bool = False,
) -> Triple:
    """Slices in lexicographic order: sorted by the last column first, stably, up to the first."""
    rows = _slices(x, dim)
    columns = rows.shape[1]
    if not known(columns <= MOST_COLUMNS):
        raise Declined(f"slices of {columns} elements; at most {MOST_COLUMNS} are compared")
    order = sort(rows[:, -1], 0, False)[1]
    for column in reversed(range(columns - 1)):
        order = order[sort(rows[:, column][order], 0, False)[1]]
    return _of_slices(x, dim, rows[order], order, return_inverse, return_counts)


def _unique_consecutive(
    x: torch.Tensor,
    return_inverse: bool = False,
    return_counts: bool = False,
    dim: int | None = None,
) -> Triple:
    """One of every run of equal neighbours."""
    refuse_unsupported(x)
    if dim is None:
        return _of_elements(x, x.reshape(-1), None, return_inverse, return_counts)
    return _of_slices(x, dim, _slices(x, dim), None, return_inverse, return_counts)


def _of_elements(
    x: torch.Tensor,
    values: torch.Tensor,
    order: torch.Tensor | None,
    return_inverse: bool,
    return_counts: bool,
) -> Triple:
    """Of the runs of `values`, which are the elements of `x` in `order`."""
    first = _begins(values)
    found, total = mask_counts(first)
    count = _bounded(count_as_size(total, first), first)
    inverse, counts = runs(first, found, order, count, return_inverse, return_counts)
    distinct = mask_values(values, first, found, count)
    return distinct, inverse.view(x.shape) if return_inverse else inverse, counts


def _of_slices(
    x: torch.Tensor,
    dim: int,
    rows: torch.Tensor,
    order: torch.Tensor | None,
    return_inverse: bool,
    return_counts: bool,
) -> Triple:
    """Of the runs of `rows`, which are the slices of `x` along `dim` in `order`."""
    if x.device.type == "cpu":  # there ATen answers both, asked or not, and so does a trace
        return_inverse = return_counts = True
    first = _begins(rows)
    found, total = mask_counts(first)
    count = _bounded(count_as_size(total, first), first)
    inverse, counts = runs(first, found, order, count, return_inverse, return_counts)
    place = mask_positions(first, found, count)[:, 0]
    distinct = rows[place].view(count, *x.movedim(dim, 0).shape[1:])
    return distinct.movedim(0, dim), inverse, counts


def _slices(x: torch.Tensor, dim: int) -> torch.Tensor:
    """One row a slice: (x.shape[dim], elements of a slice)."""
    refuse_unsupported(x)
    rows = x.movedim(dim, 0)
    columns = math.prod(rows.shape[1:])
    if not isinstance(columns, int) or columns == 0:
        raise Declined(f"slices of {columns} elements")
    return rows.reshape(rows.shape[0], columns)


def _begins(rows: torch.Tensor) -> torch.Tensor:
    """Which elements, or rows, differ from the one before; the first one does."""
    place = torch.arange(rows.shape[0], device=rows.device)
    differs = rows != rows[(place - 1).clamp(min=0)]
    return (differs if rows.dim() == 1 else differs.any(1)) | (place == 0)


def _bounded(count: int, first: torch.Tensor) -> int:
    """The count; a program checks it against its largest value, by which memory is planned.

    Export says so itself of `nonzero`, but of `unique` only where the input's size is fixed.
    """
    most = upper_bound(first.numel())
    if isinstance(count, torch.SymInt) and most is not None:
        aten._assert_scalar.default(count <= most, f"more than {most} distinct elements")
    return count
