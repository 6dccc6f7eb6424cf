"""`graftwork verify`."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from graftwork.plugins.options import split_plugin_list

from .progress import progress


def run_verify(
    ids: Sequence[str], *, examples: int, seed: int, device: str, as_json: bool
) -> None:
    """Verify, print a row a property, leave with 1 where one failed."""
    from graftwork.plugins.verification import verify

    with progress(silent=as_json) as announce:
        announce("load plugins")
        results = verify(
            [name for text in ids for name in split_plugin_list(text)],
            examples=examples,
            seed=seed,
            device=device,
            on_property=lambda plugin, promise: announce(f"{plugin.id}: {promise.name}"),
        )
    failed = [result for result in results if not result.passed]
    if as_json:
        print(json.dumps([result.to_json() for result in results], indent=2))
        sys.exit(1 if failed else 0)
    console = Console()
    table = Table("plugin", "property", "examples", "fired", "seconds", "result")
    for result in results:
        outcome = "equal" if result.passed else "DIFFERS"
        if result.references:
            outcome += f" (reference stood in: {', '.join(result.references)})"
        table.add_row(
            result.plugin,
            result.property,
            str(result.examples),
            str(result.fired),
            f"{result.seconds:.1f}",
            outcome,
        )
    console.print(table)
    for result in failed:
        console.print(
            f"{result.plugin}, {result.property}: {result.message}", markup=False, highlight=False
        )
        if result.script:
            console.print("reproduce it with:\n", highlight=False)
            console.print(result.script, markup=False, highlight=False, soft_wrap=True)
    console.print(f"{len(results) - len(failed)} passed, {len(failed)} failed", highlight=False)
    sys.exit(1 if failed else 0)
