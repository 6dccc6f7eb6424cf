"""Example inputs as `graftwork.lower` exports and runs them.

A compiled program reads its inputs in the layout of the examples it was exported with. A crop or
an `expand` is no layout that other inputs come in, so examples with gaps or with elements that
share memory are made contiguous.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graftwork.backend.signature import dense_order
from graftwork.plugins.errors import InputError

__all__ = ["as_exported", "copied", "refuse_bare"]

Inputs = tuple[tuple[Any, ...], dict[str, Any]]


def as_exported(args: tuple[Any, ...], kwargs: Mapping[str, Any], target: str) -> Inputs:
    """The inputs, those contiguous that are not laid out as the target can take them.

    That is without gaps; for ExecuTorch on the CPU contiguous or channels last. A tensor that is
    given twice stays one.
    """
    made: dict[int, torch.Tensor] = {}

    def convert(leaf: Any) -> Any:
        if not isinstance(leaf, torch.Tensor) or leaf.layout is not torch.strided:
            return leaf
        if leaf.is_nested or _is_taken(leaf, target):
            return leaf
        return made.setdefault(id(leaf), leaf.detach().contiguous())

    found: Inputs = pytree.tree_map(convert, (args, dict(kwargs)))
    return found


def copied(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Inputs:
    """Copies that may be written, outside of autograd.

    Raises:
        InputError: an input cannot be copied.
    """

    def detached(leaf: Any) -> Any:
        return leaf.detach() if isinstance(leaf, torch.Tensor) and leaf.requires_grad else leaf

    try:
        found: Inputs = copy.deepcopy(pytree.tree_map(detached, (args, dict(kwargs))))
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        raise InputError(
            f"the example inputs cannot be copied: {type(error).__name__}: {first}"
        ) from error
    return found


def refuse_bare(**arguments: Any) -> None:
    """Refuse what would be taken apart as if it were a sequence: `x` for `(x,)`.

    Raises:
        InputError: names the argument.
    """
    for name, value in arguments.items():
        if isinstance(value, (torch.Tensor, str)) or not isinstance(value, Sequence):
            raise InputError(
                f"{name} must be a tuple, not a {type(value).__name__}; write (x,) for one x"
            )


def _is_taken(tensor: torch.Tensor, target: str) -> bool:
    if target != "cpu":
        return dense_order(tensor) is not None
    last = tensor.dim() == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    return last or tensor.is_contiguous()
