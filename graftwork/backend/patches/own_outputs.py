"""`return y[8:]`, `return a, b` of one split: outputs in storage of their own.

Inductor returns a part of a buffer as a view of it. ExecuTorch's runtime takes an output only
where it begins at the start of its storage and is contiguous, and fails at the first execution
otherwise ("SlimTensor storage_offset must be 0", "SlimTensor must be contiguous"). While this
patch is held, an output that would be a view is copied by the kernel that computes it, or after.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from graftwork.backend.outputs import is_contiguous
from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Outputs as the runtime takes them."""
    return PluginInfo(
        summary="every output of the delegate contiguous, in storage of its own",
        targets=frozenset({"cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    lowering = torch_private.inductor_graph().GraphLowering

    def output(self: Any, target: Any, args: Any, kwargs: Any) -> Any:
        results = args[0]
        if isinstance(results, (tuple, list)):
            nodes = torch_private.inductor_graph().V.graph.current_node.args[0]
            owned = [_own(result, node) for result, node in zip(results, nodes, strict=True)]
            args = (type(results)(owned), *args[1:])
        return stock(self, target, args, kwargs)

    stock = patches.set(lowering, "output", output)


def _own(result: Any, node: Any) -> Any:
    ir = torch_private.inductor_ir()
    if not isinstance(result, ir.TensorBox):
        return result
    if not isinstance(result.data, ir.BaseView) and is_contiguous(node.meta["val"]):
        return result
    copied = torch_private.inductor_lowerings()[torch.ops.aten.clone.default](result)
    return ir.ExternKernel.require_contiguous(copied)


_patch = SharedPatch("own-outputs", _apply, lambda: True)
