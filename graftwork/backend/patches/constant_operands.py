"""`linear(torch.zeros(40, 64))`: a matrix product of a constant must compile for CUDA.

Inductor fuses what makes the operand of a matrix product into the product's kernel. An operand
that is one number everywhere has no shape there, and the kernel does not compile ("Cannot
broadcast, rank mismatch: ['1'], [16, 32]"): the first queries of DETR are such zeros. While this
patch is held, a constant operand is not fused but stored.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Constant operands are stored."""
    return PluginInfo(
        summary="a constant operand of a matrix product is stored, not fused",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    scheduler: Any = torch_private.inductor_scheduler()
    stock = scheduler.check_prologue_fusion_heuristics_fusable

    def fusable(self: Any, prologue_node: Any, template_node: Any, why: Any) -> bool:
        found = prologue_node.read_writes
        if not found.reads and not found.index_exprs:
            why("the prologue is a constant, which has no shape in the template")
            return False
        return bool(stock(self, prologue_node, template_node, why))

    patches.set(scheduler, "check_prologue_fusion_heuristics_fusable", fusable)


def _is_needed() -> bool:
    """Whether this torch's templates still broadcast a prologue's value by its own rank."""
    module = sys.modules[torch_private.inductor_algorithm_selector().__module__]
    return "{value_str}.broadcast_to(xindex.shape)" in inspect.getsource(module)


_patch = SharedPatch("constant-operands", _apply, _is_needed)
