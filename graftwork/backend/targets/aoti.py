"""`aoti`: an AOTInductor package, one .pt2 file, for the CPU or for CUDA."""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graftwork.backend.elf import read_elf
from graftwork.backend.manifest import ENTRY_NAME
from graftwork.backend.refusals import refusal_of
from graftwork.backend.request import BuildRequest
from graftwork.plugins.errors import InputError, NotLowerableError

from .cpu import refuse_settings


class AotiTarget:
    """The device is the one the exported program's tensors live on."""

    name = "aoti"
    suffix = ".pt2"

    def device(self, settings: Mapping[str, Any]) -> str:
        """`settings["device"]`, the CPU where none is named."""
        return str(settings.get("device") or "cpu")

    def check(self, archs: Sequence[str], settings: Mapping[str, Any], methods: int) -> None:
        """One method, and a GPU where one is asked for."""
        others = {key: value for key, value in settings.items() if key != "device"}
        refuse_settings(self.name, archs, others)
        if methods != 1:
            raise InputError(f"target aoti takes one method, not {methods}; take cpu or cuda")
        if self.device(settings) == "cuda" and not torch.cuda.is_available():
            raise InputError("target aoti on device cuda needs a GPU; this machine has none")

    def build(self, request: BuildRequest) -> list[Path]:
        """Compile and package; the manifest becomes an entry of the archive."""
        (program,) = request.programs.values()
        path = request.directory / f"{request.name}{self.suffix}"
        with request.compile_patches():
            try:
                torch._inductor.aoti_compile_and_package(
                    program,
                    package_path=str(path),
                    inductor_configs=request.compile_options(),
                )
            except Exception as error:
                raise NotLowerableError(
                    f"AOTInductor refused the program: {refusal_of(error)}"
                ) from error
        refuse_own_runtime(path)
        with zipfile.ZipFile(path, "a") as archive:
            root = archive.namelist()[0].split("/")[0]
            stamp = zipfile.ZipInfo(f"{root}/extra/{ENTRY_NAME}", (1980, 1, 1, 0, 0, 0))
            archive.writestr(stamp, request.manifest)
        return [path]

    def why_not_runnable(self) -> str:
        """A package runs on the machine that compiled it."""
        return ""


def refuse_own_runtime(package: Path) -> None:
    """Refuse a package whose library brings a C++ runtime of its own.

    Torch's loader crashes on it, and takes the process along (seen with torch 2.11).

    Raises:
        NotLowerableError: it names the compiler, and the way out.
    """
    with zipfile.ZipFile(package) as archive:
        for name in archive.namelist():
            if not name.endswith(".so"):
                continue
            elf = read_elf(archive.read(name))
            shared = any(
                library.startswith(("libstdc++.so", "libc++.so")) for library in elf.needed
            )
            if not shared and _THROW in elf.defined:
                compiler = os.environ.get("CXX", "the C++ compiler")
                raise NotLowerableError(
                    f"{compiler} links a C++ runtime of its own into the library, which crashes "
                    "torch's loader; set CXX to a compiler that links libstdc++.so, such as g++"
                )


_THROW = "__cxa_throw"  # a function of the C++ runtime that any of its copies has


def read_package_manifest(path: Path) -> dict[str, Any] | None:
    """The manifest embedded in a .pt2 package; None where it has none.

    Raises:
        InputError: the file is no readable package.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            names = [n for n in archive.namelist() if n.endswith(f"/extra/{ENTRY_NAME}")]
            return dict(json.loads(archive.read(names[0]))) if names else None
    except (zipfile.BadZipFile, OSError, json.JSONDecodeError) as error:
        raise InputError(f"{path} is not a readable package: {error}") from error
