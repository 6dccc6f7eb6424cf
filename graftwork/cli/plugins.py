"""`graftwork plugins`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from graftwork.backend.unlowered import handled_operators
from graftwork.plugins import Choice, LoweringContext, select_plugins
from graftwork.plugins.options import describe_options

from .lower import chosen
from .progress import progress
from .records import print_json
from .tables import console, folding_table


def run_plugins(
    *, enable: Sequence[str], disable: Sequence[str], option: Sequence[str], as_json: bool
) -> None:
    """List every installed plugin with the decision about it."""
    with progress(silent=as_json):
        selection = select_plugins(**chosen(enable, disable, option))
        records = [_record(choice) for choice in selection.choices]
    if as_json:
        print_json(records)
        return
    table = folding_table("id", "kind", "version", "distribution", "enabled", "handles")
    for record in records:
        table.add_row(
            record["id"],
            record["kind"],
            record["version"],
            record["distribution"],
            f"{'yes' if record['enabled'] else 'no'} ({record['reason']})",
            ", ".join(record["handles"]) or record["summary"],
        )
    console().print(table)


def _record(choice: Choice) -> dict[str, Any]:
    plugin = choice.plugin
    operators = [] if plugin.broken else handled_operators(plugin, LoweringContext())
    return {
        "id": plugin.id,
        "kind": plugin.kind,
        "version": plugin.version,
        "distribution": plugin.distribution,
        "enabled": choice.enabled,
        "reason": choice.reason,
        "summary": plugin.info.summary,
        "text": choice.text,
        "options": {} if plugin.broken else describe_options(plugin.info.options),
        "targets": sorted(plugin.info.targets) if plugin.info.targets is not None else None,
        "handles": sorted(map(str, operators)),
    }
