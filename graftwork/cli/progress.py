"""Progress on standard error while other libraries are kept quiet."""

from __future__ import annotations

import os
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TextIO

from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn


@contextmanager
def progress(silent: bool = False) -> Iterator[Callable[[str], None]]:
    """Give a function that announces the stage now running.

    On a terminal a spinner shows the stage and its time; elsewhere each stage is one line.
    Whatever compilers and runtimes write to standard error meanwhile is held back, and shown only
    where the work ends in an unexpected error. What a model prints goes to standard error, since
    standard output is for the result.
    """
    with _quiet() as stream:
        console = Console(file=stream, quiet=silent, markup=False, emoji=False, highlight=False)
        if not console.is_terminal:
            yield lambda stage: console.print(f"graftwork: {stage} ...", soft_wrap=True)
            return
        columns = (
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            TimeElapsedColumn(),
        )
        with Progress(*columns, console=console, transient=True) as bar:
            task = bar.add_task("starting", total=None)
            yield lambda stage: bar.reset(task, description=stage)


@contextmanager
def _quiet() -> Iterator[TextIO]:
    """Send file descriptor 2 to a temporary file, 1 to the real standard error; yields that."""
    from graftwork.plugins.errors import GraftworkError

    sys.stdout.flush()
    sys.stderr.flush()
    output, real = os.dup(1), os.dup(2)
    with (
        tempfile.TemporaryFile() as held,
        os.fdopen(real, "w", errors="backslashreplace") as stream,
    ):
        os.dup2(stream.fileno(), 1)
        os.dup2(held.fileno(), 2)
        try:
            with warnings.catch_warnings(), redirect_stdout(stream):
                warnings.simplefilter("ignore")
                yield stream
        except (GraftworkError, KeyboardInterrupt):
            raise
        except BaseException:
            held.seek(0)
            stream.write(held.read().decode("utf-8", "replace"))
            raise
        finally:
            sys.stderr.flush()
            os.dup2(output, 1)
            os.dup2(stream.fileno(), 2)
            os.close(output)
