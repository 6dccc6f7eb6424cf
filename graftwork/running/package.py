"""A .pt2 package of AOTInductor, on the device that it was compiled for.

A package with a plain library is unpacked here and called through the library's C interface:
nothing is left behind where loading fails, and the call can be captured in a CUDA graph. Anything
else (operators that go through libtorch's dispatcher, weights in files of their own, sources to
compile) is left to torch's own loader, without graphs.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import weakref
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import torch

from graftwork.backend.signature import Signature
from graftwork.plugins.errors import InputError
from graftwork.plugins.torch_private import aoti_package_loader

from .graphs import Run
from .library import CompiledLibrary, check_library, this_gpu
from .runtimes import RunnableMethod

__all__ = ["load_package"]

_NOT_DATA = ("_metadata.json", "_compile_flags.json", "_linker_flags.json")


def load_package(path: Path, signatures: dict[str, Signature]) -> dict[str, RunnableMethod]:
    """Load every model of a package; the one that torch calls `model` is method `forward`.

    Raises:
        InputError: no readable package, or none for this machine.
    """
    folder = _Folder()
    try:
        methods = {}
        for model, files in _unpack(path, folder.path).items():
            name = "forward" if model == "model" else model
            methods[name] = _load(path, model, name, files, signatures.get(name), folder)
        return methods
    except BaseException:
        folder.remove()
        raise


class _Folder:
    """A temporary folder that goes with the last method that refers to it.

    Kernels in files of their own are read when they are first launched. On the CPU nothing is read
    once a program is loaded, so its folder goes then, and a process that is killed leaves none.
    """

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="graftwork-"))
        self.remove = weakref.finalize(self, shutil.rmtree, self.path, ignore_errors=True)


def _unpack(path: Path, folder: Path) -> dict[str, list[Path]]:
    """Each model's files, unpacked below `folder`."""
    models: dict[str, list[Path]] = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                parts = PurePosixPath(name).parts
                if "aotinductor" in parts[:-2]:
                    model = parts[parts.index("aotinductor") + 1]
                    models.setdefault(model, []).append(Path(archive.extract(name, folder)))
    except (zipfile.BadZipFile, OSError) as error:
        raise InputError(f"{path} is not a readable package: {error}") from error
    if not models:
        raise InputError(f"{path} holds no model compiled by AOTInductor")
    return models


def _load(
    path: Path,
    model: str,
    name: str,
    files: Sequence[Path],
    signature: Signature | None,
    folder: _Folder,
) -> RunnableMethod:
    label = str(path) if name == "forward" else f"{path}, method {name}"
    device = _device(label, files)
    if device == "cuda":
        this_gpu()
    libraries = [file for file in files if file.suffix == ".so"]
    plain = len(libraries) == 1 and not any(_is_data(file) for file in files)
    if not plain:
        for library in libraries:
            check_library(library, label, device)
        run, spec = _through_torch(path, label, model, folder.path)
        no_graph = "it calls operators through libtorch's dispatcher or keeps data in files"
    else:
        loaded = CompiledLibrary(libraries[0], label, device, libraries[0].parent)
        run, spec = loaded.run, loaded.call_spec()
        no_graph = "" if signature else "its file does not say what it holds in host memory"
    if signature is None:
        signature = Signature(None, None, *spec)
    elif signature.host_constants:
        no_graph = f"its constant {signature.host_constants[0]} is in host memory"
    return RunnableMethod(
        run, device, signature, no_graph, keeps=folder if device == "cuda" else None
    )


def _device(label: str, files: Sequence[Path]) -> str:
    """The device that a model's metadata names."""
    for file in files:
        if file.name.endswith("_metadata.json"):
            key = json.loads(file.read_text()).get("AOTI_DEVICE_KEY")
            if key in ("cpu", "cuda"):
                return str(key)
            if key:
                raise InputError(f"{label} runs on {key}; here programs run on cpu and cuda")
    raise InputError(f"{label} does not name the device it runs on")


def _is_data(file: Path) -> bool:
    """Whether a file is more than the library, its kernels, its sources and their records."""
    if file.suffix == ".json":
        return not file.name.endswith(_NOT_DATA)
    return file.suffix not in (".so", ".cpp", ".h", ".cubin", ".ptx", ".fatbin", ".hsaco", ".spv")


def _through_torch(
    path: Path, label: str, model: str, folder: Path
) -> tuple[Run, tuple[str, str]]:
    try:
        loader = aoti_package_loader(path, model, folder)
    except RuntimeError as error:
        message = str(error).strip().splitlines()[0]
        raise InputError(
            f"{label} cannot be loaded in torch {torch.__version__}: {message}"
        ) from error

    def run(inputs: Sequence[torch.Tensor]) -> list[Any]:
        return list(loader.run(list(inputs)))

    call_spec = loader.get_call_spec()
    return run, (call_spec[0], call_spec[1])
