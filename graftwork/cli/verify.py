"""`graftwork verify`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from graftwork.plugins.options import split_plugin_list

from .progress import progress
from .records import print_json
from .tables import console, folding_table


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
        print_json([result.to_json() for result in results])
        sys.exit(1 if failed else 0)
    out = console()
    table = folding_table("plugin", "property", "examples", "fired", "seconds", "result")
    for result in results:
        table.add_row(
            result.plugin,
            result.property,
            str(result.examples),
            str(result.fired),
            f"{result.seconds:.1f}",
            "equal" if result.passed else "DIFFERS",
        )
    out.print(table)
    for result in results:
        for why in result.references:
            out.print(f"{result.plugin}, {result.property}: compared with a reference: {why}")
    for result in failed:
        out.print(f"{result.plugin}, {result.property}: {result.message}")
        if result.script:
            out.print("reproduce it with:\n")
            out.print(result.script, soft_wrap=True)
    out.print(f"{len(results) - len(failed)} passed, {len(failed)} failed")
    sys.exit(1 if failed else 0)
