"""What `--json` prints: one JSON document on standard output."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def print_json(record: Any) -> None:
    """Print a record; a float that JSON has no number for is a text: "Infinity", "NaN"."""
    print(json.dumps(_strict(record), indent=2, allow_nan=False))


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    if isinstance(value, Mapping):
        return {key: _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    return value
