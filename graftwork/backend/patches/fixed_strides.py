"""`x.as_strided(...)`: a value that is read by its strides must be stored with those strides.

Inductor widens the rows of a large intermediate value on the GPU, (2, 3, 14, 30) stored as
(1280, 420, 30, 1) and not (1260, 420, 30, 1), and `as_strided` of it then reads between the rows:
half of the result is wrong, without a word. While this patch is held, a value that `as_strided`
reads is stored as it was when the program was traced.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Strides that a program reads by are not padded."""
    return PluginInfo(
        summary="as_strided reads a value with the strides that it was traced with",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


_READERS = (
    torch.ops.aten.as_strided.default,
    torch.ops.aten.as_strided_copy.default,
    torch.ops.aten.as_strided_scatter.default,
)


def _apply(patches: Patches) -> None:
    lowerings = torch_private.inductor_lowerings()
    for op in _READERS:
        stock = lowerings.get(op)
        if stock is None:
            continue
        lowerings[op] = _after_freezing(stock)
        patches.at_end(functools.partial(lowerings.__setitem__, op, stock))


def _after_freezing(stock: Callable[..., Any]) -> Callable[..., Any]:
    def lowering(x: Any, *args: Any, **kwargs: Any) -> Any:
        _freeze(x)
        return stock(x, *args, **kwargs)

    return lowering


def _freeze(x: Any) -> None:
    """Fix the layout of the storage behind `x` without padding, where it is still open."""
    ir, current = torch_private.inductor_ir(), torch_private.inductor_graph().V.graph.current_node
    if not isinstance(x, ir.TensorBox):
        return
    is_view = isinstance(x.data, ir.BaseView)
    base = x.data.unwrap_view() if is_view else x
    base.realize()
    if not ir.is_storage_and_layout(base):
        return
    _, layout = ir.as_storage_and_layout(base, freeze=False)
    if not isinstance(layout, ir.FlexibleLayout):
        return
    if is_view:
        ir.as_storage_and_layout(base, stride_order=ir.get_stride_order(layout.stride))
        return
    traced = current.args[0].meta["val"].stride()
    strides = [torch_private.symbolic_expression(stride) for stride in traced]
    ir.as_storage_and_layout(base, exact_strides=strides)


def _is_needed() -> bool:
    """Whether this torch's `as_strided` leaves the layout open to padding."""
    source = inspect.getsource(torch_private.inductor_lowerings()[_READERS[1]])
    return "exact_strides" not in source


_patch = SharedPatch("fixed-strides", _apply, _is_needed)
