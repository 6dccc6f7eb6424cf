"""`graftwork inspect`."""

from __future__ import annotations

from pathlib import Path

from rich.table import Table

from graftwork.inspecting import inspect_artifact

from .progress import progress
from .records import print_json
from .tables import console, folding_table


def run_inspect(file: Path, *, as_json: bool) -> None:
    """Print what the artifact holds and what made it."""
    with progress(silent=as_json) as announce:
        announce(f"read {file}")
        record = inspect_artifact(file)
    if as_json:
        print_json(record)
        return
    out = console()
    made = record["made_by"]
    facts = Table(show_header=False, title=str(file))
    for key in ("kind", "methods", "delegates", "operators"):
        if record[key]:
            value = record[key]
            facts.add_row(key, ", ".join(value) if isinstance(value, list) else str(value))
    if made is None:
        facts.add_row("made by", "not by graftwork: it carries no plugin set")
    else:
        for key in ("graftwork", "target", "torch", "executorch", "archs", "runtime"):
            value = made.get(key)
            if key == "runtime" and value is None:
                continue
            if isinstance(value, dict):
                value = [f"{name} {text}" for name, text in value.items()]
            facts.add_row(key, ", ".join(value) if isinstance(value, list) else str(value))
    out.print(facts)
    if made is not None:
        table = folding_table("plugin", "version", "distribution", "fired")
        for plugin in made["plugins"]:
            table.add_row(
                plugin["text"], plugin["version"], plugin["distribution"], str(plugin["fired"])
            )
        out.print(table)
