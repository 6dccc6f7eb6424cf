"""`conv(x[mask])`: the result of a convolution must be read in the order it was written in.

On a CPU Inductor hands convolutions their inputs channels last, and takes the strides of the
result from a trace. The trace of a batch whose size is only known at run time says "contiguous",
whatever the inputs; the convolution that runs then answers channels last, and what reads its
result as a view (`flatten(2).transpose(1, 2)`, the patch embedding of a vision transformer) reads
it in the wrong order, without a word. While this patch is held, a program with such a convolution
hands it contiguous inputs.
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
    """A convolution's result is read in the order it is written in."""
    return PluginInfo(
        summary="a convolution of a batch sized at run time keeps its inputs contiguous",
        targets=frozenset({"aoti"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    lowering = torch_private.inductor_graph().GraphLowering
    stock = lowering.decide_layout_opt

    def decide_layout_opt(gm: fx.GraphModule, **settings: Any) -> bool:
        return not _has_unbacked_convolution(gm) and bool(stock(gm, **settings))

    patches.set(lowering, "decide_layout_opt", staticmethod(decide_layout_opt))


def _has_unbacked_convolution(module: fx.GraphModule) -> bool:
    return any(
        node.op == "call_function"
        and node.target is torch.ops.aten.convolution.default
        and torch_private.unbacked_symbols(node.meta["val"])
        for node in module.graph.nodes
    )


class _Probe(torch.nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        kept = x[mask].to(memory_format=torch.channels_last)
        return torch.nn.functional.conv2d(kept, weight)


def _is_needed() -> bool:
    """Whether this torch traces the convolution of a channels-last batch as contiguous."""
    inputs = torch.zeros(2, 3, 4, 4), torch.ones(2, dtype=torch.bool), torch.zeros(5, 3, 2, 2)
    program = torch.export.export(_Probe(), inputs)
    result = program.graph.output_node().args[0][0]
    return bool(result.meta["val"].stride(1) != 1)


_patch = SharedPatch("unbacked-convolution", _apply, _is_needed)
