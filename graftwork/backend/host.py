"""How the host side of a compiled program is built: for any machine, not for this one.

Inductor compiles it with `-march=native` and this machine's vector extensions, and the program
then stops with an illegal instruction on an older CPU. Nothing on the host side is worth that:
it launches kernels.
"""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private

__all__ = ["portable_host", "portable_host_options"]


def portable_host_options() -> dict[str, object]:
    """Inductor options under which the host code runs on every CPU of this architecture."""
    # simdlen 1 is no vector extension's width, so none is used.
    options: dict[str, object] = {"cpp.simdlen": 1}
    if _has_option():
        options["cpp.march"] = "x86-64" if platform.machine() in ("x86_64", "AMD64") else ""
    return options


def portable_host() -> AbstractContextManager[None]:
    """Drops `-march=native` on torch releases without the option; to be held while compiling."""
    return _patch.held()


def _has_option() -> bool:
    return hasattr(torch_private.inductor_config().cpp, "march")


def _apply(patches: Patches) -> None:
    def cflags(*args: Any, **kwargs: Any) -> Any:
        return _without_native(stock(*args, **kwargs))

    stock = patches.set(torch_private.inductor_cpp_builder(), "_get_optimization_cflags", cflags)


def _without_native(flags: Any) -> Any:
    if isinstance(flags, (list, tuple)):
        kept = [_without_native(item) for item in flags if item != "march=native"]
        return type(flags)(kept)
    return flags


_patch = SharedPatch("portable host code", _apply, lambda: not _has_option())
