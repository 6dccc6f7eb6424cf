"""A kernel of Triton's in a program of dynamic sizes: torch 2.11 stops at an assertion.

Inductor turns a launch that returns what it wrote into clones and a launch that writes in place.
Torch 2.11 traces that twice, with the values that the program was exported with and with those of
its own graph, and asserts that both traces have as many nodes; where a clone's sizes are computed
they have not. While this patch is held the launch is traced once, with the values of Inductor's
graph, as later releases do.
"""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Kernels compile into programs of dynamic sizes."""
    return PluginInfo(
        summary="a Triton kernel compiles into a program of dynamic sizes on torch 2.11",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    def decompose(graph: fx.Graph) -> Any:
        launch = torch.ops.higher_order.triton_kernel_wrapper_functional
        for node in graph.find_nodes(op="call_function", target=launch):
            node.meta.pop("eager_input_vals", None)
        return stock(graph)

    stock = patches.set(
        torch_private.inductor_post_grad(), "decompose_triton_kernel_wrapper_functional", decompose
    )


def _is_needed() -> bool:
    """Whether this torch's source traces a launch twice."""
    replace = torch_private.inductor_pattern_matcher().Match.replace_by_example
    return "higher_order.triton_kernel_wrapper_functional" in inspect.getsource(replace)


_patch = SharedPatch("launches-traced-once", _apply, _is_needed)
