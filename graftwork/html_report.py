"""A report one can look at: what fired where, with the source lines, in one HTML file."""

from __future__ import annotations

import html
from collections.abc import Iterable
from pathlib import Path

from graftwork.plugins.errors import InputError
from graftwork.report import LoweringReport, PluginReport

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem }
table { border-collapse: collapse; width: 100%; margin: 0 0 2rem }
th, td { text-align: left; padding: .35rem .7rem; border-bottom: 1px solid #ddd }
code { font: 13px ui-monospace, monospace; overflow-wrap: anywhere }
.rewrote { color: #14692b } .declined { color: #8a5a00 } .off { color: #777 }
pre { background: #f6f6f6; padding: 1rem; overflow-x: auto; font-size: 12px }
@media (prefers-color-scheme: dark) { body { background: #151515; color: #ddd }
  th, td { border-color: #333 } pre { background: #222 } .rewrote { color: #7ed491 }
  .declined { color: #e0b060 } }
"""


def write_html_report(report: LoweringReport, path: Path) -> None:
    """Write the report to `path`.

    Raises:
        InputError: the file cannot be written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(render(report), encoding="utf-8")
    except OSError as error:
        raise InputError(f"cannot write {path}: {error.strerror or error}") from error


def render(report: LoweringReport) -> str:
    """The report as one self-contained HTML page."""
    name = report.artifact.name if report.artifact else "dry run"
    stages = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in report.stages.items())
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'>",
        f"<title>{html.escape(name)}</title><style>{_STYLE}</style>",
        f"<h1>{html.escape(name)}</h1><p>target {report.target}; {stages}</p>",
        "<h2>Plugins</h2>",
        _table(("plugin", "version", "fired", "declined", "seconds", "decision"), _rows(report)),
        "<h2>Candidates</h2>",
        _table(
            ("#", "plugin", "operator", "decision", "source line"),
            (row for plugin in report.plugins for row in _events(plugin)),
        ),
    ]
    if report.outputs:
        parts += [
            "<h2>Against eager</h2>",
            _table(("output", "dtype", "shape", "max |difference|"), _outputs(report)),
        ]
    for title, programs in (("Before", report.before), ("After", report.after)):
        for method, text in programs.items():
            parts.append(
                f"<details><summary>{title}: {html.escape(method)}</summary>"
                f"<pre>{html.escape(text)}</pre></details>"
            )
    return "\n".join(parts) + "</html>\n"


def _rows(report: LoweringReport) -> Iterable[tuple[str, ...]]:
    for plugin in report.plugins:
        if plugin.enabled or plugin.would_fire:
            note = plugin.reason
            if not plugin.enabled:
                note += f"; {plugin.would_fire} place(s) kept as they were"
            yield _escaped(
                (
                    plugin.text,
                    plugin.version,
                    str(plugin.fired),
                    str(plugin.declined),
                    f"{plugin.seconds:.3f}",
                    note,
                )
            )


def _outputs(report: LoweringReport) -> Iterable[tuple[str, ...]]:
    for output in report.outputs:
        shape = "x".join(map(str, output.shape))
        name = f"{output.method} {output.index}"
        yield _escaped((name, output.dtype, shape, f"{output.max_abs_diff:.3g}"))


def _events(plugin: PluginReport) -> Iterable[tuple[str, ...]]:
    for event in plugin.events:
        kind = ("rewrote" if event.rewrote else "declined") if plugin.enabled else "off"
        number, name, op, detail, line = _escaped(
            (
                str(event.number or ""),
                plugin.id,
                event.op,
                event.detail,
                str(event.source or event.node),
            )
        )
        yield (
            number,
            name,
            f"<code>{op}</code>",
            f"<span class='{kind}'>{kind}: {detail}</span>",
            f"<code>{line}</code>",
        )


def _escaped(cells: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(html.escape(cell) for cell in cells)


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    header = "".join(f"<th>{cell}</th>" for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{c}</td>" for c in row) + "</tr>" for row in rows)
    return f"<table><tr>{header}</tr>{body}</table>"
