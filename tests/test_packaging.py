"""What is in the folders is in the wheel, below `graftwork` and nowhere else."""

import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
SETTINGS = tomllib.loads((ROOT / "pyproject.toml").read_text())
MAPPED = {"plugins", "passes", "decompositions", "shims_cuda"}


def test_every_package_folder_is_listed():
    folders = {
        "graftwork" if folder == "graftwork" else f"graftwork.{folder}": ROOT / folder
        for folder in ("graftwork", *MAPPED)
    }
    found = set()
    for name, folder in folders.items():
        for path in folder.rglob("__init__.py"):
            parts = path.parent.relative_to(folder).parts
            if not (name == "graftwork" and parts and parts[0] in MAPPED):
                found.add(".".join((name, *parts)))
    assert sorted(SETTINGS["tool"]["setuptools"]["packages"]) == sorted(found)


def test_entry_points_name_modules_of_the_four_folders():
    for name, module in SETTINGS["project"]["entry-points"]["graftwork.plugins"].items():
        assert module.split(".")[-1] == name.replace("-", "_")


@pytest.mark.parametrize("folder", sorted(MAPPED))
def test_links_show_the_layout_to_type_checkers(folder):
    link = ROOT / "graftwork" / folder
    assert link.is_symlink() and link.resolve() == ROOT / folder


def test_pinned_set_up_satisfies_what_the_package_asks():
    import importlib.metadata
    import re

    pins = dict(re.findall(r"^([\w-]+)==(\S+)$", (ROOT / "requirements.txt").read_text(), re.M))
    for requirement in importlib.metadata.requires("graftwork"):
        name = re.match(r"[\w-]+", requirement).group()
        if "extra ==" not in requirement and name != "tomli":
            assert name in pins, f"{name} is not pinned in requirements.txt"
