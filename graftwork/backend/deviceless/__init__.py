"""Lower for an NVIDIA GPU on a machine that has none, with a CPU build of torch.

    with deviceless("sm_90"):
        program = to_edge_transform_and_lower(exported, partitioner=[CudaPartitioner(specs)])

Inside the block, torch, Inductor and Triton answer as they would with a GPU of that kind in the
machine, as far as compiling goes: kernels become machine code, constants are recorded as
living on the GPU, and nothing runs. What a benchmark would decide on a GPU is decided by a cost
model, and recorded: `deviceless` yields a `Decisions` that lists every choice.

The block holds for the whole process. A second thread that wants one waits; a thread that
compiles for the CPU meanwhile is told that there is a GPU. Everything is put back on the way
out, whatever happened inside. On a torch release that this was not checked on, entering raises
DevicelessError, and so it does where the CUDA toolkit's headers are missing.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import torch
from torch.export import ExportedProgram

from graftwork.backend.branches import inline_branch_constants
from graftwork.backend.deviceless import constants, device, fusion, kernels, padding, stubs
from graftwork.backend.deviceless.decisions import Decisions
from graftwork.backend.deviceless.errors import DevicelessError
from graftwork.backend.deviceless.gpus import Gpu, gpu
from graftwork.backend.deviceless.marks import CUDA
from graftwork.backend.deviceless.session import Session
from graftwork.backend.host import portable_host, portable_host_options
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private

__all__ = ["Decisions", "DevicelessError", "Gpu", "deviceless", "gpu", "move_to_gpu"]

# A substitution whose name moved would not fail but have no effect, so other releases wait
# until the tests of this package have passed on them.
CHECKED = ("2.11", "2.13")

_lock = threading.RLock()
_active: list[Session] = []


@contextlib.contextmanager
def deviceless(arch: str, *, ptx: bool = False) -> Iterator[Decisions]:
    """Answer as a GPU of `arch` ("sm_90") for as long as the block lasts.

    `ptx` embeds PTX beside the machine code of each kernel, so that a newer GPU can compile it
    when it loads the program; that takes nvcc's `fatbinary`.

    Raises DevicelessError on a torch release not checked, without CUDA headers, for an unknown
    architecture, and when entered again inside itself.
    """
    _check_release()
    target = gpu(arch)
    with _lock:
        if _active:
            raise DevicelessError(f"already lowering for {_active[0].gpu.arch} in this thread")
        toolkit = stubs.find_toolkit(need_fatbinary=ptx)
        session = Session(target, ptx, toolkit, stubs.stub_folder(toolkit))
        patches = Patches()
        _active.append(session)
        try:
            device.apply(patches, session)
            constants.apply(patches, session)
            kernels.apply(patches, session)
            fusion.apply(patches, session)
            padding.apply(patches, session)
            options = torch_private.inductor_config().patch(_inductor_options(session))
            with portable_host(), options:
                yield session.decisions
        finally:
            patches.undo()
            _active.clear()


def move_to_gpu(program: ExportedProgram) -> ExportedProgram:
    """Move an exported program, in place, to the GPU that the block stands in for.

    For compiling with torch alone; ExecuTorch's CUDA backend does it by itself. Raises
    DevicelessError outside a block.
    """
    if not _active:
        raise DevicelessError("no GPU is stood in for: use this inside a deviceless block")
    inline_branch_constants(program.graph_module, CUDA)
    moved: ExportedProgram = constants.move_program(program, _active[0].marks)
    return moved


def _check_release() -> None:
    release = ".".join(torch.__version__.split(".")[:2])
    if release not in CHECKED:
        raise DevicelessError(
            f"lowering without a GPU was checked on torch {', '.join(CHECKED)}, not on "
            f"{torch.__version__}; lower on a machine with a GPU, or with a checked release"
        )


def _inductor_options(session: Session) -> dict[str, object]:
    return {
        # Worker processes would not have the substitutions.
        "compile_threads": 1,
        # A cached graph may have been compiled for another device or choice.
        "fx_graph_cache": False,
        "autotune_local_cache": False,
        "autotune_remote_cache": False,
        "cuda.arch": session.gpu.nvcc_arch,
        # False would run the model on real inputs.
        "triton.autotune_at_compile_time": True,
        **portable_host_options(),
    }
