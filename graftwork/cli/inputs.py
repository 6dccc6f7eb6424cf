"""The inputs of `graftwork run` and `graftwork bench`: from a file, or drawn."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graftwork.plugins.errors import InputError
from graftwork.running.drawing import draw_inputs
from graftwork.running.inputs import load_spec
from graftwork.running.program import Method

__all__ = ["inputs_for"]


def inputs_for(
    method: Method, file: Path | None, seed: int
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs on the method's device.

    A .pt (of torch.save) holds a tuple or list of the positional inputs, a dict of the keyword
    inputs or of all tensors by the names that `graftwork inspect` shows, or the one tensor. A
    .npz holds arrays by those names, or in order; a .npy the one tensor.

    Raises:
        InputError: the file cannot be read, or holds something else.
    """
    if file is None:
        return draw_inputs(method, seed)
    held = pytree.tree_map_only(torch.Tensor, lambda t: t.to(method.device), _read(file))
    if isinstance(held, torch.Tensor):
        return (held,), {}
    if isinstance(held, (tuple, list)):
        return tuple(held), {}
    if isinstance(held, Mapping):
        return _by_name(method, dict(held), file)
    raise InputError(f"{file} holds a {type(held).__name__}, not a tuple, a dict or a tensor")


def _by_name(
    method: Method, held: dict[str, Any], file: Path
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    spec, inputs = load_spec(method.signature.in_spec), method.signature.inputs
    names = [item.name for item in inputs or ()]
    if spec is not None and set(held) == set(names):
        args, kwargs = pytree.tree_unflatten([held[name] for name in names], spec)
        return args, kwargs
    numbered = [f"arr_{index}" for index in range(len(held))]
    if set(held) == set(numbered):
        leaves = [held[name] for name in numbered]
        if spec is not None and spec.num_leaves == len(leaves):
            args, kwargs = pytree.tree_unflatten(leaves, spec)
            return args, kwargs
        return tuple(leaves), {}
    if spec is None:
        return tuple(held.values()), {}
    keywords = pytree.tree_unflatten([None] * spec.num_leaves, spec)[1]
    if file.suffix == ".npz" or set(held) != set(keywords):
        raise InputError(
            f"{file} holds {', '.join(sorted(map(str, held)))}; method {method.name} takes "
            f"{', '.join(names) or 'no inputs'}"
        )
    return (), held


def _read(file: Path) -> Any:
    if not file.is_file():
        raise InputError(f"no file {file}")
    try:
        if file.suffix in (".npz", ".npy"):
            return _read_numpy(file)
        with file.open("rb") as opened:
            if not opened.read(2).startswith((b"PK", b"\x80")):  # a zip archive's, a pickle's
                raise ValueError("it was not written by torch.save")
        return torch.load(file, map_location="cpu", weights_only=True)
    except (OSError, ValueError, TypeError, RuntimeError, EOFError, zipfile.BadZipFile) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise InputError(f"{file} cannot be read as inputs: {first}") from error
    except Exception as error:  # pickle's own, for objects that are no tensors
        raise InputError(f"{file} cannot be read as inputs: it holds more than tensors") from error


def _read_numpy(file: Path) -> Any:
    import numpy as np

    if file.suffix == ".npy":
        return torch.from_numpy(np.load(file))
    with np.load(file) as arrays:
        return {name: torch.from_numpy(arrays[name]) for name in arrays.files}
