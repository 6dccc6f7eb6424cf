"""How the host side of a compiled program is built: for any machine, not for this one.

Inductor compiles it with `-march=native` and this machine's vector extensions, and the program
then stops with an illegal instruction on an older CPU. Nothing on the host side is worth that:
it launches kernels.

Nor are the extensions tried out, which compiles a file and starts a Python that imports torch:
several seconds, and processes that compile at the same time wait for each other meanwhile.
"""

from __future__ import annotations

import platform
from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private
from graftwork.plugins.errors import InputError

__all__ = ["portable_host", "portable_host_options", "require_compiler"]

_NO_WIDTH = 1  # no vector extension's, so none is used


def portable_host_options() -> dict[str, object]:
    """Inductor options under which the host code runs on every CPU of this architecture."""
    options: dict[str, object] = {"cpp.simdlen": _NO_WIDTH}
    if _has_option():
        options["cpp.march"] = "x86-64" if platform.machine() in ("x86_64", "AMD64") else ""
    return options


def portable_host() -> AbstractContextManager[None]:
    """What the options do not reach; to be held while compiling under them."""
    return _patch.held()


def require_compiler() -> None:
    """See that there is a C++ compiler.

    Raises:
        InputError: there is none; names what was tried.
    """
    try:
        torch_private.inductor_cpp_builder().get_cpp_compiler()
    except Exception as error:  # torch's own kinds, another one for each reason
        first = str(error).strip().split("\n")[0]
        raise InputError(f"{first}; install g++, or set CXX to a C++ compiler") from error


def _has_option() -> bool:
    return hasattr(torch_private.inductor_config().cpp, "march")


def _apply(patches: Patches) -> None:
    _try_no_extensions(patches)
    if not _has_option():
        _drop_native(patches)


def _try_no_extensions(patches: Patches) -> None:
    config = torch_private.inductor_config()

    def valid_vec_isa_list() -> list[Any]:
        found: list[Any] = stock() if config.cpp.simdlen != _NO_WIDTH else []
        return found

    stock = patches.set(
        torch_private.inductor_vector_extensions(), "valid_vec_isa_list", valid_vec_isa_list
    )


def _drop_native(patches: Patches) -> None:
    def cflags(*args: Any, **kwargs: Any) -> Any:
        return _without_native(stock(*args, **kwargs))

    stock = patches.set(torch_private.inductor_cpp_builder(), "_get_optimization_cflags", cflags)


def _without_native(flags: Any) -> Any:
    if isinstance(flags, (list, tuple)):
        kept = [_without_native(item) for item in flags if item != "march=native"]
        return type(flags)(kept)
    return flags


_patch = SharedPatch("portable host code", _apply, lambda: True)
