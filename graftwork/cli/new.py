"""`graftwork new decomposition|pass NAME`."""

from __future__ import annotations

from pathlib import Path

from graftwork.scaffold import scaffold

from .records import print_json


def run_new(kind: str, name: str, output: Path, *, as_json: bool) -> None:
    """Make the package and say what to do next."""
    files = scaffold(kind, name, output)
    root = files[0].parent
    if as_json:
        print_json({"id": name, "kind": kind, "files": [str(path) for path in files]})
        return
    for path in files:
        print(f"wrote {path}")
    print(f"next: pip install -e {root} --no-deps --no-build-isolation && pytest {root}")
