"""Promises of the kernel plugins, checked on a GPU."""

from __future__ import annotations

from graftwork.plugins import Property
from graftwork.plugins.checking import find_plugin
from graftwork.plugins.verification import verify_property

PLUGINS = ("scatter", "scatter-reduce", "index-put", "sort", "unique")


def promises_of(plugin: str) -> dict[str, Property]:
    return {p.name: p for p in find_plugin(plugin).call("list_properties") if p.road == "direct"}


def assert_holds(plugin: str, promise: Property, examples: int, seed: int) -> None:
    result = verify_property(find_plugin(plugin), promise, examples, seed, "cuda")
    print(f"{plugin} {promise.name} {result.examples} examples in {result.seconds:.0f} s")
    assert result.passed, f"{result.message}\n{result.script}"
