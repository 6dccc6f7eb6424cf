"""Arrows point one way, and private torch modules are imported in one place."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ALLOWED = {
    "plugins": ("graftwork.plugins",),
    "passes": ("graftwork.plugins", "graftwork.passes"),
    "decompositions": ("graftwork.plugins", "graftwork.decompositions"),
    "shims_cuda": ("graftwork.plugins", "graftwork.shims_cuda"),
    "graftwork/backend": ("graftwork.plugins", "graftwork.backend"),
}


def imports(path):
    """The absolute names a file imports, relative ones resolved."""
    package = ("graftwork", *path.relative_to(ROOT).parent.parts)
    if package[1:2] == ("graftwork",):
        package = package[1:]
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(filter(None, (base, node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("folder", ALLOWED)
def test_folder_imports_only_what_it_may(folder):
    for path in (ROOT / folder).rglob("*.py"):
        for name in imports(path):
            if name.startswith("graftwork.") and name != "graftwork.__version__":
                assert name.startswith(ALLOWED[folder]), f"{path.relative_to(ROOT)}: {name}"


def test_plugins_do_not_import_each_other():
    """But for a kernel family's custom operators, of which another's may be made."""
    for folder in ("passes", "decompositions", "shims_cuda"):
        for path in (ROOT / folder).rglob("*.py"):
            relative = path.relative_to(ROOT / folder)
            own = relative.parts[0].removesuffix(".py")
            for name in imports(path):
                parts = name.split(".")
                if parts[:2] == ["graftwork", folder] and len(parts) > 2:
                    shared = parts[1:3] == ["shims_cuda", "stages"] or "operators" in parts[3:4]
                    assert shared or parts[2] == own, f"{path.relative_to(ROOT)} imports {name}"


def test_private_torch_modules_are_imported_in_one_place():
    for folder in ("graftwork", "plugins", "passes", "decompositions", "shims_cuda"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.parent == ROOT / "plugins" / "torch_private":
                continue
            for name in imports(path):
                parts = name.split(".")
                private = parts[0] == "torch" and any(
                    part.startswith("_") or part == "experimental" for part in parts[1:]
                )
                assert not private or name in PUBLIC_ENOUGH, f"{path.relative_to(ROOT)}: {name}"


# `OpOverload` and pytree are what public signatures are made of.
PUBLIC_ENOUGH = {
    "torch._ops",
    "torch._ops.HigherOrderOperator",
    "torch._ops.OpOverload",
    "torch.utils._pytree",
}
