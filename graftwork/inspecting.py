"""Reads an artifact back: its methods, delegates, operators and the plugin set that made it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from graftwork.backend.manifest import read_program_manifest
from graftwork.backend.program_file import read_program_file
from graftwork.backend.targets.aoti import read_package_manifest
from graftwork.plugins.errors import InputError


def inspect_artifact(path: Path) -> dict[str, Any]:
    """A JSON-ready record of a .pte or .pt2 file.

    `made_by` is the embedded manifest, None for a file that graftwork did not write.

    Raises:
        InputError: no such file, another suffix, or unreadable.
    """
    if not path.is_file():
        raise InputError(f"no file {path}")
    if path.suffix == ".pt2":
        made_by = read_package_manifest(path)
        return {
            "kind": "AOTInductor package",
            "methods": made_by["methods"] if made_by else [],
            "delegates": [],
            "operators": [],
            "made_by": made_by,
        }
    if path.suffix != ".pte":
        raise InputError(f"{path} is neither a .pte nor a .pt2 file")
    program = read_program_file(path)
    return {
        "kind": "ExecuTorch program",
        "methods": sorted(plan.name for plan in program.plans),
        "delegates": sorted({d.id for plan in program.plans for d in plan.delegates}),
        "operators": sorted({name for plan in program.plans for name in plan.operators}),
        "made_by": read_program_manifest(program),
    }
