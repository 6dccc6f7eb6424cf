"""A patch that several compiles may hold at once: applied for the first, undone after the last."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from graftwork.backend.patching import Patches

__all__ = ["SharedPatch"]

_log = logging.getLogger("graftwork")


class SharedPatch:
    """A correction of the compiler, counted by its holders.

    `is_needed` asks the installed torch whether it has the fault at all, by trying the smallest
    thing that shows it; where it has not, holding the patch says so once and changes nothing.
    """

    def __init__(
        self, name: str, apply: Callable[[Patches], None], is_needed: Callable[[], bool]
    ) -> None:
        self.name = name
        self._apply = apply
        self._is_needed = is_needed
        self._needed: bool | None = None
        self._lock = threading.Lock()
        self._holders = 0
        self._patches = Patches()

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the patch; threads may overlap and leave in any order."""
        with self._lock:
            if self._needed is None:
                self._needed = self._is_needed()
                if not self._needed:
                    _log.info("%s: torch %s does not need it", self.name, torch.__version__)
            if self._holders == 0 and self._needed:
                try:
                    self._apply(self._patches)
                except BaseException:
                    self._patches.undo()
                    raise
            self._holders += 1
        try:
            yield
        finally:
            with self._lock:
                self._holders -= 1
                if self._holders == 0:
                    self._patches.undo()
