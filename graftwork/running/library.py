"""A compiled library, called through AOTInductor's C interface in a process with libtorch.

One road for the library of a CUDA delegate and for that of a .pt2 package, on either device. It
enters by the single-threaded function, which records no events of its own and so can be captured
in a CUDA graph.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import re
import threading
import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graftwork.backend.elf import ElfError, device_code, read_elf
from graftwork.plugins.errors import InputError
from graftwork.plugins.torch_private import free_tensor_handles, tensor_handles

__all__ = ["CompiledLibrary", "check_library"]


def check_library(path: Path, label: str, device: str) -> None:
    """Refuse what would end the process, or fail at the first call, instead of failing here.

    Raises:
        InputError: the library is damaged, or has no kernels for this machine's GPU.
    """
    data = path.read_bytes()
    try:
        read_elf(data)
    except ElfError as error:
        raise InputError(f"{label}: its compiled library is damaged: {error}") from error
    if device != "cuda":
        return
    arch = this_gpu()
    kernels: dict[str, list[Any]] = {}
    for code in device_code(data):
        kernels.setdefault(code.kernel or f"at {code.offset}", []).append(code)
    for codes in kernels.values():
        if not any(code.runs_on(arch) for code in codes):
            have = ", ".join(sorted({code.arch for code in codes}))
            raise InputError(f"{label} is compiled for {have}, and this machine's GPU is {arch}")


def this_gpu() -> str:
    """The architecture of the current GPU, such as `sm_90`.

    Raises:
        InputError: there is none, or torch was built without CUDA.
    """
    if not torch.cuda.is_available():
        why = "" if torch.version.cuda else "; this torch is a CPU build"
        raise InputError(f"the program runs on CUDA, and this machine has no GPU{why}")
    major, minor = torch.cuda.get_device_capability()
    return f"sm_{major}{minor}"


class _Entry(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("handle", ctypes.c_void_p)]


class CompiledLibrary:
    """A loaded library with its constants; `run` takes and gives flat tensors.

    Not safe to call from two threads at once.

    Raises:
        InputError: on making one, where the library cannot be loaded here.
    """

    def __init__(self, path: Path, label: str, device: str, kernels: Path | None = None) -> None:
        check_library(path, label, device)
        _expose_libtorch()
        self._label = label
        self._on_gpu = device == "cuda"
        try:
            self._library = _open(path, torch.cuda.current_device() if self._on_gpu else None)
            self._single = self._library.AOTInductorModelContainerRunSingleThreaded
        except (OSError, AttributeError) as error:
            message = re.sub(r"/proc/self/fd/\d+", "its compiled library", str(error))
            raise InputError(
                f"{label} cannot be loaded in torch {torch.__version__}: {message}"
            ) from error
        self._container = ctypes.c_void_p()
        folder = os.fspath(kernels).encode() if kernels is not None else None
        self._call(
            "AOTInductorModelContainerCreateWithDevice",
            ctypes.byref(self._container),
            ctypes.c_size_t(1),
            device.encode(),
            folder,
        )
        self._kept: list[Any] = []
        self._close = weakref.finalize(
            self, _delete, self._library, self._container, self._kept, self._on_gpu
        )
        self.inputs = self._count("AOTInductorModelContainerGetNumInputs")
        self.outputs = self._count("AOTInductorModelContainerGetNumOutputs")
        self._taken_type = ctypes.c_void_p * self.inputs
        self._made_type = ctypes.c_void_p * self.outputs

    def call_spec(self) -> tuple[str, str]:
        """The input and output trees, as pytree's `treespec_dumps` writes them."""
        texts = ctypes.c_char_p(), ctypes.c_char_p()
        self._call("AOTInductorModelContainerGetCallSpec", *map(ctypes.byref, texts))
        return ((texts[0].value or b"").decode(), (texts[1].value or b"").decode())

    def set_constants(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Let the library read and write these tensors as its constants, by original name.

        Raises:
            InputError: the library asks for one that is not given, or takes none.
        """
        if not hasattr(
            self._library, "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs"
        ):
            raise InputError(f"{self._label} was compiled by a torch release older than 2.11")
        names: dict[bytes, torch.Tensor] = {}
        for index in range(self._count("AOTInductorModelContainerGetNumConstants")):
            name, original, folded = ctypes.c_char_p(), ctypes.c_char_p(), ctypes.c_bool()
            place = ctypes.c_size_t(index)
            self._call("AOTInductorModelContainerGetConstantName", place, ctypes.byref(name))
            self._call(
                "AOTInductorModelContainerGetConstantOriginalFQN", place, ctypes.byref(original)
            )
            self._call(
                "AOTInductorModelContainerGetConstantFromFolded", place, ctypes.byref(folded)
            )
            if folded.value:
                continue
            fqn = (original.value or b"").decode()
            if fqn not in tensors:
                raise InputError(f"{self._label}: its data lacks the weight '{fqn}'")
            names[name.value or b""] = tensors[fqn]
        handles = tensor_handles(list(names.values()))
        # The container keeps the handles, not the tensors: both live as long as it does.
        self._kept += [handles, tensors]
        entries = (_Entry * len(names))(*map(_Entry, names, handles))
        self._call(
            "AOTInductorModelContainerUpdateUserManagedConstantBufferPairs",
            entries,
            ctypes.c_size_t(len(names)),
            ctypes.c_bool(False),
            ctypes.c_bool(True),
        )

    def run(self, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor | None]:
        """Call the program on the current stream.

        Raises:
            RuntimeError: whatever the program reports.
        """
        if len(inputs) != self.inputs:  # the library would end the process
            raise RuntimeError(f"the program takes {self.inputs} tensors, not {len(inputs)}")
        handles = tensor_handles(inputs)
        given, made = self._taken_type(*handles), self._made_type()
        stream = None
        if self._on_gpu:
            _bind_thread()
            stream = torch.cuda.current_stream().cuda_stream
        code = self._single(
            self._container,
            given,  # the program takes the tensors behind the handles
            ctypes.c_size_t(len(handles)),
            made,
            ctypes.c_size_t(self.outputs),
            ctypes.c_void_p(stream),
            None,
        )
        if code:
            raise RuntimeError(self._last_error())
        return free_tensor_handles(list(made))

    def _count(self, function: str) -> int:
        number = ctypes.c_size_t()
        self._call(function, ctypes.byref(number))
        return number.value

    def _call(self, function: str, *arguments: Any) -> None:
        call = getattr(self._library, function)
        head = () if self._container.value is None else (self._container,)
        if call(*head, *arguments):
            raise InputError(f"{self._label} cannot be loaded: {self._last_error()}")

    def _last_error(self) -> str:
        read = getattr(self._library, "AOTInductorGetLastError", None)
        text = ctypes.c_char_p()
        if read is not None and not read(ctypes.byref(text)) and text.value:
            return text.value.decode("utf-8", "replace").strip().splitlines()[0]
        return "its compiled library reports an error"


_opened: dict[tuple[bytes, int | None], ctypes.CDLL] = {}
_opening = threading.Lock()


def _open(path: Path, gpu: int | None) -> ctypes.CDLL:
    """The library, once in a process for each content and GPU; every load makes its own container.

    C++ keeps a library with unique symbols in memory for good, so that each opening of a copy
    would take its size again. It is opened by a file descriptor, and that is kept: a library may
    read weights appended to its file whenever a container is made, also when its path is gone.
    """
    with path.open("rb") as file:
        content = hashlib.sha256()
        while block := file.read(1 << 20):
            content.update(block)
        key = content.digest(), gpu
        with _opening:
            if key not in _opened:
                kept = os.dup(file.fileno())
                try:
                    _opened[key] = ctypes.CDLL(f"/proc/self/fd/{kept}")
                except OSError:
                    os.close(kept)
                    raise
            return _opened[key]


_bound = threading.local()


def _bind_thread() -> None:
    """Give a new thread the GPU's context, which the library's driver calls expect."""
    device = torch.cuda.current_device()
    known = vars(_bound).setdefault("devices", set())
    if device not in known:
        torch.cuda.synchronize()
        known.add(device)


def _delete(library: Any, container: Any, kept: list[Any], on_gpu: bool) -> None:
    if on_gpu:  # its kernels may still be running
        with contextlib.suppress(RuntimeError):
            torch.cuda.synchronize()
    library.AOTInductorModelContainerDelete(container)
    for item in kept:
        if isinstance(item, list):
            free_tensor_handles(item)


@functools.cache
def _expose_libtorch() -> None:
    """Make libtorch's functions visible to a library that does not name it as needed."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("c10", "torch_cpu", "c10_cuda", "torch_cuda", "torch"):
        path = folder / f"lib{name}.so"
        if path.exists():
            ctypes.CDLL(os.fspath(path), mode=ctypes.RTLD_GLOBAL)
