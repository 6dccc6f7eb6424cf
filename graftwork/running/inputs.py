"""Checks a call's inputs against a method's signature, and puts them into the recorded layout.

Compiled programs check little: an input of another dtype, size or device is read as if it were
the one expected. Every mismatch is one error that names the input, what it is and what it must be.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import torch
from torch.utils import _pytree as pytree

from graftwork.backend.signature import Constant, Input, Signature, Size
from graftwork.plugins.errors import InputError
from graftwork.plugins.torch_private import has_memory, without_subclass

__all__ = ["InputReader", "arrange", "is_tuple_of_leaves", "load_spec"]


def load_spec(text: str) -> Any:
    """The tree spec that `text` writes down; None where it has containers unknown here."""
    try:
        return pytree.treespec_loads(text) if text else None
    except Exception:
        return None


def is_tuple_of_leaves(text: str) -> bool:
    """Whether the tree that `text` writes down is one flat tuple, as most programs' are."""
    return bool(text) and _is_tuple_of_leaves(json.loads(text)[1])


class InputReader:
    """Turns one call's inputs into the tensors that a method's program takes."""

    def __init__(self, method: str, signature: Signature, gpu: int | None = None) -> None:
        self._method = method
        self._devices = {"cpu": torch.device("cpu"), "cuda": torch.device("cuda", gpu or 0)}
        self._inputs = signature.inputs
        self._spec = load_spec(signature.in_spec)
        self._names: list[str] = []
        self._positional = 0
        if self._spec is not None:
            args, kwargs = json.loads(signature.in_spec)[1]["children_spec"]
            self._positional = len(args["children_spec"])
            self._names = list(json.loads(kwargs["context"]))
            self._flat = not self._names and _is_tuple_of_leaves(args)

    def flatten(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[Any]:
        """The leaves in the program's order; as they come where its nesting is not known.

        Raises:
            InputError: another number of inputs, another name, another nesting.
        """
        if self._spec is None:
            return list(pytree.tree_leaves((args, dict(kwargs))))
        if len(args) != self._positional:
            raise InputError(
                f"method {self._method} takes {_count(self._positional, 'positional input')}, "
                f"not {len(args)}"
            )
        if kwargs.keys() != set(self._names):
            wanted = ", ".join(self._names) or "none"
            given = ", ".join(sorted(kwargs)) or "none"
            raise InputError(
                f"method {self._method} takes the keyword inputs {wanted}; got {given}"
            )
        if self._flat and not any(isinstance(arg, (tuple, list, dict)) for arg in args):
            return list(args)
        nested = (args, {name: kwargs[name] for name in self._names})
        try:  # takes the entries of a dict in any order
            leaves = list(self._spec.flatten_up_to(nested))
        except ValueError:
            leaves = None
        if leaves is None or not all(map(pytree.tree_is_leaf, leaves)):
            raise InputError(
                f"method {self._method} takes inputs nested as {_outline(self._spec)}; "
                f"got {_outline(pytree.tree_structure(nested))}"
            )
        return leaves

    def check(self, leaves: Sequence[Any]) -> list[torch.Tensor]:
        """The tensors among the leaves, in the layout that the program was compiled for.

        Raises:
            InputError: another count, dtype, shape, device or constant.
        """
        if self._inputs is None:
            given = enumerate(leaves)
            found = [(str(n), leaf) for n, leaf in given if isinstance(leaf, torch.Tensor)]
            return [self._in_memory(n, self._plain(n, leaf)).detach() for n, leaf in found]
        if len(leaves) != len(self._inputs):
            names = ", ".join(item.name for item in self._inputs)
            raise InputError(
                f"method {self._method} takes {_count(len(self._inputs), 'input')} ({names}), "
                f"not {len(leaves)}"
            )
        tensors = []
        symbols: dict[str, tuple[int, str]] = {}
        for item, leaf in zip(self._inputs, leaves, strict=True):
            if isinstance(item, Constant):
                _check_constant(self._where(item.name), item, leaf)
                continue
            device = self._devices[item.device]
            tensor = self._plain(item.name, leaf)
            if not _is_kind(item, tensor, device):
                _refuse_kind(self._where(item.name), item, tensor, device)
            self._in_memory(item.name, tensor)
            if tensor.shape != item.shape:
                _check_shape(self._where(item.name), item, tensor.shape, symbols)
            tensors.append(arrange(tensor.detach() if tensor.requires_grad else tensor, item))
        return tensors

    def _plain(self, name: str, leaf: Any) -> torch.Tensor:
        if not isinstance(leaf, torch.Tensor):
            raise InputError(f"{self._where(name)} must be a tensor, not a {type(leaf).__name__}")
        plain = without_subclass(leaf)
        if plain is None:
            raise InputError(
                f"{self._where(name)} must be a plain tensor, not a {type(leaf).__name__}"
            )
        return plain

    def _in_memory(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        if not has_memory(tensor):
            raise InputError(
                f"{self._where(name)} has no memory of its own to read, as inside torch.vmap "
                f"and torch.func.grad"
            )
        return tensor

    def _where(self, name: str) -> str:
        return f"method {self._method}, input {name}"


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


def _is_kind(item: Input, leaf: torch.Tensor, device: torch.device) -> bool:
    return (
        leaf.dtype is getattr(torch, item.dtype)
        and leaf.device == device
        and leaf.layout is torch.strided
        and not leaf.is_nested
    )


def _refuse_kind(where: str, item: Input, leaf: torch.Tensor, device: torch.device) -> NoReturn:
    dtype = str(leaf.dtype).removeprefix("torch.")
    if dtype != item.dtype:
        raise InputError(f"{where} must be {item.dtype}, not {dtype}")
    if leaf.device != device:
        raise InputError(f"{where} must be on {device}, not on {leaf.device}")
    layout = "nested" if leaf.is_nested else leaf.layout
    raise InputError(f"{where} must be a dense tensor, not {layout}")


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


def _is_tuple_of_leaves(tree: Mapping[str, Any]) -> bool:
    leaves = all(child["type"] is None for child in tree["children_spec"])
    return tree["type"] == "builtins.tuple" and leaves


def _outline(spec: Any) -> str:
    """The nesting with a star for each leaf."""
    return str(pytree.tree_unflatten([_Star()] * spec.num_leaves, spec)[0])


class _Star:
    def __repr__(self) -> str:
        return "*"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
