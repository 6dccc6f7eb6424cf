"""Turns an error into one line (or one JSON object) and an exit code."""

from __future__ import annotations

import json
import sys
from typing import NoReturn

from graftwork.plugins.errors import GraftworkError


def leave_with(error: Exception, as_json: bool) -> NoReturn:
    """Print a user's or a plugin's mistake without a traceback; anything else is raised."""
    if not isinstance(error, GraftworkError):
        raise error
    if as_json:
        record = {
            "error": {"kind": type(error).__name__, "message": str(error)},
            "exit_code": error.exit_code,
        }
        print(json.dumps(record, indent=2))
    else:
        print(f"graftwork: {error}", file=sys.stderr)
    sys.exit(error.exit_code)
