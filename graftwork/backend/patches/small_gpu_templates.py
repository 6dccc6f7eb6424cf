"""`nn.Linear` for a GPU with few processors (Jetson, L4, T4) must not fall back to a library call.

Inductor offers its Triton templates for matrix products only on GPUs with at least 68
processors; below, a product becomes a call to ATen's kernel, which ExecuTorch's runtime does not
have ("missing fallback kernels: aoti_torch_cuda_addmm_out"). While this patch is held, any GPU
that Triton supports counts as large enough.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Triton GEMM templates on every GPU."""
    return PluginInfo(
        summary="matrix products use Triton templates on GPUs with few processors too",
        targets=frozenset({"cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    def is_big_gpu(index_or_device: Any = 0) -> bool:
        return True

    patches.set(torch_private.inductor_utils(), "is_big_gpu", is_big_gpu)


def _is_needed() -> bool:
    """Whether this torch still asks for a big GPU."""
    return hasattr(torch_private.inductor_utils(), "is_big_gpu")


_patch = SharedPatch("small-gpu-templates", _apply, _is_needed)
