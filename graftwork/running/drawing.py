"""Draws inputs for a method from what its artifact records of the example it was exported with."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from graftwork.backend.signature import Constant, Input, Size
from graftwork.plugins.errors import InputError

from .inputs import arrange, load_spec
from .program import Method

__all__ = ["draw_inputs"]


def draw_inputs(method: Method, seed: int = 0) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword inputs that the method takes; equal seeds draw equal inputs.

    Sizes are the example's, or the smallest allowed ones. Numbers are uniform between the
    example's smallest and largest; without an example, floats are normal and integers 0 or 1.

    Raises:
        InputError: the artifact does not say what the method takes.
    """
    inputs, spec = method.signature.inputs, load_spec(method.signature.in_spec)
    if inputs is None or spec is None:
        raise InputError(
            f"method {method.name} does not say what it takes, so nothing can be drawn; "
            f"give the inputs in a file"
        )
    generator = torch.Generator().manual_seed(seed)
    symbols: dict[str, int] = {}
    leaves = [
        item.value if isinstance(item, Constant) else _draw(item, symbols, generator)
        for item in inputs
    ]
    args, kwargs = pytree.tree_unflatten(leaves, spec)
    return args, kwargs


def _draw(item: Input, symbols: dict[str, int], generator: torch.Generator) -> torch.Tensor:
    shape = item.example or tuple(
        size if isinstance(size, int) else _pick(size, symbols) for size in item.shape
    )
    dtype: torch.dtype = getattr(torch, item.dtype)
    low, high = item.values or (0, 1)
    if dtype.is_complex or (dtype.is_floating_point and item.values is None):
        wide = torch.complex64 if dtype.is_complex else torch.float32
        drawn = torch.randn(shape, dtype=wide, generator=generator)
    elif dtype.is_floating_point:
        drawn = torch.rand(shape, generator=generator, dtype=torch.float64) * (high - low) + low
    else:
        drawn = torch.randint(int(low), int(high) + 1, shape, generator=generator)
    return arrange(drawn.to(dtype).to(item.device), item)


def _pick(size: Size, symbols: dict[str, int]) -> int:
    """The smallest size of at least 2 that goes with the sizes picked before.

    A size that only has an upper bound may be fixed at it, in a program of another writer.
    """
    if not size.symbol:
        return size.high if size.high is not None else max(size.low, 2)
    if size.symbol not in symbols:
        first = max(size.low, min(2, size.high if size.high is not None else 2))
        symbols[size.symbol] = -(-(first - size.plus) // size.times)
    return size.times * symbols[size.symbol] + size.plus
