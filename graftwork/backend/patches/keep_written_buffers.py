"""`self.counter.add_(1)`: the second call of a program must see what the first one wrote.

Inductor folds constants before it compiles, and takes a buffer for a constant: where all of its
elements are equal (a counter, a zeroed cache), the value it has at compile time is written into
the program, which then returns its first update forever. While this patch is held, a graph that
writes a buffer is not folded.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Buffers that a program writes are not folded into it."""
    return PluginInfo(
        summary="a buffer that the program writes is never folded into it as a constant",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def writes_a_buffer(graph: fx.Graph) -> bool:
    """Whether any node writes, in place, an attribute of the graph's module or a view of it."""
    aliases: set[fx.Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            aliases.add(node)
        elif isinstance(node.target, torch._ops.OpOverload):
            for argument, value in zip(node.target._schema.arguments, node.args, strict=False):
                if argument.alias_info is not None and value in aliases:
                    if argument.alias_info.is_write:
                        return True
                    aliases.add(node)
    return False


def _apply(patches: Patches) -> None:
    def fold(module: fx.GraphModule) -> Any:
        return None if writes_a_buffer(module.graph) else stock(module)

    stock = patches.set(torch_private.inductor_joint_graph(), "constant_fold_uniform_value", fold)


def _is_needed() -> bool:
    """Whether a written buffer's value is folded: tried on a graph that adds one to a zero."""
    root = torch.nn.Module()
    root.register_buffer("counter", torch.zeros(1))
    graph = fx.Graph()
    counter = graph.get_attr("counter")
    added = graph.call_function(torch.ops.aten.add.Tensor, (counter, 1))
    graph.call_function(torch.ops.aten.copy_.default, (counter, added))
    graph.output(added)
    for node in (counter, added):
        node.meta["val"] = torch.empty(1)
    module = fx.GraphModule(root, graph)
    torch_private.inductor_joint_graph().constant_fold_uniform_value(module)
    return all(node.target is not torch.ops.aten.add.Tensor for node in module.graph.nodes)


_patch = SharedPatch("keep-written-buffers", _apply, _is_needed)
