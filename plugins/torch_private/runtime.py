"""CUDA builds and devices as torch sees them, and what runs a compiled library."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

_ENVIRONMENT = threading.Lock()


def has_cuda_build() -> bool:
    """Whether torch was built with CUDA (then it has a device guard of its own)."""
    return bool(torch.cuda._is_compiled())


def ensure_cuda_device_guard() -> None:
    """Register the CUDA device guard of a CUDA build, without touching a device."""
    torch._C._ensureCUDADeviceGuardSet()


def dynamo_cuda_interface() -> type:
    """Dynamo's view of torch.cuda; it captured the functions when its class was made."""
    from torch._dynamo.device_interface import CudaInterface

    return CudaInterface


def dynamo_device_properties() -> dict[str, Any]:
    """Dynamo's memo of device properties, by device type."""
    from torch._dynamo.device_interface import caching_worker_device_properties

    return caching_worker_device_properties


_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def tensor_handles(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Addresses of new tensor objects that alias `tensors`, as AOTInductor's C interface takes.

    Whoever is given one must free it. Stands for `torch._C._aoti`.
    """
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return [_address(capsule, None) for capsule in capsules]


def free_tensor_handles(handles: Sequence[int | None]) -> list[torch.Tensor | None]:
    """The tensors behind handles of AOTInductor's C interface, which then are no more.

    None stands for an output that is None. Stands for `torch._C._aoti`.
    """
    capsules = [_capsule(handle, None, None) for handle in handles if handle]
    tensors = iter(torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules))
    return [next(tensors) if handle else None for handle in handles]


def has_memory(tensor: torch.Tensor) -> bool:
    """Whether a plain tensor's elements, if any, are in memory of its own.

    A tensor inside `torch.vmap` or `torch.func.grad` has none. Stands for `torch._C._has_storage`.
    """
    return torch._C._has_storage(tensor) and (not tensor.numel() or tensor.data_ptr() != 0)


def without_subclass(tensor: torch.Tensor) -> torch.Tensor | None:
    """The tensor as a `torch.Tensor`; None for a class that stands for tensors elsewhere.

    Those compute by `__torch_dispatch__`, such as fake and masked tensors. Stands for
    `torch._C._dispatch_keys`.
    """
    if type(tensor) in (torch.Tensor, torch.nn.Parameter):
        return tensor
    if torch._C._dispatch_keys(tensor).has(torch._C.DispatchKey.Python):
        return None
    return tensor.as_subclass(torch.Tensor)


def give_back_pool(device: int, pool: Any) -> None:
    """Close a graph's memory pool after a capture that broke off before it closed the pool.

    Stands for `torch._C._cuda_endAllocateToPool` and `_cuda_releasePool`; a release of torch that
    does so itself makes them fail, which is as good.
    """
    for close in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
        with suppress(RuntimeError):
            close(device, pool)


def aoti_package_loader(path: Path, model: str, folder: Path) -> Any:
    """A model of a .pt2 package through torch's own loader, which unpacks it into `folder`.

    Its errors leave the files behind, hence a folder of the caller's. Stands for
    `torch._C._aoti.AOTIModelPackageLoader`, which unpacks where TMPDIR says.
    """
    with _ENVIRONMENT:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = os.fspath(folder)
        try:
            return torch._C._aoti.AOTIModelPackageLoader(os.fspath(path), model, False, 1, -1)
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
