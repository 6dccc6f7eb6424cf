"""Reads an artifact back: its methods, delegates, operators and the plugin set that made it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from graftwork.backend import executorch_api
from graftwork.backend.manifest import ENTRY_NAME
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
    parsed = executorch_api.read_pte(path)
    plans = parsed.program.execution_plan
    delegates = {delegate.id for plan in plans for delegate in plan.delegates}
    operators = {
        f"{op.name}.{op.overload}" if op.overload else op.name
        for plan in plans
        for op in plan.operators
    }
    return {
        "kind": "ExecuTorch program",
        "methods": sorted(plan.name for plan in plans),
        "delegates": sorted(delegates),
        "operators": sorted(operators),
        "made_by": _manifest(parsed),
    }


def _manifest(parsed: Any) -> dict[str, Any] | None:
    entries = parsed.named_data
    entry = entries.pte_data.get(ENTRY_NAME) if entries is not None else None
    if entry is None:
        return None
    return dict(json.loads(entries.buffers[entry.buffer_index]))
