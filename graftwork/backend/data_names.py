"""The name of a program's weights file: what may be asked for, and what is refused.

A program's weights go to `NAME.ptd` beside it. The name becomes a file name on whatever machine
the program is copied to, so it takes only what is safe on all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from graftwork.plugins.errors import InputError

__all__ = ["DEFAULT_DATA_NAME", "check_data_name", "one_data_name"]

DEFAULT_DATA_NAME = "aoti_cuda_blob"

_ALLOWED = re.compile(r"[A-Za-z0-9_.-]{1,200}")
_WINDOWS_DEVICE = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)


def check_data_name(name: str) -> str:
    """`name` if a weights file may be called so, without its `.ptd`.

    1 to 200 ASCII letters, digits, `_`, `-` and `.`; not starting with `.` or `-`, not ending in
    `.ptd`, no Windows device name with or without an extension. Raises InputError, which says
    what is wrong.
    """
    if not _ALLOWED.fullmatch(name):
        why = "1 to 200 ASCII letters, digits, '_', '-' and '.' are allowed"
    elif name[0] in ".-":
        why = f"it starts with '{name[0]}'"
    elif name.lower().endswith(".ptd"):
        why = "the suffix .ptd is added to it"
    elif name.endswith("."):
        why = "it ends in '.', which Windows drops"
    elif _WINDOWS_DEVICE.fullmatch(name):
        why = "Windows takes it for a device"
    else:
        return name
    raise InputError(f"{name!r} cannot name a weights file: {why}")


def one_data_name(names: Iterable[str]) -> str:
    """The one name that all methods of a program ask for, checked; the default for none.

    Raises InputError where they differ: a program has one weights file.
    """
    asked = sorted(set(names))
    if len(asked) > 1:
        raise InputError(
            f"the methods of one program share one weights file, but ask for {', '.join(asked)}"
        )
    return check_data_name(asked[0]) if asked else DEFAULT_DATA_NAME
