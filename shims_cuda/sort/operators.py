"""The custom operators `graftwork::sort` and `graftwork::topk`.

Both trace with symbolic sizes, and their kernels are compiled into the program.
"""

from __future__ import annotations

import math

import torch

from graftwork.plugins.toolkit.kernels import Int, kernel_op
from graftwork.shims_cuda.sort.rows import fits, sort_rows, topk_rows


@kernel_op("graftwork::sort")
def sort(x: torch.Tensor, dim: int, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices of ``x`` in stable order along ``dim``.

    NaN is the greatest value, whatever its sign; -0.0 and 0.0 are equal. Values keep their bits.
    Both results have the strides that ``torch.sort`` gives: those of ``x`` where it is dense.
    """
    if fits(x.numel(), 0) or x.dim() == 0:
        return x.clone(), torch.zeros_like(x, dtype=torch.int64)
    values, indices = sort_rows(_as_rows(x, dim), descending)
    return _laid_out_as(x, values, dim), _laid_out_as(x, indices, dim)


@kernel_op("graftwork::topk")
def topk(x: torch.Tensor, k: int, dim: int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``k`` values of ``x`` along ``dim`` and their int64 indices, both contiguous.

    As the first ``k`` of :func:`sort`, so equal values come by ascending index.

    Raises:
        RuntimeError: ``k`` is negative or more than the size of ``dim``.
    """
    size = x.shape[dim] if x.dim() else 1
    in_range = k >= 0 and k <= size
    torch._check(  # type: ignore[no-untyped-call]
        in_range, lambda: f"topk of {k} along a dimension of size {size}"
    )
    if x.dim() == 0:
        flat = topk(x.reshape(1), k, 0, largest)
        return flat[0].reshape(()), flat[1].reshape(())
    shape = list(x.shape)
    shape[dim] = k
    if fits(math.prod(shape), 0):
        return x.new_empty(shape), x.new_empty(shape, dtype=torch.int64)
    values, indices = topk_rows(_as_rows(x, dim), k, largest)
    return _from_rows(x, values, dim).contiguous(), _from_rows(x, indices, dim).contiguous()


def _as_rows(x: torch.Tensor, dim: int) -> torch.Tensor:
    moved = x.movedim(dim, -1)
    return moved.reshape(math.prod(moved.shape[:-1]), moved.shape[-1]).contiguous()


def _from_rows(x: torch.Tensor, result: torch.Tensor, dim: int) -> torch.Tensor:
    others = x.movedim(dim, -1).shape[:-1]
    return result.reshape(*others, result.shape[-1]).movedim(-1, dim)


def _laid_out_as(x: torch.Tensor, rows: torch.Tensor, dim: int) -> torch.Tensor:
    result = _from_rows(x, rows, dim)
    if x.movedim(dim, -1).is_contiguous():
        return result
    return torch.empty_like(x, dtype=result.dtype).copy_(result)


def kth_in_order(
    x: torch.Tensor, k: Int | torch.Tensor, dim: int, keepdim: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Value and index at place ``k`` (from 0) of the ascending stable order along ``dim``.

    ``k`` may be a tensor shaped like ``x`` with size 1 in ``dim``.
    """
    values, indices = torch.ops.graftwork.sort(x, dim, False)
    if x.dim() == 0:
        return values, indices
    if isinstance(k, torch.Tensor):
        found = values.gather(dim, k), indices.gather(dim, k)
    else:
        found = values.narrow(dim, k, 1), indices.narrow(dim, k, 1)
    if keepdim:
        return found[0].contiguous(), found[1].contiguous()
    return found[0].squeeze(dim).contiguous(), found[1].squeeze(dim).contiguous()
