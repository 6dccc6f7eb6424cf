"""Programs lowered without a GPU against the same programs lowered on one.

    python benchmarks/deviceless.py lower FOLDER [--arch sm_90]     on a machine without a GPU
    python benchmarks/deviceless.py run FOLDER [--jobs N] [--json FILE]     on the GPU

`lower` writes each program of deviceless_programs.py into FOLDER. `run` lowers it once more on
the GPU it finds, audits both, runs both compiled libraries through torch's AOTInductor
container, with the weights from the data file, and compares every output of every call with
eager. Then it times both, alone on the GPU. Promise: all equal within the tolerance, both
audits clean, and the median program within 1.25x of itself lowered on the GPU.

Each program has a process of its own, so a failure costs one row. Benchmarks that the compiler
makes on the GPU take turns, so that processes do not disturb each other's choices.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import ctypes
import fcntl
import json
import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

sys.path.insert(0, str(Path(__file__).parent))
from deviceless_programs import PROGRAMS, Program, make

PROMISED = 1.25
HERE, THERE = "without", "on_gpu"
TYPES = {0: torch.uint8, 1: torch.int8, 2: torch.int16, 3: torch.int32, 4: torch.int64} | {
    5: torch.float16,
    6: torch.float32,
    11: torch.bool,
    15: torch.bfloat16,
}


# Lowering.


def lower(name: str, folder: Path, arch: str | None) -> dict[str, Any]:
    """Lower a program, for `arch` without a GPU or for the GPU of this machine; what it took."""
    import graftwork

    wanted = make(name)
    start = time.perf_counter()
    methods = {}
    for method, (module, inputs, shapes) in wanted.methods.items():
        with graftwork.exportable_checks(), torch.no_grad():
            module = copy.deepcopy(module)
            methods[method] = torch.export.export(
                module, inputs, dynamic_shapes=shapes, strict=False
            )
    report = graftwork.lower(
        methods,
        target="cuda",
        archs=[arch] if arch else [],
        directory=folder,
        name=name,
        settings={"data_name": name},
        enable=wanted.enable,
        disable=wanted.disable,
        verify=False,
    ).report
    (details,) = report.details.values()
    record = {"seconds": time.perf_counter() - start, "details": details}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1, default=str))
    return record


def data_file(name: str, folder: Path) -> Path | None:
    """The program's weights; of one lowered elsewhere without them, those lowered here."""
    for path in (folder / f"{name}.ptd", folder / "gpu" / f"{name}.ptd"):
        if path.exists():
            return path
    return None


def audit(name: str, folder: Path) -> list[str]:
    """What the audit finds wrong with a lowered program."""
    from graftwork.backend.audit import audit_program

    report = audit_program(folder / f"{name}.pte", data_file(name, folder))
    return [str(finding) for finding in report.findings]


@contextlib.contextmanager
def benchmarks_in_turn() -> Iterator[None]:
    """Let one process at a time benchmark kernels on the GPU."""
    from torch._inductor.runtime import benchmarking

    path = Path(tempfile.gettempdir()) / "graftwork-benchmarks.lock"
    kind = type(benchmarking.benchmarker)
    stock = kind.benchmark_gpu

    def in_turn(self: Any, *args: Any, **kwargs: Any) -> Any:
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            torch.cuda.synchronize()
            return stock(self, *args, **kwargs)

    kind.benchmark_gpu = in_turn
    try:
        yield
    finally:
        kind.benchmark_gpu = stock


# Running.


@dataclass
class Wiring:
    """Which of a method's inputs its library takes, in its order, and where its outputs go."""

    inputs: list[int]
    outputs: list[int]


def read_wiring(pte: Path) -> dict[str, Wiring]:
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
        found[plan.name] = Wiring(
            [plan.inputs.index(copied_in[v]) for v in given],
            [plan.outputs.index(copied_out[v]) for v in made],
        )
    return found


class Loaded:
    """A lowered program's libraries in torch's AOTInductor container, weights from the files."""

    def __init__(self, name: str, folder: Path) -> None:
        from graftwork.backend.payload import read_program

        _show_libtorch()
        self._wiring = read_wiring(folder / f"{name}.pte")
        self._runners = {}
        self._kept: list[Any] = []
        for delegate in read_program(folder / f"{name}.pte", data_file(name, folder)):
            assert delegate.library is not None
            library = folder / f"{name}.{delegate.method}.so"
            library.write_bytes(delegate.library)
            runner = torch._C._aoti.AOTIModelContainerRunnerCuda(str(library), 1)
            values = {w.fqn: self._weight(delegate, w) for w in delegate.weights}
            fqns = runner.get_constant_names_to_original_fqns()
            by_name = {n: values[fqn] for n, fqn in fqns.items() if fqn in values}
            if by_name:
                runner.update_constant_buffer(by_name, False, True)
            self._kept.append(by_name)
            self._runners[delegate.method] = runner

    @staticmethod
    def _weight(delegate: Any, weight: Any) -> torch.Tensor:
        raw = bytearray(delegate.weight_bytes(weight))
        dtype = TYPES[weight.dtype]
        flat = torch.frombuffer(raw, dtype=dtype) if raw else torch.empty(0, dtype=dtype)
        flat = flat.to(weight.device)
        return flat.as_strided(weight.sizes, weight.strides, weight.offset)

    def __call__(self, method: str, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        wiring = self._wiring[method]
        made = self._runners[method].run([inputs[at] for at in wiring.inputs])
        outputs = dict(zip(wiring.outputs, made, strict=True))
        return [outputs[at] for at in sorted(outputs)]


def _show_libtorch() -> None:
    """A library lowered for ExecuTorch names no libtorch: let it find what is loaded."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("c10", "torch_cpu", "c10_cuda", "torch_cuda", "torch"):
        ctypes.CDLL(str(folder / f"lib{name}.so"), mode=ctypes.RTLD_GLOBAL)


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


def check(name: str, folder: Path) -> str:
    """ "equal", or what is wrong with the program's outputs."""
    from graftwork.lowering import _EXACT, _TOLERANCES
    from graftwork.plugins.comparing import compare

    program = make(name)
    expected = eager(program)
    loaded, wrong = Loaded(name, folder), []
    for number, (method, inputs) in enumerate(program.calls):
        outputs = loaded(method, [x.cuda() for x in inputs])
        for place, (ours, theirs) in enumerate(zip(outputs, expected[number], strict=True)):
            tolerance = _TOLERANCES.get(theirs.dtype, _EXACT)
            difference = compare(ours.cpu(), theirs, tolerance)
            if difference.why:
                wrong.append(f"call {number} output {place}: {difference.why}")
    return "; ".join(wrong) or "equal"


def times(name: str, folders: dict[str, Path]) -> dict[str, float]:
    """Median microseconds a run, by way of lowering; replayed from a graph, inputs rotated."""
    program = make(name)
    method, inputs = program.calls[0]
    generator = torch.Generator("cuda").manual_seed(0)
    size = sum(x.numel() * x.element_size() for x in inputs)
    count = max(2, min(24, int(96e6 // max(size, 1))))
    sets = []
    for _ in range(count):
        drawn = [x.cuda() for x in inputs]
        for x in drawn:
            if x.is_floating_point() and x.dim() > 1:
                x.add_(torch.rand(x.shape, device="cuda", generator=generator).to(x.dtype) * 0.01)
        sets.append(drawn)
    runs = {way: Loaded(name, folder) for way, folder in folders.items()}
    graphs = {way: _captured(loaded, method, sets) for way, loaded in runs.items()}
    found: dict[str, list[float]] = {way: [] for way in runs}
    for _ in range(15):
        for way, replay in graphs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            replay()
            end.record()
            end.synchronize()
            found[way].append(begin.elapsed_time(end) * 1e3 / count)
    return {way: statistics.median(values[3:]) for way, values in found.items()}


def _captured(loaded: Loaded, method: str, sets: Sequence[Any]) -> Any:
    """Something that runs all sets: a CUDA graph, or plain calls where it cannot be captured."""

    def plain() -> None:
        for inputs in sets:
            loaded(method, inputs)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        plain()
    torch.cuda.synchronize()
    try:
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            kept = [loaded(method, inputs) for inputs in sets]
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError as error:
        print(f"  not captured: {str(error).splitlines()[0]}", flush=True)
        return plain

    def replay(kept: Any = kept) -> None:
        graph.replay()

    return replay


# The two commands.


def check_here(name: str, folder: Path) -> dict[str, Any]:
    """Audit and compare the program that was lowered without a GPU."""
    found: dict[str, Any] = {f"audit_{HERE}": audit(name, folder / name) or "clean"}
    return found | {HERE: check(name, folder / name)}


def check_there(name: str, folder: Path) -> dict[str, Any]:
    """Lower on this GPU, audit and compare."""
    place = folder / name / "gpu"
    place.mkdir(exist_ok=True)
    with benchmarks_in_turn():
        seconds = lower(name, place, None)["seconds"]
    found: dict[str, Any] = {f"audit_{THERE}": audit(name, place) or "clean"}
    return found | {"seconds_on_gpu": round(seconds, 1), THERE: check(name, place)}


def time_both(name: str, folder: Path) -> dict[str, Any]:
    """Time the program lowered both ways."""
    ways = {HERE: folder / name, THERE: folder / name / "gpu"}
    return {"times": times(name, {w: p for w, p in ways.items() if (p / f"{name}.pte").exists()})}


class Task:
    """A function of the program's name in a process of its own, which writes what it found."""

    def __init__(self, work: Any, name: str, folder: Path, workers: int, start: str) -> None:
        self.name, self.work, self.began = name, work, time.monotonic()
        self.path = folder / name / f"{work.__name__}.json"
        self.process = multiprocessing.get_context(start).Process(
            target=_run_task, args=(work, name, folder, workers, self.path)
        )
        self.process.start()

    def result(self, seconds: float) -> dict[str, Any] | None:
        """What it found; None while it runs. It is ended after `seconds`."""
        late = time.monotonic() - self.began > seconds
        if self.process.is_alive() and not late:
            return None
        if self.process.is_alive() and self.process.pid is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.join()
        if self.path.exists():
            found: dict[str, Any] = json.loads(self.path.read_text())
            return found
        end = f"took more than {seconds:.0f} s" if late else f"exit {self.process.exitcode}"
        return {f"{self.work.__name__}_failed": end}


def _run_task(work: Any, name: str, folder: Path, workers: int, path: Path) -> None:
    os.setsid()  # so that compile workers end with it
    log = path.with_suffix(".log").open("w")
    os.dup2(log.fileno(), 1)
    os.dup2(log.fileno(), 2)
    torch._inductor.config.compile_threads = workers
    torch._inductor.config.worker_start_method = "fork"
    try:
        found = work(name, folder)
    except BaseException as error:
        traceback.print_exc()
        found = {f"{work.__name__}_failed": f"{type(error).__name__}: {error}"[:1500]}
    path.write_text(json.dumps(found))
    os.killpg(0, signal.SIGKILL)


def _how_to_start() -> str:
    """`fork`, which shares what is imported, unless an import has touched the GPU."""
    probe = multiprocessing.get_context("fork").Process(target=_touch_gpu)
    probe.start()
    probe.join()
    return "spawn" if probe.exitcode else "fork"


def _touch_gpu() -> None:
    torch.zeros(1, device="cuda").add_(1).item()


def command_lower(arguments: argparse.Namespace) -> int:
    failed = 0
    for name in arguments.only or PROGRAMS:
        folder = arguments.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        if (folder / f"{name}.pte").exists():
            continue
        try:
            record = lower(name, folder, arguments.arch)
            line = f"{record['seconds']:6.1f} s  audit {audit(name, folder) or 'clean'}"
        except Exception as error:
            failed += 1
            line = f"{type(error).__name__}: {error}"
        print(f"{name:22} {line}", flush=True)
    return failed


def command_run(arguments: argparse.Namespace) -> int:
    _import_all()
    names = [n for n in PROGRAMS if (arguments.folder / n / f"{n}.pte").exists()]
    names = [n for n in names if not arguments.only or n in arguments.only]
    timed = [n for n in names if make(n).timed]
    results: dict[str, dict[str, Any]] = {name: {} for name in names}
    deadline = time.monotonic() + arguments.seconds
    start = _how_to_start()

    def run(waiting: list[tuple[Any, str]], jobs: int) -> None:
        running: list[Task] = []
        while waiting or running:
            left = deadline - time.monotonic()
            while waiting and len(running) < jobs and left > 0:
                work, name = waiting.pop(0)
                workers = 4 if name in timed and work is check_there else 1
                running.append(Task(work, name, arguments.folder, workers, start))
            for task in list(running):
                found = task.result(time.monotonic() - task.began + left)
                if found is not None:
                    running.remove(task)
                    results[task.name] |= found
                    print(f"{task.name:22}{json.dumps(found)[:600]}", flush=True)
            if left <= 0:
                waiting.clear()
            time.sleep(0.1)
        _save(arguments.json, results)

    order = timed + [n for n in names if n not in timed]
    run([(check_here, n) for n in order] + [(check_there, n) for n in order], arguments.jobs)
    deadline = time.monotonic() + 5 * len(timed)
    run([(time_both, n) for n in timed], 1)
    ratios = []
    print(f"{'program':22}{'without a GPU':>16}{'on the GPU':>16}{'ratio':>8}", flush=True)
    for name in timed:
        took = results[name].get("times", {})
        shown = str(took or results[name])
        if HERE in took and THERE in took:
            ratios.append(took[HERE] / took[THERE])
            shown = f"{took[HERE]:13.1f} us{took[THERE]:13.1f} us{ratios[-1]:7.2f}x"
        print(f"{name:22}{shown[:200]}", flush=True)
    good = [r for r in results.values() if r.get(HERE) == r.get(THERE) == "equal"]
    clean = [r for r in results.values() if r.get(f"audit_{HERE}") == "clean"]
    print(f"equal to eager both ways: {len(good)} of {len(names)}; clean: {len(clean)}")
    if not ratios:
        return 1
    median = statistics.median(ratios)
    print(
        f"median of {len(ratios)}: {median:.2f}x (promised {PROMISED}x), worst {max(ratios):.2f}x"
    )
    return int(median > PROMISED or len(good) < len(names))


def _save(path: Path | None, results: dict[str, Any]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1))


def _import_all() -> None:
    """Import what every process needs, once, without touching the GPU or starting a thread."""
    import torch._inductor.config
    import transformers  # noqa: F401
    from executorch.backends.cuda import cuda_partitioner  # noqa: F401

    from graftwork.plugins import installed_plugins

    torch.set_num_threads(1)  # threads do not survive a fork

    installed_plugins()
    for name in PROGRAMS:
        make(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["lower", "run"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--seconds", type=float, default=1200, help="for lowering on the GPU")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    return (command_lower if arguments.command == "lower" else command_run)(arguments)


if __name__ == "__main__":
    sys.exit(main())
