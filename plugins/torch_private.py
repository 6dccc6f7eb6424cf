"""The one file that imports torch's private and experimental modules.

Checked on torch 2.11.0 and 2.13.0; `tests/plugins/test_torch_private.py` fails loudly
when a name moves. Each function says what it stands for; heavy modules are imported inside.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CHECKED_RELEASES = ("2.11", "2.13")

__all__ = [
    "CHECKED_RELEASES",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "fake_mode_of",
    "rename_symbols",
    "statically_known_true",
    "symbolic_expression",
    "trace_functional",
    "unbacked_bindings",
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
    """Whether `condition` holds for every input, without a guard; False where unknown.

    `torch.fx.experimental.symbolic_shapes.statically_known_true`.
    """
    if isinstance(condition, bool):
        return condition
    from torch.fx.experimental import symbolic_shapes

    return bool(symbolic_shapes.statically_known_true(condition))


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
