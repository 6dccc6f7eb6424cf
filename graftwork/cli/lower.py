"""`graftwork lower` and `graftwork explain`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from graftwork.backend.staging import publish, staging_directory
from graftwork.html_report import write_html_report
from graftwork.lowering import explain, lower
from graftwork.plugins.errors import InputError, OptionError
from graftwork.plugins.options import split_plugin_list

from .models import load_model, refuse_exit
from .progress import progress
from .records import print_json
from .tables import console, print_details, print_events, print_outputs, print_plugins


def run_lower(
    model: str,
    output: Path,
    *,
    target: str,
    enable: Sequence[str],
    disable: Sequence[str],
    option: Sequence[str],
    name: str,
    arch: str,
    data_name: str,
    runtime: str,
    ptx: bool,
    verify: bool,
    html: Path | None,
    as_json: bool,
) -> None:
    """Lower, then print what fired, the artifact and the differences from eager."""
    with ExitStack() as held:
        announce = held.enter_context(progress(silent=as_json))
        held.enter_context(refuse_exit(model))
        page = held.enter_context(_page(html)) if html is not None else None
        announce("import")
        loaded = load_model(model)
        lowered = lower(
            loaded.model,
            loaded.inputs,
            kwargs=loaded.kwargs,
            dynamic_shapes=loaded.dynamic_shapes,
            target=target,
            directory=output,
            name=name or None,
            archs=split_plugin_list(arch),
            settings={"data_name": data_name, "runtime": runtime, "ptx": ptx},
            verify=verify,
            explain_disabled=True,
            on_stage=announce,
            **chosen(enable, disable, option),
        )
        report = lowered.report
        if page is not None:
            write_html_report(report, page)
    if as_json:
        print_json(report.to_json())
        return
    out = console()
    print_plugins(out, report)
    print_outputs(out, report)
    print_details(out, report)
    for file in report.files:
        out.print(f"artifact: {file}", soft_wrap=True)


def run_explain(
    model: str,
    *,
    target: str,
    enable: Sequence[str],
    disable: Sequence[str],
    option: Sequence[str],
    as_json: bool,
) -> None:
    """Export and rewrite only; print every candidate."""
    with progress(silent=as_json) as announce, refuse_exit(model):
        announce("import")
        loaded = load_model(model)
        report = explain(
            loaded.model,
            loaded.inputs,
            kwargs=loaded.kwargs,
            dynamic_shapes=loaded.dynamic_shapes,
            target=target,
            on_stage=announce,
            **chosen(enable, disable, option),
        )
    if as_json:
        print_json(report.to_json())
        return
    print_events(console(), report)


@contextmanager
def _page(html: Path) -> Iterator[Path]:
    """Where to write the report; it takes its place at the end. What is wrong is said at once.

    Raises:
        InputError: it cannot be written there, or its name is no page's but perhaps an artifact's.
    """
    if html.suffix not in (".html", ".htm") or html.is_dir():
        raise InputError(f"--report {html} must name a file that ends in .html")
    with staging_directory(html.parent) as stage:
        yield stage / html.name
        publish([stage / html.name], html.parent)


def chosen(enable: Sequence[str], disable: Sequence[str], option: Sequence[str]) -> dict[str, Any]:
    """The selection's keyword arguments from the command line's texts."""
    options: dict[str, dict[str, str]] = {}
    for text in option:
        path, equals, value = text.partition("=")
        name, dot, key = path.partition(".")
        if not equals or not dot or not name or not key:
            raise OptionError(f"'{text}' is not ID.KEY=VALUE")
        options.setdefault(name, {})[key] = value
    return {
        "enable": [item for text in enable for item in split_plugin_list(text)],
        "disable": [item for text in disable for item in split_plugin_list(text)],
        "options": options,
    }
