"""The two small libraries that a machine without a GPU lacks, built once and kept.

- A `libcuda.so` with every driver entry point, so that the linker keeps the dependency on
  `libcuda.so.1`. Nothing calls into it; on the device the real one is found.
- A device guard for CUDA that does nothing. A CPU build of torch registers none, and Inductor
  asks for one. Once loaded it stays for the life of the process.

They are kept in `$GRAFTWORK_CACHE` (default `~/.cache/graftwork`), in a folder per torch
release, and appear there by a rename, so that two processes may build at once.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

import torch

from graftwork.backend.deviceless.errors import DevicelessError
from graftwork.plugins import torch_private

__all__ = ["Toolkit", "find_toolkit", "stub_folder"]

_GUARD = """\
#include <c10/core/impl/DeviceGuardImplInterface.h>
namespace {
struct Guard final : c10::impl::NoOpDeviceGuardImpl<c10::DeviceType::CUDA> {
  c10::DeviceIndex deviceCount() const noexcept override { return 1; }
};
Guard guard;
c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, &guard);
}  // namespace
"""


@dataclasses.dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: its folder, and its version as "major.minor"."""

    home: Path
    version: str


def find_toolkit(need_fatbinary: bool = False) -> Toolkit:
    """The CUDA toolkit of $CUDA_HOME, $CUDA_PATH, the nvcc on the path, or /usr/local/cuda."""
    nvcc = shutil.which("nvcc")
    candidates = [os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH")]
    candidates += [str(Path(nvcc).resolve().parent.parent)] if nvcc else []
    candidates += ["/usr/local/cuda"]
    looked_in = [Path(folder) for folder in candidates if folder]
    for home in looked_in:
        header = home / "include" / "cuda.h"
        if not header.is_file():
            continue
        if need_fatbinary and not (home / "bin" / "fatbinary").is_file():
            raise DevicelessError(f"PTX takes nvcc's fatbinary, and {home}/bin has none")
        match = re.search(r"#define\s+CUDA_VERSION\s+(\d+)", header.read_text("utf-8", "replace"))
        number = int(match.group(1)) if match else 0
        return Toolkit(home, f"{number // 1000}.{number % 1000 // 10}")
    raise DevicelessError(
        "lowering for CUDA takes the CUDA toolkit's headers (cuda.h), found in none of "
        f"{', '.join(map(str, looked_in))}; install the toolkit, or set CUDA_HOME"
    )


def stub_folder(toolkit: Toolkit) -> Path:
    """The folder with the driver stub, built if need be; loads the device guard as well."""
    folder = _cache_folder()
    _build(folder / f"driver-{toolkit.version}" / "libcuda.so", lambda to: _driver(toolkit, to))
    _load_guard(folder)
    return folder / f"driver-{toolkit.version}"


def _cache_folder() -> Path:
    root = os.environ.get("GRAFTWORK_CACHE") or Path.home() / ".cache" / "graftwork"
    return Path(root) / "deviceless" / f"torch-{torch.__version__}"


@functools.cache
def _load_guard(folder: Path) -> object:
    if torch_private.has_cuda_build():
        torch_private.ensure_cuda_device_guard()
        return None
    library = folder / "libcuda_guard.so"
    _build(library, _guard)
    return ctypes.CDLL(str(library))


def _build(path: Path, make: Callable[[Path], None]) -> None:
    if path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
            made = Path(scratch) / path.name
            make(made)
            os.replace(made, path)
    except subprocess.CalledProcessError as error:
        raise DevicelessError(f"building {path.name} failed:\n{error.stderr}") from error
    except OSError as error:
        raise DevicelessError(
            f"cannot write {path}: {error}; set GRAFTWORK_CACHE to a folder that can be written"
        ) from error


def _driver(toolkit: Toolkit, to: Path) -> None:
    header = (toolkit.home / "include" / "cuda.h").read_text("utf-8", "replace")
    names = set(re.findall(r"CUDAAPI\s+(cu\w+)\s*\(", header))
    names |= set(re.findall(r"#define\s+cu\w+\s+(cu\w+_v\d+)\b", header))
    source = to.with_suffix(".c")
    source.write_text("".join(f"int {name}(void) {{ return 999; }}\n" for name in sorted(names)))
    _run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", str(source), "-o", str(to)])


def _guard(to: Path) -> None:
    source = to.with_suffix(".cpp")
    source.write_text(_GUARD)
    root = Path(torch.__file__).parent
    abi = int(torch.compiled_with_cxx11_abi())
    command = ["g++", "-std=c++20", "-O1", "-fPIC", "-shared", str(source), "-o", str(to)]
    command += [f"-I{root}/include", f"-L{root}/lib", "-lc10", f"-D_GLIBCXX_USE_CXX11_ABI={abi}"]
    _run(command)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)
