"""Writes an artifact beside its place, then renames: nothing half-written is ever left."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from graftwork.plugins.errors import InputError


@contextmanager
def staging_directory(directory: Path) -> Iterator[Path]:
    """A hidden directory inside `directory`, removed at the end whatever happens.

    Directories that had to be made for it are removed again where nothing was put into them.

    Raises:
        InputError: the directory cannot be made or written.
    """
    made = [p for p in (directory, *directory.parents) if not p.exists()]
    try:
        directory.mkdir(parents=True, exist_ok=True)
        stage = Path(tempfile.mkdtemp(prefix=".graftwork-", dir=directory))
    except OSError as error:
        _remove_empty(made)
        raise InputError(f"cannot write to {directory}: {error.strerror or error}") from error
    try:
        yield stage
    except OSError as error:
        raise InputError(f"cannot write to {directory}: {error.strerror or error}") from error
    finally:
        shutil.rmtree(stage, ignore_errors=True)
        _remove_empty(made)


def publish(files: list[Path], directory: Path) -> list[Path]:
    """Move staged files into `directory`, the first (the artifact) last."""
    for file in reversed(files):
        os.replace(file, directory / file.name)
    return [directory / file.name for file in files]


def _remove_empty(directories: list[Path]) -> None:
    for path in directories:
        try:
            path.rmdir()
        except OSError:
            return
