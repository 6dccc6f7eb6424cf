"""`graftwork audit`."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from graftwork.plugins.errors import InputError
from graftwork.plugins.options import split_plugin_list

from .progress import progress
from .records import print_json
from .tables import console, folding_table


def run_audit(
    file: Path,
    data: Sequence[Path],
    *,
    runtime: str,
    arch: str,
    extra_symbols: Sequence[str],
    as_json: bool,
) -> None:
    """Print what every compiled library needs; leave with 1 where a runtime would refuse one."""
    for path in (file, *data):
        if not path.is_file():
            raise InputError(f"no file {path}")
    with progress(silent=as_json) as announce:
        announce(f"read {file}")
        from graftwork.backend.audit import audit_program

        report = audit_program(
            file,
            [str(path) for path in data] or None,
            runtime=runtime or None,
            archs=split_plugin_list(arch),
            extra_symbols=extra_symbols,
        )
    if as_json:
        print_json(report.to_dict())
    else:
        out = console()
        title = f"{file} on ExecuTorch {report.release}"
        table = folding_table(
            "method", "bytes", "kernels", "architectures", "libraries", title=title
        )
        for library in report.libraries:
            table.add_row(
                library.method,
                str(library.size),
                str(len(library.kernels)),
                ", ".join(library.archs),
                ", ".join(library.needed),
            )
        out.print(table)
        for finding in report.findings:
            out.print(str(finding), soft_wrap=True)
        if report.ok:
            out.print("clean" if report.libraries else "clean: it has no CUDA delegate")
    if not report.ok:
        sys.exit(1)
