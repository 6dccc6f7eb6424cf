"""Turns an error into one line (or one JSON object) and an exit code."""

from __future__ import annotations

import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import NoReturn

import click

from .records import print_json
from .streams import is_output_lost


class Stopped(KeyboardInterrupt):
    """A signal asked the process to end."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.exit_code = 128 + number


def stop_on_signals() -> None:
    """Let SIGTERM and SIGHUP end the work as Ctrl-C does: what was begun is removed.

    A signal that is ignored, as under nohup, stays so.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)  # Windows has no SIGHUP
        if number is not None and signal.getsignal(number) is signal.SIG_DFL:
            signal.signal(number, _stop)


def leave_with(error: BaseException, as_json: bool) -> NoReturn:
    """Print a user's or a plugin's mistake without a traceback; anything else with it."""
    kind, message = type(error).__name__, str(error)
    if isinstance(error, click.ClickException):
        code, message = error.exit_code, error.format_message()
        if not as_json:
            error.show()
    elif isinstance(error, (KeyboardInterrupt, click.Abort)):
        # Click raises its Abort from what interrupted it.
        code = getattr(error.__cause__, "exit_code", 128 + signal.SIGINT)
        kind, message = "Interrupted", "interrupted, nothing was written"
        if not as_json:
            click.echo(f"graftwork: {message}", err=True)
    elif isinstance(error, OSError) and is_output_lost():
        code = 1
        print(f"graftwork: cannot write to standard output: {error.strerror}", file=sys.stderr)
    elif _is_foreseen(error):
        code = getattr(error, "exit_code", 1)
        if not as_json:
            print(f"graftwork: {error}", file=sys.stderr)
    else:
        code = 1
        traceback.print_exception(error)
    if as_json:
        print_json({"error": {"kind": kind, "message": message}, "exit_code": code})
    sys.exit(code)


@contextmanager
def name_failing(file: Path, method: str) -> Iterator[None]:
    """Hold while an artifact runs.

    Raises:
        RunError: it reports an error; names the file, the method and the error's first line.
    """
    from graftwork.plugins.errors import RunError

    try:
        yield
    except RuntimeError as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise RunError(f"{file}: method {method} failed: {first}") from error


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    raise Stopped(number)


def _is_foreseen(error: BaseException) -> bool:
    from graftwork.plugins.errors import GraftworkError

    return isinstance(error, GraftworkError)
