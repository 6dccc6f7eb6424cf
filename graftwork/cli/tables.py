"""Tables for people: plugins, candidates, outputs."""

from __future__ import annotations

import shutil

from rich.console import Console
from rich.table import Table

from graftwork.report import LoweringReport


def console() -> Console:
    """The standard output; 120 columns where it is no terminal and `COLUMNS` asks for none.

    What is printed is shown as it is: source lines and paths hold brackets and colons.
    """
    columns = shutil.get_terminal_size((120, 24)).columns
    return Console(width=columns, markup=False, emoji=False, highlight=False)


def folding_table(*headers: str, title: str | None = None) -> Table:
    """A table that breaks a long name in two rather than cut it short."""
    table = Table(title=title)
    for header in headers:
        table.add_column(header, overflow="fold")
    return table


def print_plugins(console: Console, report: LoweringReport) -> None:
    """One row for every plugin that fired, declined, or was switched off and missed something."""
    table = folding_table("plugin", "version", "fired", "declined", "seconds", "", title="plugins")
    for plugin in report.plugins:
        shown = plugin.fired or plugin.declined or plugin.would_fire
        if not shown:
            continue
        note = ""
        if not plugin.enabled:
            note = f"{plugin.reason}; {plugin.would_fire} place(s) kept as they were"
        table.add_row(
            plugin.text,
            plugin.version,
            str(plugin.fired),
            str(plugin.declined),
            f"{plugin.seconds:.3f}",
            note,
        )
    console.print(table)
    for plugin in report.plugins:
        if not plugin.enabled and plugin.would_fire:
            for event in plugin.events:
                if event.rewrote:
                    console.print(
                        f"kept: {event.op} at {event.source or event.node} ({plugin.id} is off)",
                        soft_wrap=True,
                    )


def print_events(console: Console, report: LoweringReport) -> None:
    """One row a candidate, in the order they were decided."""
    table = folding_table("#", "plugin", "operator", "decision", "source line", title="candidates")
    events = [(plugin, event) for plugin in report.plugins for event in plugin.events]
    for plugin, event in sorted(events, key=lambda pair: pair[1].number or 0):
        if not plugin.enabled:
            decision = f"off ({plugin.reason}); would be {event.detail}"
        elif event.rewrote:
            decision = f"rewrote: {event.detail}"
        else:
            decision = f"declined: {event.detail}"
        where = f"{event.graph}: {event.source}" if event.graph else str(event.source or "")
        table.add_row(
            str(event.number) if event.rewrote and plugin.enabled else "",
            plugin.id,
            event.op,
            decision,
            where,
        )
    console.print(table)
    if not events:
        console.print("no plugin has a candidate in this program")


def print_outputs(console: Console, report: LoweringReport) -> None:
    """One row an output with its largest difference from eager."""
    if report.unverified:
        console.print(f"not compared with eager: {report.unverified}")
        return
    table = folding_table("output", "dtype", "shape", "max |difference|", title="against eager")
    for output in report.outputs:
        name = (
            str(output.index) if output.method == "forward" else f"{output.method} {output.index}"
        )
        table.add_row(
            name,
            output.dtype,
            "x".join(map(str, output.shape)) or "scalar",
            f"{output.max_abs_diff:.3g}",
        )
    console.print(table)
    for operator in report.references:
        console.print(
            f"eager has no kernel for {operator} here: a plugin's reference stood in for it"
        )


def print_details(console: Console, report: LoweringReport) -> None:
    """For target cuda, what each architecture's libraries hold, and how they were chosen."""
    for arch, detail in report.details.items():
        kernels = sum(library["kernels"] for library in detail["libraries"])
        choices = sum(
            len(decisions["templates"]) + len(decisions["pads"])
            for decisions in detail["decisions"]
        )
        how = f"; {choices} choice(s) by cost model, listed by --json" if choices else ""
        console.print(
            f"{arch}: {len(detail['libraries'])} library(ies), {kernels} kernel(s), clean for "
            f"ExecuTorch {detail['runtime']}{how}",
            soft_wrap=True,
        )
