"""A Triton kernel is compiled into a program without being launched on made-up inputs.

Inductor compiles the kernels of a program by launching each of them once, on buffers of zeros or
of what an earlier launch left there, and leaves out every launch but the first of a kernel. A
kernel that goes by what another one wrote (a radix sort by its counts) then writes anywhere: an
illegal access ends the lowering, or it writes over a tensor of the process. While this patch is
held, a kernel of a user's or a plugin's that has nothing to tune is compiled and saved, and not
launched.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Kernels with nothing to tune are not launched to be compiled."""
    return PluginInfo(
        summary="a kernel with nothing to tune is compiled without launching it on made-up inputs",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.custom_kernel and not self.launchers:
            self.precompile()
        # Only what is compiled into a library: other threads may run compiled models.
        if self.custom_kernel and len(self.launchers) == 1 and self.launchers[0].store_cubin:
            self.launchers = [_silent(self.launchers[0])]
        return stock(self, *args, **kwargs)

    tuner = torch_private.inductor_triton_heuristics().CachingAutotuner
    stock = patches.set(tuner, "run", run)


def _silent(launcher: Any) -> Callable[..., None]:
    """What is known of the compiled kernel, without the launch."""

    def skip(*args: Any, **kwargs: Any) -> None:
        return None

    vars(skip).update(vars(launcher))
    return skip


def _is_needed() -> bool:
    """Whether this torch compiles the kernels of a library by running a block of launches."""
    return hasattr(torch_private.inductor_python_wrapper(), "generate_and_run_autotune_block")


_patch = SharedPatch("compiled-not-launched", _apply, _is_needed)
