"""Runs a program that was lowered for CUDA in torch's AOTInductor container, on a GPU.

Its libraries call the C interface that libtorch exports, so no ExecuTorch runtime is needed.
Weights come from the data file, or from the module where the file was left behind: the
programs' weights come from seeds, and weigh more than the programs.
"""

from __future__ import annotations

import copy
import statistics
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from deviceless_programs import Program, make
from torch.utils import _pytree as pytree

__all__ = ["audit", "compare_with_eager", "eager", "times"]

_TYPES = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64} | {
    5: torch.float16,
    6: torch.float32,
    11: torch.bool,
    15: torch.bfloat16,
}


def audit(name: str, folder: Path) -> str:
    """What the audit finds wrong with the program lowered into `folder`, or "clean"."""
    from graftwork.backend.audit import audit_program

    data = folder / f"{name}.ptd"
    report = audit_program(folder / f"{name}.pte", data if data.exists() else None)
    return "; ".join(str(finding) for finding in report.findings) or "clean"


def eager(program: Program) -> list[list[torch.Tensor]]:
    """What eager gives for every call, on the CPU."""
    from graftwork.plugins import installed_plugins
    from graftwork.plugins.reference import run_eager

    modules = {m: copy.deepcopy(module) for m, (module, _, _) in program.methods.items()}
    results = []
    for method, inputs in program.calls:
        given = tuple(x.clone() for x in inputs)
        outputs, _ = run_eager(modules[method], given, installed_plugins())
        results.append([x.detach().clone() for x in pytree.tree_leaves(outputs)])
    return results


def compare_with_eager(name: str, folder: Path, expected: list[list[torch.Tensor]]) -> str:
    """ "equal", or what is wrong with the outputs of the program's calls."""
    from graftwork.lowering import _EXACT, _TOLERANCES
    from graftwork.plugins.comparing import compare

    program = make(name)
    loaded, wrong = Loaded(name, program, folder), []
    for number, (method, inputs) in enumerate(program.calls):
        outputs = loaded(method, [x.cuda() for x in inputs])
        for place, (ours, theirs) in enumerate(zip(outputs, expected[number], strict=True)):
            tolerance = _TOLERANCES.get(theirs.dtype, _EXACT)
            difference = compare(ours.cpu(), theirs, tolerance)
            if difference.why:
                wrong.append(f"call {number} output {place}: {difference.why}")
    return "; ".join(wrong) or "equal"


def times(name: str, folders: Mapping[str, Path], repeats: int = 40) -> dict[str, float]:
    """Median microseconds a run of each way's program, turn about, inputs rotated.

    Runs are replayed from a CUDA graph, so that the host is not what is timed.
    """
    program = make(name)
    method, inputs = program.calls[0]
    sets = _input_sets(inputs)
    runs = {way: Loaded(name, program, folder) for way, folder in folders.items()}
    replays = {way: _captured(loaded, method, sets) for way, loaded in runs.items()}
    found: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(repeats):
        for way, replay in replays.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            found[way].append(begin.elapsed_time(end) * 1e3 / len(sets))
    return {way: statistics.median(values[5:]) for way, values in found.items()}


class Loaded:
    """A lowered program's libraries, with their weights."""

    def __init__(self, name: str, program: Program, folder: Path) -> None:
        from graftwork.backend.payload import read_program
        from graftwork.running.library import CompiledLibrary

        data = folder / f"{name}.ptd"
        self._wiring = _read_wiring(folder / f"{name}.pte")
        self._libraries = {}
        for delegate in read_program(folder / f"{name}.pte", data if data.exists() else None):
            assert delegate.library is not None
            module = program.methods[delegate.method][0]
            with tempfile.NamedTemporaryFile(suffix=".so") as file:
                file.write(delegate.library)
                file.flush()
                library = CompiledLibrary(Path(file.name), name, "cuda")
            library.set_constants({w.fqn: _weight(delegate, w, module) for w in delegate.weights})
            self._libraries[delegate.method] = library

    def __call__(self, method: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        wiring = self._wiring[method]
        made = self._libraries[method].run([inputs[at] for at in wiring.inputs])
        outputs = dict(zip(wiring.outputs, made, strict=True))
        return [outputs[at] for at in sorted(outputs)]


@dataclass
class _Wiring:
    """Which of a method's inputs its library takes, in its order, and where its outputs go."""

    inputs: list[int]
    outputs: list[int]


def _weight(delegate: Any, weight: Any, module: torch.nn.Module) -> torch.Tensor:
    if weight.key not in delegate.data:
        named = dict(module.named_parameters()) | dict(module.named_buffers())
        value = named[weight.fqn].detach()
        assert tuple(value.shape) == weight.sizes, weight.fqn
        empty = torch.empty_strided(weight.sizes, weight.strides, dtype=value.dtype)
        return empty.copy_(value).to(weight.device)
    raw = bytearray(delegate.weight_bytes(weight))
    dtype = _TYPES[weight.dtype]
    flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
    return flat.to(weight.device).as_strided(weight.sizes, weight.strides, weight.offset)


def _read_wiring(pte: Path) -> dict[str, _Wiring]:
    """By method, for programs whose only other operators copy to the GPU and back."""
    from executorch.exir._serialize._program import deserialize_pte_binary

    found = {}
    for plan in deserialize_pte_binary(pte.read_bytes()).program.execution_plan:
        steps = [step.instr_args for chain in plan.chains for step in chain.instructions]
        (at,) = [n for n, step in enumerate(steps) if hasattr(step, "delegate_index")]
        copied_in = {step.args[1]: step.args[0] for step in steps[:at]}
        copied_out = {step.args[0]: step.args[1] for step in steps[at + 1 :]}
        given = [v for v in steps[at].args if v in copied_in]
        made = [v for v in steps[at].args if v in copied_out]
        found[plan.name] = _Wiring(
            [plan.inputs.index(copied_in[v]) for v in given],
            [plan.outputs.index(copied_out[v]) for v in made],
        )
    return found


def _input_sets(inputs: Sequence[torch.Tensor]) -> list[list[torch.Tensor]]:
    """Enough inputs that they do not stay in the L2 cache."""
    size = sum(x.numel() * x.element_size() for x in inputs)
    sets = []
    for _ in range(max(2, min(24, int(96e6 // max(size, 1))))):
        changed = [
            x + 0.01 * torch.rand_like(x) if x.is_floating_point() and x.dim() > 1 else x.clone()
            for x in inputs
        ]
        sets.append([x.cuda() for x in changed])
    return sets


def _captured(
    loaded: Loaded, method: str, sets: Sequence[Sequence[torch.Tensor]]
) -> Callable[[], None]:
    """Something that runs all sets, from a CUDA graph."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for inputs in sets:
            loaded(method, inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        kept = [loaded(method, inputs) for inputs in sets]
    graph.replay()
    torch.cuda.synchronize()

    def replay(kept: Any = kept) -> None:
        graph.replay()

    return replay
