"""Makes a third-party plugin package from the templates beside this file."""

from __future__ import annotations

import importlib.metadata
import importlib.resources
import re
import string
from pathlib import Path

from graftwork.backend.staging import publish, staging_directory
from graftwork.plugins.errors import InputError
from graftwork.plugins.registry import ENTRY_POINT_GROUP

KINDS = ("decomposition", "pass")


def scaffold(kind: str, name: str, directory: Path) -> list[Path]:
    """Write a package `graftwork-NAME` below `directory` and give its files.

    Args:
        kind: `decomposition` or `pass`.
        name: the plugin's id, kebab-case.
        directory: where the package's folder is made; the folder must not exist yet.

    Raises:
        InputError: the name is no kebab-case id or an installed plugin's, or the folder exists
            or cannot be written.
    """
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        raise InputError(f"'{name}' is not kebab-case; write for example 'my-{kind}'")
    if importlib.metadata.entry_points(group=ENTRY_POINT_GROUP, name=name):
        raise InputError(f"a plugin '{name}' is installed already; take another name")
    distribution = f"graftwork-{name}"
    if (directory / distribution).exists():
        raise InputError(f"{directory / distribution} exists already; take another name or -o")
    package = distribution.replace("-", "_")
    values = {
        "id": name,
        "distribution": distribution,
        "package": package,
        "module": name.replace("-", "_"),
    }
    files = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"{package}/__init__.py": "init.py.txt",
        f"{package}/{values['module']}.py": f"{kind}.py.txt",
        f"tests/test_{values['module']}.py": "test.py.txt",
    }
    templates = importlib.resources.files(__name__)
    with staging_directory(directory) as stage:
        root = stage / distribution
        for target, template in files.items():
            path = root / target
            path.parent.mkdir(parents=True, exist_ok=True)
            text = (templates / template).read_text(encoding="utf-8")
            path.write_text(string.Template(text).substitute(values), encoding="utf-8")
        (made,) = publish([root], directory)
    return [made / target for target in files]
