"""Checks a call's inputs against a method's signature, and puts them into the recorded layout.

Compiled programs check little: an input of another dtype, size or device is read as if it were
the one expected. Every mismatch is one error that names the input, what it is and what it must be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graftwork.backend.signature import Constant, Input, Signature, Size
from graftwork.plugins.errors import InputError

__all__ = ["arrange", "check_inputs", "flatten_inputs", "load_spec"]


def load_spec(text: str) -> Any:
    """The tree spec that `text` writes down; None where it has containers unknown here."""
    try:
        return pytree.treespec_loads(text) if text else None
    except Exception:
        return None


def flatten_inputs(
    method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], text: str, spec: Any
) -> list[Any]:
    """The leaves of a call's inputs in the program's order.

    `spec` is the program's tree over (args, kwargs) and `text` what wrote it down; without one,
    the leaves are taken as they come.

    Raises:
        InputError: another number of inputs, another name, another nesting.
    """
    if spec is None:
        return list(pytree.tree_leaves((args, dict(kwargs))))
    positional, names = _call_shape(text)
    if len(args) != positional:
        raise InputError(
            f"method {method} takes {_count(positional, 'positional input')}, not {len(args)}"
        )
    if set(kwargs) != set(names):
        wanted = ", ".join(names) or "none"
        given = ", ".join(sorted(kwargs)) or "none"
        raise InputError(f"method {method} takes the keyword inputs {wanted}; got {given}")
    leaves, found = pytree.tree_flatten((args, {name: kwargs[name] for name in names}))
    if found != spec:
        raise InputError(
            f"method {method} takes inputs nested as {_outline(spec)}; got {_outline(found)}"
        )
    return list(leaves)


def check_inputs(method: str, signature: Signature, leaves: Sequence[Any]) -> list[torch.Tensor]:
    """The tensors among checked leaves, in order and in the layout the program was compiled for.

    Raises:
        InputError: another count, dtype, shape, device or constant.
    """
    if signature.inputs is None:
        return [leaf.detach() for leaf in leaves if isinstance(leaf, torch.Tensor)]
    if len(leaves) != len(signature.inputs):
        names = ", ".join(item.name for item in signature.inputs)
        raise InputError(
            f"method {method} takes {_count(len(signature.inputs), 'input')} ({names}), "
            f"not {len(leaves)}"
        )
    tensors = []
    symbols: dict[str, tuple[int, str]] = {}
    for item, leaf in zip(signature.inputs, leaves, strict=True):
        where = f"method {method}, input {item.name}"
        if isinstance(item, Constant):
            _check_constant(where, item, leaf)
            continue
        _check_kind(where, item, leaf)
        _check_shape(where, item, leaf.shape, symbols)
        tensors.append(arrange(leaf.detach(), item))
    return tensors


def arrange(tensor: torch.Tensor, item: Input) -> torch.Tensor:
    """The tensor itself where its memory is laid out as the program expects, else a copy."""
    if item.order is not None:
        if item.order == tuple(range(tensor.dim())):
            return tensor.contiguous()
        inner = tensor.permute(item.order)
        if inner.is_contiguous():
            return tensor
        inverse = sorted(range(tensor.dim()), key=item.order.__getitem__)
        return inner.contiguous().permute(inverse)
    if item.strides is not None and tensor.stride() != item.strides:
        laid = torch.empty_strided(
            tuple(tensor.shape), item.strides, dtype=tensor.dtype, device=tensor.device
        )
        return laid.copy_(tensor)
    return tensor


def _check_constant(where: str, item: Constant, leaf: Any) -> None:
    same = type(leaf) is type(item.value) and leaf == item.value
    if not same and not (isinstance(item.value, str) and str(leaf) == item.value):
        given = "a tensor" if isinstance(leaf, torch.Tensor) else repr(leaf)
        raise InputError(f"{where} is {item.value!r} in this program; got {given}")


def _check_kind(where: str, item: Input, leaf: Any) -> None:
    if not isinstance(leaf, torch.Tensor):
        raise InputError(f"{where} must be a tensor, not a {type(leaf).__name__}")
    dtype = str(leaf.dtype).removeprefix("torch.")
    if dtype != item.dtype:
        raise InputError(f"{where} must be {item.dtype}, not {dtype}")
    if leaf.device.type != item.device:
        raise InputError(f"{where} must be on {item.device}, not on {leaf.device}")
    if leaf.layout is not torch.strided:
        raise InputError(f"{where} must be a dense tensor, not {leaf.layout}")


def _check_shape(
    where: str, item: Input, shape: Sequence[int], symbols: dict[str, tuple[int, str]]
) -> None:
    if len(shape) != len(item.shape):
        raise InputError(f"{where} must have {len(item.shape)} dims, not {len(shape)}")
    for dim, (size, wanted) in enumerate(zip(shape, item.shape, strict=True)):
        if isinstance(wanted, int):
            if size != wanted:
                raise InputError(f"{where}: dim {dim} is {size} and must be {wanted}")
            continue
        if not wanted.holds(size):
            raise InputError(f"{where}: dim {dim} is {size} and must be {_range(wanted)}")
        if not wanted.symbol:
            continue
        value = wanted.value(size)
        known, owner = symbols.setdefault(wanted.symbol, (value, f"dim {dim} of {item.name}"))
        if known != value:
            expected = wanted.times * known + wanted.plus
            raise InputError(
                f"{where}: dim {dim} is {size} and must be {expected}, to go with {owner}"
            )


def _range(size: Size) -> str:
    text = f"at least {size.low}" if size.high is None else f"from {size.low} to {size.high}"
    if size.symbol and size.times != 1:
        text += f", {size.times} times a whole number"
        text += f" plus {size.plus}" if size.plus else ""
    return text


def _call_shape(text: str) -> tuple[int, list[str]]:
    """The number of positional inputs and the names of the keyword ones, from a written tree."""
    args, kwargs = json.loads(text)[1]["children_spec"]
    return len(args["children_spec"]), list(json.loads(kwargs["context"]))


def _outline(spec: Any) -> str:
    """The nesting with a star for each leaf."""
    return str(pytree.tree_unflatten([_Star()] * spec.num_leaves, spec)[0])


class _Star:
    def __repr__(self) -> str:
        return "*"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
