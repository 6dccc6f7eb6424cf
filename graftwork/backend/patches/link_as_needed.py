"""A compiled program that asks for `libgomp.so.1` and never calls it does not load in a container.

Inductor links every library with OpenMP, used or not, and a linker that is not told otherwise
writes the dependency down (pytorch/pytorch#166087: two OpenMP runtimes in one process, or none).
While this patch is held the link line says `--as-needed`: the library depends on what it calls.
"""

from __future__ import annotations

import sys
from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private

_FLAG = "Wl,--as-needed"


@hookimpl
def describe_plugin() -> PluginInfo:
    """Compiled libraries depend only on what they call."""
    return PluginInfo(
        summary="a compiled library depends only on the libraries it calls, not on OpenMP unused",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    def openmp_arguments(*args: Any, **kwargs: Any) -> Any:
        cflags, ldflags, *others = stock(*args, **kwargs)
        return (cflags, [_FLAG, *ldflags], *others)

    stock = patches.set(torch_private.inductor_cpp_builder(), "_get_openmp_args", openmp_arguments)


def _is_needed() -> bool:
    """Whether torch's own link flags leave it to the linker's default (GNU ld, LLD)."""
    if sys.platform != "linux":
        return False
    builder = torch_private.inductor_cpp_builder()
    return _FLAG not in builder._get_openmp_args(builder.get_cpp_compiler())[1]


_patch = SharedPatch("link-as-needed", _apply, _is_needed)
