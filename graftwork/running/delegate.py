"""A .pte for ExecuTorch's CUDA delegate, run in a process with libtorch.

The delegate's own runtime needs no libtorch; this is a convenience for checking and serving from
Python. It takes the library and the weights out of the files and calls the one with the others.
Inputs and outputs are on the GPU: ExecuTorch's copies from and to host memory are left out.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from graftwork.backend.payload import Delegate, Weight, read_program
from graftwork.backend.program_file import Plan, ProgramFile
from graftwork.backend.signature import Signature
from graftwork.plugins.errors import InputError

from .graphs import Run
from .library import CompiledLibrary, this_gpu
from .plan_signature import DTYPES
from .runtimes import RunnableMethod

__all__ = ["load_delegates"]

_FORMAT = "ETCUDAFQN3"


def load_delegates(
    path: Path,
    data: Path | None,
    program: ProgramFile,
    signatures: dict[str, Signature],
) -> dict[str, RunnableMethod]:
    """Load every method; methods share the weights, and the buffers they write, of equal name.

    Raises:
        InputError: no GPU, no data file, another GPU, or a program with more than the delegate.
    """
    this_gpu()
    delegates = read_program(path, _data_file(path, data, program))
    weights: dict[str, torch.Tensor] = {}
    methods = {}
    for plan in program.plans:
        own = [delegate for delegate in delegates if delegate.method == plan.name]
        if len(own) != 1 or len(plan.delegates) != 1:
            raise InputError(
                f"{path}: method {plan.name} has {len(plan.delegates)} delegates; only "
                f"ExecuTorch's own runtime runs a method that is not one CUDA delegate"
            )
        methods[plan.name] = _load(path, plan, own[0], weights, signatures[plan.name])
    return methods


def _data_file(path: Path, given: Path | None, program: ProgramFile) -> Path | None:
    """The .ptd: the one given, else the one beside the .pte under the name that it records."""
    if given is not None:
        return given
    names = {
        delegate.compile_specs.get("data_name", b"aoti_cuda_blob").decode()
        for plan in program.plans
        for delegate in plan.delegates
    }
    beside = [path.parent / f"{name}.ptd" for name in sorted(names)]
    return next((file for file in beside if file.is_file()), None)


def _load(
    path: Path,
    plan: Plan,
    delegate: Delegate,
    weights: dict[str, torch.Tensor],
    signature: Signature,
) -> RunnableMethod:
    label = f"{path}, method {plan.name}"
    if delegate.format != _FORMAT:
        raise InputError(
            f"{label}: its payload is older than ExecuTorch 1.5 ({delegate.format}); lower it anew"
        )
    if delegate.library is None:
        raise InputError(
            f"{label}: the file lacks its compiled library; its data file may hold it"
        )
    own = {}
    for weight in delegate.weights:
        if weight.key not in delegate.data:
            name = delegate.compile_specs.get("data_name", b"aoti_cuda_blob").decode()
            raise InputError(f"{label}: its weights are in {name}.ptd, which is not beside it")
        if weight.key not in weights:
            weights[weight.key] = _tensor(weight, delegate.weight_bytes(weight))
        own[weight.fqn] = weights[weight.key]
    with tempfile.TemporaryDirectory(prefix="graftwork-") as folder:
        file = Path(folder) / "library.so"  # once it is loaded, the file is no longer needed
        file.write_bytes(delegate.library)
        library = CompiledLibrary(file, label, "cuda")
    library.set_constants(own)
    on_host = sorted(weight.fqn for weight in delegate.weights if weight.device == "cpu")
    return RunnableMethod(
        _in_plan_order(label, plan, library),
        "cuda",
        signature,
        f"its constant {on_host[0]} is in host memory" if on_host else "",
    )


def _tensor(weight: Weight, stored: memoryview) -> torch.Tensor:
    dtype = DTYPES[weight.dtype]
    if weight.nbytes == 0:
        flat = torch.empty(0, dtype=dtype)
    else:
        flat = torch.frombuffer(bytearray(stored), dtype=dtype)
    flat = flat.to("cuda" if weight.device == "cuda" else "cpu", copy=True)
    return flat.as_strided(weight.sizes, weight.strides, weight.offset)


def _in_plan_order(label: str, plan: Plan, library: CompiledLibrary) -> Run:
    """The library's run with inputs and outputs in the program's order."""
    (call,) = plan.delegate_calls
    _, places = call
    source: dict[int, int] = {}
    written: dict[int, int] = {}
    for operator, arguments in plan.kernel_calls:
        if operator in ("et_copy::_h2d_copy.out", "et_copy::_d2h_copy.out"):
            source[arguments[-1]] = arguments[0]
        elif operator == "aten::copy_" and arguments[0] in plan.inputs:
            written[arguments[0]] = arguments[1]  # how a program writes its own input
        else:
            raise InputError(f"{label}: it runs {operator} outside its delegate")
    taken = [source.get(place, place) for place in places[: library.inputs]]
    made = {place: index for index, place in enumerate(places[library.inputs :])}
    if not set(taken) <= set(plan.inputs):
        raise InputError(f"{label}: its delegate takes what is no input of the program")
    tensors = [place for place in plan.inputs if plan.values[place].kind == "tensor"]

    def run(inputs: Sequence[torch.Tensor]) -> list[Any]:
        by_place = dict(zip(tensors, inputs, strict=True))
        found = library.run([by_place[place] for place in taken])

        def value(place: int) -> Any:
            place = source.get(place, place)
            if place in made:
                return found[made[place]]
            return by_place.get(place, plan.values[place].scalar)

        for place, origin in written.items():
            by_place[place].copy_(value(origin))
        return [value(place) for place in plan.outputs[len(written) :]]

    return run
