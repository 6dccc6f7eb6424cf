"""Finds the model, inputs and dynamic shapes that the command line's MODEL names."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch.export import ExportedProgram

from graftwork.backend.targets.aoti import is_package
from graftwork.plugins.errors import InputError


@dataclass(frozen=True)
class LoadedModel:
    """A model with its example inputs, ready for `graftwork.lower`."""

    model: torch.nn.Module | ExportedProgram
    inputs: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    dynamic_shapes: Any = None


def load_model(text: str) -> LoadedModel:
    """Load `FILE.py:NAME`, `package.module:NAME` or `FILE.pt2`.

    Raises:
        InputError: the file, the attribute, the model or its inputs cannot be had; says which.
    """
    place, colon, name = text.rpartition(":")
    if not colon and text.endswith(".pt2"):
        return _exported(_load_exported(Path(text)))
    if not colon or not place or not name:
        raise InputError(f"'{text}' is not FILE.py:NAME, package.module:NAME or FILE.pt2")
    torch.manual_seed(0)
    home = _import_file(Path(place)) if place.endswith(".py") else _import_module(place)
    if not hasattr(home, name):
        near = get_close_matches(name, [n for n in vars(home) if not n.startswith("_")], n=3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise InputError(f"{place} has no attribute '{name}'{hint}")
    found = getattr(home, name)
    model = _make_model(found, text)
    if isinstance(model, ExportedProgram):
        return _exported(model)
    inputs, kwargs = _example_inputs(found, home, text)
    shapes = _offered(found, home, "dynamic_shapes", text)
    return LoadedModel(model.eval(), inputs, kwargs, shapes)


@contextmanager
def refuse_exit(text: str) -> Iterator[None]:
    """Hold while code of MODEL `text` runs: it must not end the process.

    Raises:
        InputError: it called `sys.exit`.
    """
    try:
        yield
    except SystemExit as error:
        raise InputError(f"{text} ends the process: its code calls sys.exit()") from error


def _exported(program: ExportedProgram) -> LoadedModel:
    """With the example inputs that it was exported with, where it holds them."""
    return LoadedModel(program, *(program.example_inputs or ()))


def _make_model(found: Any, text: str) -> torch.nn.Module | ExportedProgram:
    model = found
    if isinstance(found, type) or (callable(found) and not isinstance(found, torch.nn.Module)):
        try:
            model = found()
        except Exception as error:
            raise InputError(f"{text} cannot be made without arguments: {error}") from error
    if not isinstance(model, (torch.nn.Module, ExportedProgram)):
        raise InputError(f"{text} is a {type(model).__name__}, not a torch.nn.Module")
    return model


def _example_inputs(
    found: Any, home: ModuleType, text: str
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    inputs = _offered(found, home, "example_inputs", text)
    if inputs is None:
        raise InputError(
            f"{text} offers no inputs; define example_inputs() beside it, returning a tuple"
        )
    if isinstance(inputs, dict):
        return (), inputs
    if not isinstance(inputs, tuple):
        raise InputError(
            f"example_inputs() of {text} must return a tuple or a dict, "
            f"not {type(inputs).__name__}"
        )
    return inputs, {}


def _offered(found: Any, home: ModuleType, name: str, text: str) -> Any:
    """What the model itself, else its file, offers by that name: a value or a function's."""
    own = getattr(found, name, None)
    usable = callable(own) or isinstance(own, (dict, tuple))
    offered = own if usable else getattr(home, name, None)
    if not callable(offered):
        return offered
    try:
        return offered()
    except Exception as error:
        raise InputError(f"{name}() of {text} failed: {type(error).__name__}: {error}") from error


def _import_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise InputError(f"no file {path}")
    # A file named as a module that is in use, such as json.py, must not take its place.
    taken = path.stem in sys.modules or path.stem in sys.stdlib_module_names
    name = f"_graftwork_model_{path.stem}" if taken else path.stem
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    _search(path.resolve().parent)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise InputError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    return module


def _import_module(name: str) -> ModuleType:
    _search(Path.cwd())
    try:
        return importlib.import_module(name)
    except Exception as error:
        raise InputError(
            f"module {name} cannot be imported: {type(error).__name__}: {error}"
        ) from error


def _search(folder: Path) -> None:
    """Let the model import what lies beside it, also where it does so when it is made or runs.

    The standard library comes before, since compilers start processes that search there too.
    """
    if str(folder) not in sys.path:
        installed = [at for at, entry in enumerate(sys.path) if entry.endswith("-packages")]
        sys.path.insert(installed[0] if installed else len(sys.path), str(folder))


def _load_exported(path: Path) -> ExportedProgram:
    if is_package(path):
        raise InputError(f"{path} is an AOTInductor package, so it is lowered already")
    try:
        return torch.export.load(path)
    except Exception as error:
        reason = "no such file" if not path.exists() else f"{type(error).__name__}: {error}"
        raise InputError(f"{path} cannot be loaded as an exported program: {reason}") from error
