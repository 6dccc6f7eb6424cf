"""The targets by name, made when first asked for."""

from __future__ import annotations

from graftwork.backend.request import Target
from graftwork.plugins.context import TARGETS
from graftwork.plugins.errors import InputError


def find_target(name: str) -> Target:
    """The target of that name.

    Raises:
        InputError: an unknown name; the known ones are listed.
    """
    if name == "cpu":
        from .cpu import CpuTarget

        return CpuTarget()
    if name == "aoti":
        from .aoti import AotiTarget

        return AotiTarget()
    if name == "cuda":
        from .cuda import CudaTarget

        return CudaTarget()
    raise InputError(f"no target '{name}'; known: {', '.join(TARGETS)}")
