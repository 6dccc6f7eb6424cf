"""What every kernel of these families asks of its arguments, with ATen's own words."""

from __future__ import annotations

from typing import Any

import torch
from torch._ops import OpOverload
from torch.utils import _pytree as pytree

from graftwork.plugins import Declined
from graftwork.plugins.toolkit.kernels import is_traced

DTYPES = (
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
)


def refuse_unsupported(tensor: torch.Tensor) -> None:
    """Decline a dtype or a layout that the kernels do not take."""
    if tensor.dtype not in DTYPES:
        raise Declined(f"no kernel for {tensor.dtype}")
    if tensor.layout != torch.strided:
        raise Declined(f"no kernel for a tensor of layout {tensor.layout}")


def checked_by_aten(op: OpOverload, *args: Any) -> None:
    """Raise what ATen raises for wrong ranks, shapes and dtypes, from its shape function.

    A traced call has been through it when the program was exported.
    """
    tensors = [leaf for leaf in pytree.tree_leaves(args) if isinstance(leaf, torch.Tensor)]
    if not any(is_traced(tensor) for tensor in tensors):
        op(*pytree.tree_map_only(torch.Tensor, lambda t: t.to("meta"), args))
