"""`x[i, j] = v`, `x[i] += v`, `x[mask] = v`, and what a mask picks: `x[mask]`, `nonzero`.

PyTorch sorts to accumulate, and reads a mask's count back to the host to write under it; the stock
delegate leaves `nonzero` and masks out. Here accumulation keeps a fixed order, writes under a mask
need no host read, and only a result whose size is the count reads it, once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch._ops import OpOverload

from graftwork.plugins import Declined, PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.symbolic import known

from ..stages.arguments import refuse_unsupported
from ..stages.indexing import laid_out_as
from ..stages.problem import broadcast, check_range, same
from .operators import (
    count_as_size,
    index_put,
    mask_counts,
    mask_positions,
    mask_put,
    mask_rows,
    mask_values,
)

aten = torch.ops.aten
Indices = Sequence[torch.Tensor | None]


@dataclass(frozen=True)
class Options:
    """Options of `index-put`.

    Attributes:
        deterministic: accumulate floats in a fixed order. False allows the order the GPU happens
            to take; it is ignored while `torch.use_deterministic_algorithms` is on.
    """

    deterministic: bool = True


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="index_put and mask indexing as Triton kernels, in a fixed order",
        options=Options,
    )


@hookimpl
def list_kernels(options: Options) -> Mapping[OpOverload, Callable[..., Any]]:
    """Writes by index or mask, and what a mask picks."""
    deterministic = options.deterministic or torch.are_deterministic_algorithms_enabled()
    put = partial(_index_put, deterministic=deterministic)
    return {
        aten.index_put.default: put,
        aten._unsafe_index_put.default: put,
        aten.index.Tensor: _index,
        aten.masked_select.default: _masked_select,
        aten.nonzero.default: _nonzero,
    }


@hookimpl
def list_properties() -> Sequence[Property]:
    """Properties, refused inputs and benchmark sizes."""
    from .properties import properties

    return properties()


def _index_put(
    self: torch.Tensor,
    indices: Indices,
    values: torch.Tensor,
    accumulate: bool = False,
    *,
    deterministic: bool,
) -> torch.Tensor:
    refuse_unsupported(self)
    if self.dtype != values.dtype:
        raise Declined(f"values of {values.dtype} for a tensor of {self.dtype}")
    indices = _listed(self, _near(self, indices))
    if not any(index is not None and _is_mask(index) for index in indices):
        return index_put(self, indices, values, accumulate, deterministic)
    dim, mask = _one_mask(self, indices)
    spread = mask.view((1,) * dim + mask.shape + (1,) * (self.dim() - dim - mask.dim()))
    leading = (1,) * (self.dim() - mask.dim() + 1 - values.dim())
    if values.dim() == 0:
        chosen = values  # Inductor cannot reshape a number that it writes into the code
    elif same((leading + values.shape)[dim], 1):
        values = values.view(leading + values.shape)
        chosen = values.view(values.shape[:dim] + (1,) * mask.dim() + values.shape[dim + 1 :])
    else:
        values = values.view(leading + values.shape)
        chosen = mask_put(self, mask, dim, values)
    put = torch.where(spread, self + chosen if accumulate else chosen, self)
    return laid_out_as(self, put)


def _index(self: torch.Tensor, indices: Indices) -> torch.Tensor:
    if not any(index is not None and _is_mask(index) for index in indices):
        raise Declined("integer indices need no kernel")
    refuse_unsupported(self)
    indices = _near(self, indices)
    integers = _listed(self, indices)
    if any(index is not None and _is_mask(index) for index in integers):
        dim, mask = _one_mask(self, indices)
        if mask.dim() == self.dim():
            return _masked_select(self, mask)
        integers = [*([None] * dim), *_nonzero(mask).unbind(1)]
    out: torch.Tensor = aten.index.Tensor(self, integers)
    return out


def _masked_select(self: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    refuse_unsupported(self)
    if mask.dtype != torch.bool:
        raise RuntimeError("masked_select: expected BoolTensor for mask")
    self, mask = broadcast(self, mask)
    counts, count = mask_counts(mask)
    return mask_values(self, mask, counts, count_as_size(count, mask))


def _nonzero(self: torch.Tensor) -> torch.Tensor:
    refuse_unsupported(self)
    mask = self if self.dtype == torch.bool else self != 0
    counts, count = mask_counts(mask)
    return mask_positions(mask, counts, count_as_size(count, mask))


def _near(self: torch.Tensor, indices: Indices) -> Indices:
    """The indices on the device of `self`: eager takes them from the CPU too."""
    return [None if index is None else index.to(self.device) for index in indices]


def _listed(self: torch.Tensor, indices: Indices) -> Indices:
    """The indices, a mask beside several integers (`x[mask, i]`) as what it keeps.

    It must keep as many elements as there are integers, so that its count need not be read.
    """
    given = [index for index in indices if index is not None]
    at = [at for at, index in enumerate(indices) if index is not None and _is_mask(index)]
    integers = [index for index in given if not _is_mask(index) and index.dim() == 1]
    several = [index for index in integers if known(index.numel() >= 2)]
    if len(at) != 1 or not several:
        return indices
    mask = _known(indices[at[0]])
    mask = mask if mask.dtype == torch.bool else mask != 0
    _check_mask(self, at[0], mask)
    rows = mask_rows(mask, several[0].shape[0]).unbind(1)
    return [*indices[: at[0]], *rows, *indices[at[0] + 1 :]]


def _one_mask(self: torch.Tensor, indices: Indices) -> tuple[int, torch.Tensor]:
    """The dim where a mask begins, and the mask, into which single integers beside it go.

    `x[mask, 3]` is `x[both]`, where `both` holds in column 3 what `mask` does, and nothing in
    the other columns.
    """
    given = [at for at, index in enumerate(indices) if index is not None]
    if given != list(range(given[0], given[-1] + 1)):
        raise Declined("a mask apart from other indices: its count would have to be read")
    masks_given = [at for at in given if _is_mask(_known(indices[at]))]
    if len(masks_given) > 1:
        raise Declined("more than one mask: their counts cannot be compared before they are read")
    dim = given[0]
    parts: list[torch.Tensor] = []
    for at in given:
        index = _known(indices[at])
        begin = dim + sum(part.dim() for part in parts)
        if _is_mask(index):
            mask = index if index.dtype == torch.bool else index != 0
            _check_mask(self, begin, mask)
            parts.append(mask)
        elif index.dim() > 1 or not same(index.numel(), 1):
            raise Declined(
                "a mask beside integers of more dims or of unknown size: its count would be read"
            )
        else:
            check_range(index, self, begin, wraps=True)
            parts.append(_one_of(index.reshape(()), self.shape[begin]))
    return dim, _outer_and(parts)


def _one_of(index: torch.Tensor, size: int) -> torch.Tensor:
    """A mask of `size` elements that keeps the one at `index`."""
    place = torch.where(index < 0, index + size, index)
    return torch.arange(size, device=index.device) == place


def _outer_and(parts: Sequence[torch.Tensor]) -> torch.Tensor:
    """A mask over the dims of all parts, which keeps what each of them keeps."""
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.view(*whole.shape, *(1,) * part.dim()) & part
    return whole


def _known(index: torch.Tensor | None) -> torch.Tensor:
    assert index is not None
    return index


def _is_mask(index: torch.Tensor) -> bool:
    return index.dtype in (torch.bool, torch.uint8)


def _check_mask(self: torch.Tensor, dim: int, mask: torch.Tensor) -> None:
    for d in range(mask.dim()):
        if dim + d >= self.dim() or not _may_equal(mask.shape[d], self.shape[dim + d]):
            raise IndexError(
                f"The shape of the mask {list(mask.shape)} at index {d} does not match the shape "
                f"of the indexed tensor {list(self.shape)} at index {dim + d}"
            )


def _may_equal(a: int, b: int) -> bool:
    return not (isinstance(a, int) and isinstance(b, int)) or a == b
