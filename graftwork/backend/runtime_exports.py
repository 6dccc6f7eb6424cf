"""What each ExecuTorch release offers to a library lowered for its CUDA delegate.

`exports("1.5")` is the set of `aoti_torch_*` functions that a stock runtime of that release
provides; a library that leaves any other one undefined cannot be loaded there. The table is
`runtime_exports.json` beside this file. A runtime built with more shims of its own is described
by extra names: `exports("1.5", extra=["aoti_torch_item_float32"])`.

A runtime also reads only the payload of its own kind: `payload("1.5")` names it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Iterable
from importlib import metadata, resources

from graftwork.plugins.errors import GraftworkError

__all__ = ["Release", "UnknownReleaseError", "exports", "installed_release", "release", "releases"]


class UnknownReleaseError(GraftworkError):
    """No table is kept for that ExecuTorch release."""


@dataclasses.dataclass(frozen=True)
class Release:
    """One runtime release: its exported functions, its payload format, where both were read."""

    name: str
    symbols: frozenset[str]
    payload: str
    read_from: str


@functools.cache
def releases() -> dict[str, Release]:
    """Every release in the table, oldest first, by "major.minor"."""
    text = resources.files("graftwork.backend").joinpath("runtime_exports.json").read_text("utf-8")
    table: dict[str, Release] = {}
    symbols: frozenset[str] = frozenset()
    for row in json.loads(text)["releases"]:
        symbols = symbols | frozenset(row["adds"])
        name = row["release"]
        table[name] = Release(name, symbols, row["payload"], row["read_from"])
    return table


def release(name: str) -> Release:
    """The release that `name` ("1.5", "1.5.1", "1.5.1+cpu") belongs to.

    Raises UnknownReleaseError, which lists the known ones.
    """
    short = ".".join(name.split("+")[0].split(".")[:2])
    if short not in releases():
        known = ", ".join(releases())
        raise UnknownReleaseError(
            f"no export table for ExecuTorch {name!r}; tables are kept for {known}. A newer "
            "runtime keeps what older ones export: name the nearest, and add what it has more "
            "as extra symbols."
        )
    return releases()[short]


def exports(name: str, extra: Iterable[str] = ()) -> frozenset[str]:
    """The functions a runtime of release `name` provides, and `extra` ones of its own."""
    return release(name).symbols | frozenset(extra)


def installed_release() -> Release:
    """The release of the installed ExecuTorch, whose payload the lowering writes."""
    return release(metadata.version("executorch"))
