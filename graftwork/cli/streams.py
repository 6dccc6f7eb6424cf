"""Standard output and error where they are closed, full, or know few characters."""

from __future__ import annotations

import os
import sys
from io import TextIOWrapper


def settle_streams() -> None:
    """Open what was closed (`>&-`), to nowhere, and let no character be an error.

    A file opened later would otherwise take the free number, and what libraries print go into it.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            setattr(sys, name, os.fdopen(number, "r" if number == 0 else "w", closefd=False))
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def is_output_lost() -> bool:
    """Whether standard output takes not even an end of line; it leads nowhere from then on."""
    try:
        print(flush=True)  # what failed before may be dropped already, and a mere flush succeed
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return True
    return False
