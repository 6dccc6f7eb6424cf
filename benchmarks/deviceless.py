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
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
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


class Loaded:
    """A lowered program's libraries in torch's AOTInductor container, weights from the files."""

    def __init__(self, name: str, folder: Path) -> None:
        from graftwork.backend.payload import read_program

        _show_libtorch()
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
        return list(self._runners[method].run(list(inputs)))


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


def check(name: str, folders: dict[str, Path]) -> dict[str, str]:
    """For each way of lowering, "equal", or what is wrong."""
    from graftwork.lowering import _EXACT, _TOLERANCES
    from graftwork.plugins.comparing import compare

    program = make(name)
    expected = eager(program)
    verdicts = {}
    for way, folder in folders.items():
        try:
            loaded, wrong = Loaded(name, folder), []
            for number, (method, inputs) in enumerate(program.calls):
                outputs = loaded(method, [x.cuda() for x in inputs])
                torch.cuda.synchronize()
                for place, (ours, theirs) in enumerate(
                    zip(outputs, expected[number], strict=True)
                ):
                    tolerance = _TOLERANCES.get(theirs.dtype, _EXACT)
                    difference = compare(ours.cpu(), theirs, tolerance)
                    if difference.why:
                        wrong.append(f"call {number} output {place}: {difference.why}")
            verdicts[way] = "; ".join(wrong) or "equal"
        except Exception as error:
            verdicts[way] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    return verdicts


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


def run_one(name: str, folder: Path) -> dict[str, Any]:
    """Lower on this GPU, audit and compare one program; everything is caught."""
    folders = {HERE: folder / name, THERE: folder / name / "gpu"}
    folders[THERE].mkdir(exist_ok=True)
    result: dict[str, Any] = {"name": name}
    try:
        with benchmarks_in_turn():
            result["seconds_on_gpu"] = lower(name, folders[THERE], None)["seconds"]
    except Exception as error:
        result["lowering_on_gpu"] = f"{type(error).__name__}: {error}"
        del folders[THERE]
    for way, place in folders.items():
        result[f"audit_{way}"] = audit(name, place) or "clean"
    result |= check(name, folders)
    return result


def _child(command: str, folder: Path, names: Sequence[str], seconds: float, workers: int) -> Any:
    """What a process of this script found for each name, and how it failed where it did."""
    line = [sys.executable, __file__, command, str(folder), "--only", *names]
    # Forked workers start at once; the GPU is only used by this process itself.
    settings = {
        "TORCHINDUCTOR_COMPILE_THREADS": str(workers),
        "TORCHINDUCTOR_WORKER_START": "fork",
    }
    try:
        done = subprocess.run(
            line, capture_output=True, text=True, timeout=seconds, env=os.environ | settings
        )
        said, end = done.stdout, f"exit {done.returncode}: {done.stderr.strip()[-900:]}"
    except subprocess.TimeoutExpired as error:
        said = error.stdout.decode() if isinstance(error.stdout, bytes) else error.stdout or ""
        end = f"took more than {seconds:.0f} s"
    found = {}
    for text in said.splitlines():
        if text.startswith("{"):
            record = json.loads(text)
            found[record.pop("name")] = record
    return found, end


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
    names = [n for n in PROGRAMS if (arguments.folder / n / f"{n}.pte").exists()]
    names = [n for n in names if not arguments.only or n in arguments.only]
    timed = [n for n in names if make(n).timed]
    results: dict[str, dict[str, Any]] = {}

    def one(name: str) -> None:
        found, end = _child(
            "one", arguments.folder, [name], arguments.timeout, 6 if name in timed else 1
        )
        results[name] = found.get(name, {"failed": end})
        print(json.dumps({"name": name} | results[name])[:1500], flush=True)
        _save(arguments.json, results)

    # The long ones first.
    order = timed + [n for n in names if n not in timed]
    with ThreadPoolExecutor(arguments.jobs) as pool:
        list(pool.map(one, order))
    ratios = []
    print(f"{'program':22}{'without a GPU':>16}{'on the GPU':>16}{'ratio':>8}", flush=True)
    waiting = list(timed)
    while waiting:
        found, end = _child("time", arguments.folder, waiting, 60, 1)
        failed = next((n for n in waiting if n not in found), None)
        if failed is not None:
            found[failed] = {"failed": end}
        for name in [n for n in waiting if n in found]:
            waiting.remove(name)
            results[name]["times"] = took = found[name]
            shown = str(took)
            if HERE in took and THERE in took:
                ratios.append(took[HERE] / took[THERE])
                shown = f"{took[HERE]:13.1f} us{took[THERE]:13.1f} us{ratios[-1]:7.2f}x"
            print(f"{name:22}{shown}", flush=True)
        _save(arguments.json, results)
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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["lower", "run", "one", "time"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS))
    parser.add_argument("--jobs", type=int, default=max(1, (os.cpu_count() or 2) - 2))
    parser.add_argument("--timeout", type=float, default=200)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "lower":
        return command_lower(arguments)
    if arguments.command == "run":
        return command_run(arguments)
    for name in arguments.only:
        if arguments.command == "one":
            found = run_one(name, arguments.folder)
        else:
            ways = {HERE: arguments.folder / name, THERE: arguments.folder / name / "gpu"}
            ways = {way: place for way, place in ways.items() if (place / f"{name}.pte").exists()}
            found = {"name": name} | times(name, ways)
        print(json.dumps(found), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
