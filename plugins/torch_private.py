"""The one file that imports torch's private and experimental modules.

Checked on torch 2.11.0 and 2.13.0; `tests/plugins/test_torch_private.py` fails loudly
when a name moves. Each function says what it stands for; heavy modules are imported inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CHECKED_RELEASES = ("2.11", "2.13")
_NO_SYMBOLS: frozenset[Any] = frozenset()

__all__ = [
    "CHECKED_RELEASES",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "fake_mode_of",
    "rename_symbols",
    "run_on_fakes",
    "statically_known_true",
    "suggest_memory_format",
    "symbol_range",
    "symbolic_expression",
    "trace_functional",
    "unbacked_bindings",
    "unbacked_symbols",
    "unguarded",
]


def trace_functional(function: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    """Trace `function` on fake tensors and symbolic scalars into an ATen graph.

    Composite operators are decomposed to their parts; every node has `meta["val"]`. Stands for
    `torch.fx.experimental.proxy_tensor.make_fx` under the inputs' own fake mode.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = fake_mode_of(inputs)
    with torch.no_grad():
        if mode is None:
            with FakeTensorMode():
                return make_fx(function, tracing_mode="fake")(*inputs)
        with mode:
            return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """Whether a symbolic condition holds for every size in range; adds no guard.

    Stands for `torch.fx.experimental.symbolic_shapes.statically_known_true`.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def suggest_memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format ATen gives a result like `tensor`; adds no guard on unbacked strides.

    Stands for `torch._prims_common.suggest_memory_format`.
    """
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


def fake_mode_of(values: Any) -> FakeTensorMode | None:
    """The fake mode that the fake tensors among `values` (any pytree) belong to."""
    for value in torch.utils._pytree.tree_leaves(values):
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


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


def run_on_fakes(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mode: FakeTensorMode,
) -> tuple[Any, dict[Any, Any]]:
    """Call an operator under a fake mode: the value, and the unbacked symbols it makes.

    Symbols come with the path to each in the value, as in `meta["unbacked_bindings"]`. Stands for
    `torch.fx.experimental.symbolic_shapes.compute_unbacked_bindings`.
    """
    from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings

    with mode, torch.no_grad():
        value = target(*args, **kwargs)
    return value, compute_unbacked_bindings(mode.shape_env, value) or {}
