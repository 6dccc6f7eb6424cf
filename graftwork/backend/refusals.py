"""Exceptions of Inductor in a few lines: what is wrong, which operator and line it met."""

from __future__ import annotations

import re

__all__ = ["refusal_of"]

_TARGET = re.compile(r"^\s*target: (\S+)$", re.MULTILINE)
_SOURCE = re.compile(r'Found from :\s*File "(.+)", line (\d+), in \w+\s*\n\s*(.+)')


def refusal_of(error: Exception) -> str:
    """The kind and first line of an exception; then its operator and source line, if any."""
    text = str(error).strip()
    message = f"{type(error).__name__}: {text.splitlines()[0] if text else type(error).__name__}"
    target, source = _TARGET.search(text), _SOURCE.search(text)
    if target is None:
        return message
    where = f"\n    at {source[1]}:{source[2]}: {source[3]}" if source else ""
    return f"{message.rstrip()}\n  {target[1]}{where}"
