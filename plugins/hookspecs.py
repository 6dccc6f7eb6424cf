# mypy: disable-error-code="empty-body"
"""Every hook a plugin may implement, in one place.

A plugin is a module that an entry point of the group `graftwork.plugins` names; the entry point's
name is the plugin's id (kebab-case). The module implements any of the hooks below with
`@hookimpl`, and each implementation takes only those arguments it needs, by name.

`options` is an instance of the plugin's own options class (`PluginInfo.options`), or None where
the plugin has none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import pluggy

if TYPE_CHECKING:
    from torch._ops import OpOverload

    from .context import LoweringContext
    from .info import PluginInfo
    from .properties import Property
    from .rewriting import GraphRewrite

PROJECT = "graftwork"

hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec(firstresult=True)
def describe_plugin() -> PluginInfo:
    """Say what the plugin is: one line of summary, its options class, order and defaults."""


@hookspec
def rewrite_graph(graph: GraphRewrite, options: Any, context: LoweringContext) -> None:
    """Edit one graph of the program in place.

    Called once for the root graph and once for each sub-graph (`torch.cond` branches and the
    like), innermost first. Before: the graph is functional ATen (no in-place operators),
    lint-clean, and every node has `meta["val"]`. For each candidate call `graph.claim(node, what)`
    and edit only if it answers True, or `graph.decline(node, reason)`. After: the graph must be
    lint-clean and compute the same values. New nodes need `meta["val"]`; they are stamped with
    the plugin's id and version, and take the claimed node's source line if they have none.
    """


@hookspec
def list_decompositions(
    options: Any, context: LoweringContext
) -> Mapping[OpOverload, Callable[..., Any]]:
    """Map operator overloads to functions that compute the same from other operators.

    A function has the overload's own signature, is traced on fake tensors (sizes may be symbolic),
    must be functional, and raises `Declined(reason)` where it does not apply. It answers
    NotImplemented where the node is no candidate at all and needs no reason (a two-dimensional
    convolution to a plugin for one-dimensional ones); only so may its own operator come back in
    what it returns.
    """


@hookspec
def list_kernels(
    options: Any, context: LoweringContext
) -> Mapping[OpOverload, Callable[..., Any]]:
    """Map operator overloads to functions that call a CUDA kernel of this plugin.

    As `list_decompositions`, but asked only where the program runs on a GPU, and preferred to a
    decomposition of the same operator. The function checks what it is given, raises
    `Declined(reason)` for what the kernel cannot do, and else calls the plugin's custom operator
    (made by `toolkit.kernels.kernel_op`, so that the kernel is compiled into the program).
    """


@hookspec
def list_references() -> Mapping[OpOverload, Callable[..., Any]]:
    """Map operator overloads to plain functions of the same signature and result.

    A function stands in for its operator where eager itself cannot run it on the machine at hand
    (`varlen_attn` has no CPU kernel), so that a program can still be compared; reports say so.
    """


@hookspec
def patch_compile(options: Any, context: LoweringContext) -> AbstractContextManager[None]:
    """Give a context manager that corrects the AOT compiler while a program compiles.

    Entered only around a compile; must be safe when several threads hold it and leave in any
    order.
    """


@hookspec
def list_compile_options(options: Any, context: LoweringContext) -> Mapping[str, object]:
    """Give Inductor configuration entries, by their dotted names, for the compile."""


@hookspec
def list_properties() -> Sequence[Property]:
    """Declare how to draw inputs, the eager reference, the tolerance, what must be refused."""
