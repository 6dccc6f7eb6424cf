"""How the host side of a compiled program is built: for any machine, not for this one.

Inductor compiles it with `-march=native` and this machine's vector extensions, and the program
then stops with an illegal instruction on an older CPU. Nothing on the host side is worth that:
it launches kernels.
"""

from __future__ import annotations

import platform

__all__ = ["portable_host_options"]


def portable_host_options() -> dict[str, object]:
    """Inductor options under which the host code runs on every CPU of this architecture."""
    x86 = platform.machine() in ("x86_64", "AMD64")
    # simdlen 1 is no vector extension's width, so none is used.
    return {"cpp.march": "x86-64" if x86 else "", "cpp.simdlen": 1}
