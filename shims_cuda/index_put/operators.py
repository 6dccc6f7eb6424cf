"""The custom operators of writes by index or mask, and of what a mask picks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graftwork.plugins.toolkit.kernels import is_traced, kernel_op

from ..stages import mask as masks
from ..stages.indexing import put_rows, spread_values


@kernel_op("graftwork::index_put")
def index_put(
    self: torch.Tensor,
    indices: Sequence[torch.Tensor | None],
    values: torch.Tensor,
    accumulate: bool,
    deterministic: bool,
) -> torch.Tensor:
    """`aten.index_put` with integer indices; negative ones wrap; strides as `self`'s clone.

    Without `accumulate` the last write in index order wins; with it floats add in index order,
    half types in float32, and bool is a logical or.

    Raises:
        IndexError: an index outside [-size, size), on the CPU. A GPU stops at a device assert
            where asserts are compiled in, and drops the write where they are not.
    """
    return put_rows(self, indices, values, accumulate, deterministic)


@kernel_op("graftwork::mask_put")
def mask_put(
    self: torch.Tensor, mask: torch.Tensor, dim: int, values: torch.Tensor
) -> torch.Tensor:
    """`self[..., mask, ...] = values` where the mask's dims are self's from `dim` on.

    `values` has one entry for each True, in row-major order, in place of the mask's dims; its
    other dims broadcast. No host read.

    Raises:
        RuntimeError: the mask keeps another number of elements, on the CPU. A GPU leaves those
            past the end of `values` as they were.
    """
    return spread_values(self, mask, dim, values)


@kernel_op("graftwork::mask_counts")
def mask_counts(mask: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many elements each stretch of the mask keeps, and all of them (0-d); int64."""
    return masks.kept_counts(mask)


@kernel_op("graftwork::mask_values")
def mask_values(
    x: torch.Tensor, mask: torch.Tensor, counts: torch.Tensor, count: int
) -> torch.Tensor:
    """The `count` elements of `x` that `mask`, of its shape, keeps."""
    return masks.kept_values(x, mask, counts, count)


@kernel_op("graftwork::mask_positions")
def mask_positions(mask: torch.Tensor, counts: torch.Tensor, count: int) -> torch.Tensor:
    """Coordinates of the `count` elements that `mask` keeps: (count, mask.dim()), by dim."""
    out = torch.empty(mask.dim() * count, dtype=torch.int64, device=mask.device)
    return masks.kept_positions(mask, counts, out, count)


@kernel_op("graftwork::mask_rows")
def mask_rows(mask: torch.Tensor, count: int) -> torch.Tensor:
    """As `mask_positions`, of a mask that keeps `count` elements, or one, which broadcasts.

    No host read.

    Raises:
        IndexError: the mask keeps another number of elements, on the CPU. On a GPU those past
            `count` are left out, and what is missing is no valid index.
    """
    counts, kept = masks.kept_counts(mask)
    if not is_traced(mask) and mask.device.type == "cpu" and int(kept) not in (1, count):
        raise IndexError(
            "shape mismatch: indexing tensors could not be broadcast together with shapes "
            f"[{int(kept)}], [{count}]"
        )
    lowest = torch.iinfo(torch.int64).min
    out = torch.full((mask.dim() * count,), lowest, dtype=torch.int64, device=mask.device)
    rows = masks.kept_positions(mask, counts, out, count)
    return torch.where(kept == 1, rows[:1], rows)


def count_as_size(count: torch.Tensor, mask: torch.Tensor) -> int:
    """The count as a size: the one host read."""
    size: Any = count.item()
    if isinstance(size, int):
        return size
    torch._check(size >= 0)  # type: ignore[no-untyped-call]  # torch has no types
    torch._check(size <= mask.numel())  # type: ignore[no-untyped-call]  # torch has no types
    return size  # type: ignore[no-any-return]  # a symbolic integer while traced
