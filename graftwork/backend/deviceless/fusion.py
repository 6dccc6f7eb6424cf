"""Whether what follows a convolution is fused into it: without a benchmark, where it leaves room.

A convolution's template keeps an output tile in registers. What follows runs on the whole tile at
once, and a batch norm reads four more values for each of its elements: registers spill to
memory, in the loop too, and the kernel is twice as slow as two. Inductor would time both ways. So
the fused kernel is compiled, and taken if it spills nothing.
"""

from __future__ import annotations

from typing import Any

from graftwork.backend.deviceless.decisions import FusionChoice
from graftwork.backend.deviceless.session import Session
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private

__all__ = ["apply"]


def apply(patches: Patches, session: Session) -> None:
    """Decide by what the compiler makes of the fused kernel, and record it."""
    scheduler, result = torch_private.inductor_scheduler(), torch_private.inductor_fusion_result()
    asked: dict[Any, FusionChoice] = {}  # the scheduler asks again in every round

    def speedup_by_fusion(self: Any, first: Any, second: Any) -> Any:
        if not _is_convolution(first) or second.is_template():
            return stock(self, first, second)
        key = (self, first.get_name(), second.get_name())
        if key not in asked:
            asked[key] = _compile_fused(self, first, second)
            session.decisions.fusions.append(asked[key])
        return result.fuse(asked[key].fused)

    stock = patches.set(scheduler, "speedup_by_fusion", speedup_by_fusion)


def _compile_fused(scheduler: Any, first: Any, second: Any) -> FusionChoice:
    _, fused = scheduler.compile_kernel([*first.get_nodes(), *second.get_nodes()])
    kernel = fused.triton_
    kernel.precompile()
    (launcher,) = kernel.launchers
    return FusionChoice(
        template=first.get_name(),
        epilogue=second.get_name(),
        fused=launcher.n_spills == 0,
        registers=int(launcher.n_regs),
        spilled=int(launcher.n_spills),
    )


def _is_convolution(node: Any) -> bool:
    """Whether a scheduled node is a template with pixels: products have two or three sizes."""
    template = node.get_template_node() if node.is_template() else None
    return template is not None and len(template.get_layout().size) > 3
