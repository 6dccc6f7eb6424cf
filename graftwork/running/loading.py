"""`graftwork.load`: an artifact, whoever wrote it, as a callable."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graftwork.backend.manifest import read_program_manifest
from graftwork.backend.program_file import Plan, ProgramFile, read_program_file
from graftwork.backend.signature import Constant, Signature
from graftwork.backend.targets.aoti import read_package_manifest
from graftwork.plugins.errors import InputError

from .graphs import Capture, Run
from .plan_signature import signature_of_plan
from .program import Method, Program
from .runtimes import RunnableMethod

__all__ = ["load"]


def load(
    artifact: str | Path,
    *,
    data: str | Path | None = None,
    cuda_graphs: bool | Collection[str] = False,
) -> Program:
    """Load a .pte or .pt2 so that it can be called from Python.

    A .pte without a CUDA delegate runs in ExecuTorch's own Python runtime, on the CPU. One with
    it, and a .pt2, run their compiled libraries in this process, with its libtorch; ExecuTorch's
    CUDA runtime needs none. Inputs must be where the program runs.

    Args:
        artifact: the file.
        data: the .ptd of a .pte; by default the one beside it under the name that it records.
        cuda_graphs: run every method, or those named, under a CUDA graph: three warm-up calls,
            one capture, then replays, which take inputs of the captured shapes alone. A method
            that cannot be captured runs without one, and an info line of the logger `graftwork`
            says why.

    Raises:
        InputError: no such file, another kind of file, or one that cannot run on this machine.
    """
    path = Path(artifact)
    if not path.is_file():
        raise InputError(f"no file {path}")
    if path.suffix == ".pt2":
        from .package import load_package

        if data is not None:
            raise InputError(f"{path} holds its own weights; data is for a .pte")
        runnable = load_package(path, _recorded(read_package_manifest(path)))
    elif path.suffix == ".pte":
        if data is not None and not Path(data).is_file():
            raise InputError(f"no file {data}")
        runnable = _load_program(path, Path(data) if data is not None else None)
    else:
        raise InputError(f"{path} is neither a .pte nor a .pt2 file")
    wanted = _methods_to_graph(path, runnable, cuda_graphs)
    return Program(
        path,
        {
            name: Method(name, method, _capture(method) if name in wanted else None)
            for name, method in runnable.items()
        },
    )


def _load_program(path: Path, data: Path | None) -> dict[str, RunnableMethod]:
    program = read_program_file(path)
    recorded = _recorded(read_program_manifest(program))
    backends = {delegate.id for plan in program.plans for delegate in plan.delegates}
    if "CudaBackend" in backends:
        from .delegate import load_delegates

        return load_delegates(path, data, program, _signatures(program, recorded, "cuda"))
    from graftwork.backend.executorch_api import load_methods

    method_of = load_methods(path, data)
    signatures = _signatures(program, recorded, "cpu")
    return {
        plan.name: RunnableMethod(
            _around(plan, method_of(plan.name)), "cpu", signatures[plan.name]
        )
        for plan in program.plans
    }


def _signatures(
    program: ProgramFile, recorded: Mapping[str, Signature], device: str
) -> dict[str, Signature]:
    return {
        plan.name: recorded.get(plan.name) or signature_of_plan(plan, device)
        for plan in program.plans
    }


def _around(plan: Plan, execute: Callable[[Sequence[Any]], list[Any]]) -> Run:
    """ExecuTorch's call, which takes the inputs that are no tensors too, and gives what it writes
    into a tensor of its own."""
    values = [plan.values[place] for place in plan.inputs]
    tensors = [place for place in plan.inputs if plan.values[place].kind == "tensor"]
    written = [tensors.index(place) for place in plan.written_inputs]

    def run(inputs: Sequence[torch.Tensor]) -> list[Any]:
        rest = iter(inputs)
        found = execute([next(rest) if v.kind == "tensor" else v.scalar for v in values])
        for place, value in zip(written, found, strict=False):
            inputs[place].copy_(value)
        return found[len(written) :]

    return run


def _recorded(manifest: Mapping[str, Any] | None) -> dict[str, Signature]:
    """The signatures that graftwork recorded; none for a file of another writer."""
    if manifest is None:
        return {}
    records = manifest.get("signatures", {})
    return {name: Signature.from_json(record) for name, record in records.items()}


def _methods_to_graph(
    path: Path, methods: Mapping[str, RunnableMethod], asked: bool | Collection[str]
) -> Collection[str]:
    if asked is False:
        return ()
    if isinstance(asked, str):
        raise TypeError("cuda_graphs takes True or a collection of method names, not one string")
    wanted = list(methods) if asked is True else list(asked)
    for name in wanted:
        if name not in methods:
            raise InputError(f"{path} has no method '{name}'; it has {', '.join(sorted(methods))}")
        if methods[name].device != "cuda":
            raise InputError(f"{path} runs on the CPU; CUDA graphs are for programs on CUDA")
    return wanted


def _capture(method: RunnableMethod) -> Capture:
    from .cuda_capture import CudaCapture

    tensors = [i for i in method.signature.inputs or () if not isinstance(i, Constant)]
    return CudaCapture([place for place, item in enumerate(tensors) if item.written])
