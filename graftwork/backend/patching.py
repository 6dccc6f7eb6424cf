"""Set attributes and environment variables for a while, and put back exactly what was there."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

__all__ = ["Patches"]

_ABSENT = object()


class Patches:
    """A stack of substitutions. `undo` takes them back last first, even if one of them fails.

    An attribute is looked up in the object's own dictionary, so a class that inherited it does
    so again afterwards, and static and class methods come back as the objects they were.
    """

    def __init__(self) -> None:
        self._undo: list[Callable[[], Any]] = []

    def set(self, target: Any, name: str, value: Any, *, may_be_absent: bool = False) -> Any:
        """Set `target.name`; the value it had, read the normal way, is returned.

        Raises AttributeError where there is none: replacing a name that moved would have no
        effect. With `may_be_absent` that is fine, and None is returned.
        """
        before = getattr(target, name, None) if may_be_absent else getattr(target, name)
        own = vars(target).get(name, _ABSENT)

        def restore() -> None:
            if own is _ABSENT:
                delattr(target, name)
            else:
                setattr(target, name, own)

        setattr(target, name, value)
        self._undo.append(restore)
        return before

    def environment(self, name: str, value: str) -> None:
        """Set an environment variable."""
        before = os.environ.get(name)

        def restore() -> None:
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before

        os.environ[name] = value
        self._undo.append(restore)

    def now_and_at_end(self, action: Callable[[], Any]) -> None:
        """Run `action` now and again on the way out: dropping a memo that depends on a patch."""
        action()
        self._undo.append(action)

    def at_end(self, action: Callable[[], Any]) -> None:
        """Run `action` on the way out."""
        self._undo.append(action)

    def undo(self) -> None:
        """Take everything back, last first. The first error is raised after the rest is done."""
        first: BaseException | None = None
        while self._undo:
            try:
                self._undo.pop()()
            except BaseException as error:
                first = first or error
        if first is not None:
            raise first
