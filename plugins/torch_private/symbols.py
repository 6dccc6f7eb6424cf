"""Symbolic sizes: expressions, bounds, bindings, and the environment that holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

_NO_SYMBOLS: frozenset[Any] = frozenset()


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """Whether a symbolic condition holds for every size in range; adds no guard.

    Stands for `torch.fx.experimental.symbolic_shapes.statically_known_true`.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def forget_pending_symbols(mode: FakeTensorMode | None) -> None:
    """Forget symbols that a finished pass made and never bound to a node's output.

    The next trace under `mode` would raise PendingUnbackedSymbolNotFound at its first node, for
    symbols that are none of its own.
    """
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()


def symbolic_expression(value: Any) -> Any:
    """The sympy expression of a symbolic scalar; a plain number is itself."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return value


def unbacked_bindings(node: fx.Node) -> Mapping[Any, Any]:
    """The unbacked symbols a node brings into being, with the path to each in its output."""
    return node.meta.get("unbacked_bindings") or {}


def rename_symbols(value: Any, names: Mapping[Any, Any], mode: FakeTensorMode) -> Any:
    """Replace symbols in a fake tensor's sizes and strides, or in a symbolic integer."""

    def scalar(item: Any) -> Any:
        if not isinstance(item, torch.SymInt) or mode.shape_env is None:
            return item
        return mode.shape_env.create_symintnode(item.node.expr.xreplace(dict(names)), hint=None)

    def rename(item: Any) -> Any:
        if not isinstance(item, FakeTensor):
            return scalar(item)
        sizes, strides = map(scalar, item.shape), map(scalar, item.stride())
        with mode:
            return torch.empty_strided(
                tuple(sizes), tuple(strides), dtype=item.dtype, device=item.device
            )

    return torch.utils._pytree.tree_map(rename, value)


def is_unbacked_float(symbol: Any) -> bool:
    """Whether a symbol stands for a float that the program reads from a tensor."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return bool(symbol_is_type(symbol, SymT.UNBACKED_FLOAT))


def upper_bound(size: Any) -> int | None:
    """The largest value a size can take: itself, or a symbolic one's bound, None without one.

    Stands for `ShapeEnv.bound_sympy`.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_Integer else None


def size_hint(size: Any) -> int:
    """A concrete size for a possibly symbolic one, for estimates only; adds no guard.

    Stands for `SymInt.node.hint`; 1024 for a size that only a run knows.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else 1024


def size_in_symbols(
    size: torch.SymInt, ranges: Mapping[Any, Any]
) -> tuple[str, int, int, int, int | None]:
    """A symbolic size as (symbol, times, plus, low, high), with `times * symbol + plus`.

    The symbol's name is empty where the size is another expression; `high` is None without a
    bound. `ranges` are an exported program's range constraints. Stands for `SymInt.node` and
    `ShapeEnv.bound_sympy`.
    """
    expression = size.node.expr
    bounds = ranges.get(expression) or size.node.shape_env.bound_sympy(expression)
    low = int(bounds.lower) if bounds.lower.is_Integer else 0
    high = int(bounds.upper) if bounds.upper.is_Integer else None
    symbols = list(expression.free_symbols)
    if len(symbols) == 1 and expression.is_polynomial(symbols[0]):
        parts = expression.as_poly(symbols[0]).all_coeffs()
        if len(parts) == 2 and all(part.is_Integer for part in parts) and parts[0] > 0:
            return str(symbols[0]), int(parts[0]), int(parts[1]), low, high
    return "", 1, 0, low, high


@contextmanager
def unguarded(mode: FakeTensorMode | None) -> Iterator[None]:
    """Run operators on fake tensors of `mode` without leaving guards on their symbolic sizes.

    Stands for `ShapeEnv.suppress_guards`.
    """
    if mode is None:
        yield
    elif mode.shape_env is None:
        with mode:
            yield
    else:
        with mode, mode.shape_env.suppress_guards():
            yield


def unbacked_symbols(value: Any) -> frozenset[Any]:
    """The unbacked integer symbols in the sizes and strides of a tensor, or in a symbolic number.

    Looks into any pytree. Stands for `ShapeEnv.is_unbacked_symint`.
    """
    if isinstance(value, torch.Tensor) and not value._has_symbolic_sizes_strides:
        return _NO_SYMBOLS
    found: set[Any] = set()
    for leaf in torch.utils._pytree.tree_leaves(value):
        items = (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
        for item in items:
            if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                symbols = item.node.expr.free_symbols
                found.update(filter(item.node.shape_env.is_unbacked_symint, symbols))
    return frozenset(found)


def symbol_range(symbol: Any, mode: FakeTensorMode) -> Any:
    """The range (`lower`, `upper`) that the mode's shape environment knows of a symbol."""
    assert mode.shape_env is not None
    return mode.shape_env.var_to_range[symbol]


@contextmanager
def new_symbols(mode: FakeTensorMode) -> Iterator[None]:
    """Within, the first read of a tensor's values makes a new symbol, and further reads share it.

    A fake tensor remembers the symbol that was read from it for as long as its mode's `epoch`
    lasts.
    """
    mode.epoch += 1
    try:
        yield
    finally:
        mode.epoch += 1
