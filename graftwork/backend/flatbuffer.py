"""Reads FlatBuffers tables by field number, for the few that artifacts are made of.

The layout is FlatBuffers' own, all little-endian: a table starts with the signed distance back to
its vtable, which gives each field's place in the table; strings, vectors and tables are reached
by an unsigned distance from where they are referred to.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, TypeVar

__all__ = ["Table", "root"]

Item = TypeVar("Item")


def root(data: memoryview) -> Table:
    """The root table of a buffer that starts at byte 0 of `data`.

    Everything read from it raises struct.error, IndexError or ValueError where `data` is cut
    short or is something else.
    """
    return Table(data, _follow(data, 0))


class Table:
    """One table; fields are asked for by number and kind, and absent ones give the default."""

    def __init__(self, data: memoryview, at: int) -> None:
        self._data = data
        self._at = at
        (back,) = struct.unpack_from("<i", data, at)
        vtable = at - back
        if not 0 <= vtable <= len(data) - 4:
            raise ValueError("a table points outside the file")
        (size,) = struct.unpack_from("<H", data, vtable)
        self._fields = struct.unpack_from(f"<{(size - 4) // 2}H", data, vtable + 4)

    def number(self, field: int, layout: str = "i", default: int = 0) -> int:
        """A scalar field of the given struct layout."""
        at = self._place(field)
        return default if at is None else int(struct.unpack_from("<" + layout, self._data, at)[0])

    def real(self, field: int) -> float:
        """A double field."""
        at = self._place(field)
        return 0.0 if at is None else float(struct.unpack_from("<d", self._data, at)[0])

    def text(self, field: int) -> str:
        """A string field."""
        return bytes(self.bytes(field)).decode("utf-8")

    def bytes(self, field: int) -> memoryview:
        """A vector of bytes, not copied."""
        at = self._place(field)
        if at is None:
            return self._data[:0]
        start, length = self._vector(at)
        return self._data[start : start + length]

    def numbers(self, field: int, layout: str = "i") -> tuple[int, ...]:
        """A vector of scalars."""
        at = self._place(field)
        if at is None:
            return ()
        start, length = self._vector(at)
        return struct.unpack_from(f"<{length}{layout}", self._data, start)

    def table(self, field: int) -> Table | None:
        """A table field, or the table of a union."""
        at = self._place(field)
        return None if at is None else Table(self._data, _follow(self._data, at))

    def tables(self, field: int, make: Callable[[Table], Item]) -> list[Item]:
        """A vector of tables, each given to `make`."""
        at = self._place(field)
        if at is None:
            return []
        start, length = self._vector(at)
        places = range(start, start + 4 * length, 4)
        return [make(Table(self._data, _follow(self._data, place))) for place in places]

    def _place(self, field: int) -> int | None:
        offset = self._fields[field] if field < len(self._fields) else 0
        return self._at + offset if offset else None

    def _vector(self, at: int) -> tuple[int, int]:
        start = _follow(self._data, at)
        (length,) = struct.unpack_from("<I", self._data, start)
        if length > len(self._data) - start - 4:
            raise ValueError("a vector points outside the file")
        return start + 4, length


def _follow(data: Any, at: int) -> int:
    return at + int(struct.unpack_from("<I", data, at)[0])
