"""The record of how an artifact was made, which travels inside it.

JSON without times or paths, so that equal requests give equal bytes.
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from graftwork import __version__
from graftwork.backend.program_file import ProgramFile
from graftwork.backend.signature import Signature
from graftwork.plugins import LoweringContext, RewriteLog, Selection
from graftwork.plugins.errors import InputError

ENTRY_NAME = "graftwork.json"
FORMAT = 1


def make_manifest(
    selection: Selection,
    context: LoweringContext,
    logs: dict[str, RewriteLog],
    signatures: Mapping[str, Signature],
) -> str:
    """Write the manifest.

    It holds the target, the releases, every enabled plugin with options and count, and each
    method's signature.
    """
    plugins = [
        {
            "id": choice.plugin.id,
            "version": choice.plugin.version,
            "distribution": choice.plugin.distribution,
            "text": choice.text,
            "fired": sum(log.fired(choice.plugin.id) for log in logs.values()),
        }
        for choice in selection.enabled
    ]
    record: dict[str, Any] = {
        "format": FORMAT,
        "graftwork": __version__,
        "target": context.target,
        "device": context.device,
        "archs": list(context.archs),
        "torch": torch.__version__,
        "executorch": _version("executorch"),
        "methods": sorted(logs),
        "plugins": plugins,
        "signatures": {name: item.to_json() for name, item in signatures.items()},
    }
    return json.dumps(record, sort_keys=True)


def read_program_manifest(program: ProgramFile) -> dict[str, Any] | None:
    """The manifest embedded in a .pte; None in one that graftwork did not write.

    Raises:
        InputError: it is damaged.
    """
    entry = program.named_data.get(ENTRY_NAME)
    return None if entry is None else parse_manifest(bytes(entry), program.path)


def parse_manifest(text: bytes, path: Path) -> dict[str, Any]:
    """The manifest as `make_manifest` wrote it.

    Raises:
        InputError: it is damaged; names the file.
    """
    try:
        record = json.loads(text)
    except ValueError as error:
        raise InputError(f"{path} is damaged: its manifest cannot be read: {error}") from error
    if not isinstance(record, dict):
        raise InputError(f"{path} is damaged: its manifest is no record")
    return record


def _version(distribution: str) -> str | None:
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
