"""A kernel in Gluon is compiled where a program launches the Triton kernel that stands in for it.

Inductor writes and compiles kernels in Triton only. A plugin's Gluon kernel is traced as its
stand-in (`graftwork.plugins.toolkit.gluon`); while this patch is held, the Gluon kernel is what
Triton is given to compile, in this process, since Inductor's worker processes hold no patches.
"""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private
from graftwork.plugins.toolkit import gluon


@hookimpl
def describe_plugin() -> PluginInfo:
    """Kernels in Gluon compile into programs."""
    return PluginInfo(
        summary="kernels in Gluon compile into programs, in place of their stand-ins",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


_here = threading.local()


def _apply(patches: Patches) -> None:
    def source(fn: Any, signature: Any, constants: Any, attributes: Any) -> Any:
        kernel = gluon.kernel_behind(fn)
        if kernel is None:
            return stock_source(fn, signature, constants, attributes)
        from triton.experimental.gluon._runtime import GluonASTSource

        return GluonASTSource(kernel, signature, constants, attributes)

    def triton(self: Any, name: str, text: str, *args: Any, **kwargs: Any) -> Any:
        _here.alone = gluon.is_named_in(text)
        try:
            return stock_triton(self, name, text, *args, **kwargs)
        finally:
            _here.alone = False

    def use_process_pool(cls: Any) -> bool:
        return not getattr(_here, "alone", False) and bool(stock_pool())

    stock_source = patches.set(torch_private.inductor_triton_heuristics(), "ASTSource", source)
    compiler = torch_private.inductor_async_compile().AsyncCompile
    stock_pool = patches.set(compiler, "use_process_pool", classmethod(use_process_pool))
    stock_triton = patches.set(compiler, "triton", triton)


_patch = SharedPatch("gluon-kernels", _apply, gluon.available)
