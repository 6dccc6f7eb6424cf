"""Programs lowered without a GPU against the same programs lowered on one.

    python benchmarks/deviceless.py lower FOLDER [--arch sm_90]     on a machine without a GPU
    python benchmarks/deviceless.py run FOLDER... --there FOLDER [--jobs N] [--json FILE]
                                                                    on the GPU

`lower` writes each program of deviceless_programs into FOLDER. `run` takes one or more such
folders, lowers each program once more on the GPU into the folder `there` (unless it is there
already), audits all of them, runs their compiled libraries through torch's AOTInductor
container and compares every output of every call with eager. Then it times them, one program
after the other, alone on the GPU. Promise: all equal within the tolerance, all audits clean,
and the median program within 1.25x of itself lowered on the GPU.

Each program is lowered and checked in a process of its own, so a failure costs one row.
Benchmarks that the compiler makes on the GPU take turns, so that they do not disturb each
other's choices.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).parent))
from deviceless_container import audit, compare_with_eager, eager, times
from deviceless_programs import PROGRAMS, make

PROMISED = 1.25
ON_GPU = "on_gpu"


# In the process of one program.


def lower(name: str, folder: Path, arch: str | None) -> float:
    """Lower a program, for `arch` without a GPU or for the GPU of this machine; seconds."""
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
    folder.mkdir(parents=True, exist_ok=True)
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
    seconds = time.perf_counter() - start
    record = {"seconds": seconds, "torch": torch.__version__, "details": details}
    (folder / f"{name}.json").write_text(json.dumps(record, indent=1, default=str))
    return seconds


@contextlib.contextmanager
def gpu_to_itself() -> Iterator[None]:
    """Wait until no other process of this benchmark is on the GPU."""
    path = Path(tempfile.gettempdir()) / "graftwork-gpu.lock"
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def benchmarks_in_turn() -> Iterator[None]:
    """Let one process at a time benchmark kernels on the GPU, and log what each took.

    All runs are queued while the GPU is kept waiting: the stock benchmark times the host where
    that launches more slowly than the GPU runs, as it does while other processes compile.
    """
    import torch._inductor.config as config
    from torch._inductor.runtime import benchmarking

    kind = type(benchmarking.benchmarker)
    stock = kind.benchmark_gpu

    def in_turn(self: Any, call: Any, *args: Any, **kwargs: Any) -> float:
        with gpu_to_itself():
            return least_milliseconds(call)

    kind.benchmark_gpu = in_turn
    try:
        with config.patch(autotune_num_choices_displayed=None):
            yield
    finally:
        kind.benchmark_gpu = stock


def least_milliseconds(call: Callable[[], object], runs: int = 30) -> float:
    """The shortest of some runs, each after the L2 cache was overwritten.

    Where the host did not queue them all while the GPU waited, they are run again behind a
    longer wait.
    """
    call()
    cache = torch.empty(32 << 20, dtype=torch.int32, device="cuda")
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for wait in (14_000_000, 42_000_000, 126_000_000):  # clocks: some 8, 24 and 72 ms
        torch.cuda.synchronize()
        torch.cuda._sleep(wait)
        for begin, end in events:
            cache.zero_()
            begin.record()
            call()
            end.record()
        queued = not events[0][0].query()
        torch.cuda.synchronize()
        if queued:
            break
    return min(begin.elapsed_time(end) for begin, end in events)


def check(name: str, folders: dict[str, Path], found: Path) -> None:
    """Lower the program on this GPU, then audit and compare it lowered each way."""
    results: dict[str, Any] = {}

    def add(key: str, work: Callable[[], object]) -> None:
        results[key] = _result_or_error(work)
        found.write_text(json.dumps(results))

    if not (folders[ON_GPU] / f"{name}.pte").exists():
        with benchmarks_in_turn():
            add("seconds_on_gpu", lambda: round(lower(name, folders[ON_GPU], None), 1))
    torch.set_num_threads(4)
    expected = eager(make(name))
    for way, folder in folders.items():
        if (folder / f"{name}.pte").exists():
            add(f"audit_{way}", partial(audit, name, folder))
            add(f"equal_{way}", partial(compare_with_eager, name, folder, expected))


def _result_or_error(work: Callable[[], object]) -> object:
    try:
        return work()
    except Exception as error:
        traceback.print_exc()
        return f"{type(error).__name__}: {error}"[:500]


def time_given(folders: dict[str, Path]) -> None:
    """Time each program that is named on a line of standard input, and print what it took."""
    from executorch.exir._serialize import _program  # noqa: F401  imports take long

    a = torch.randn(4096, 4096).cuda()
    for name in map(str.strip, sys.stdin):
        for _ in range(20):  # the clocks rise
            a @ a
        ways = {way: folder / name for way, folder in folders.items()}
        ways = {way: path for way, path in ways.items() if (path / f"{name}.pte").exists()}
        print(json.dumps({name: _result_or_error(partial(times, name, ways))}), flush=True)


# Over all programs.


class Job:
    """One program's checks in a process of its own, which ends with all that it started."""

    def __init__(self, name: str, folders: Sequence[Path], threads: int) -> None:
        self.name, self.found = name, folders[-1] / name / "found.json"
        self.found.parent.mkdir(parents=True, exist_ok=True)
        self.found.unlink(missing_ok=True)
        environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}
        # Inductor's workers set this for themselves alone, and what they compile is then compiled
        # once more for its benchmark, with the ptxas of Triton.
        ptxas = Path(torch.__file__).parent / "bin" / "ptxas"
        if ptxas.exists():
            environment.setdefault("TRITON_PTXAS_PATH", str(ptxas))
        with (self.found.parent / "log").open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, __file__, "check", *map(str, folders), "--only", name],
                stdout=log,
                stderr=log,
                env={"TORCH_LOGS": "+torch._inductor.runtime.triton_heuristics"} | environment,
                start_new_session=True,
            )

    def end(self, why: str) -> dict[str, Any]:
        """End it if it runs, and what it found until then."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        code = self.process.wait()
        found = json.loads(self.found.read_text()) if self.found.exists() else {}
        return found if code == 0 else found | {"ended": why or f"exit {code}"}


def check_all(
    names: Sequence[str], folders: Sequence[Path], jobs: int, threads: int, seconds: float
) -> dict[str, dict[str, Any]]:
    """What the checks of each program found, in at most `seconds`."""
    waiting, running = list(names), list[Job]()
    results: dict[str, dict[str, Any]] = {}
    deadline = time.monotonic() + seconds
    while waiting or running:
        late = time.monotonic() > deadline
        if late:
            waiting.clear()
        while waiting and len(running) < jobs:
            running.append(Job(waiting.pop(0), folders, threads))
        for job in list(running):
            if late or job.process.poll() is not None:
                running.remove(job)
                results[job.name] = job.end(f"took more than {seconds:.0f} s" if late else "")
                print(f"{job.name:22}{json.dumps(results[job.name])[:400]}", flush=True)
        time.sleep(0.2)
    return results


class Timer:
    """A process that times programs: started early, so that its imports are done by then."""

    def __init__(self, folders: Sequence[Path]) -> None:
        self.command = [sys.executable, __file__, "time", *map(str, folders)]
        self.start()

    def start(self) -> None:
        """Start the process."""
        self.process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def time(self, name: str) -> dict[str, Any]:
        """What a run of it took, each way; a process that dies is replaced for the next."""
        assert self.process.stdin is not None and self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(name + "\n")
            self.process.stdin.flush()
        for line in self.process.stdout:
            if not line.startswith("{"):
                print(line, end="", flush=True)
                continue
            took = json.loads(line)[name]
            return {"times": took} if isinstance(took, dict) else {"not_timed": took}
        code = self.process.wait()
        self.start()
        return {"not_timed": f"exit {code}"}


def command_lower(arguments: argparse.Namespace) -> int:
    failed = 0
    (base,) = arguments.folders
    for name in arguments.only or PROGRAMS:
        folder = base / name
        if (folder / f"{name}.pte").exists():
            continue
        try:
            line = f"{lower(name, folder, arguments.arch):6.1f} s  audit {audit(name, folder)}"
        except Exception as error:
            failed += 1
            line = f"{type(error).__name__}: {error}"
        print(f"{name:22} {line}", flush=True)
    return failed


def command_run(arguments: argparse.Namespace) -> int:
    folders = [*arguments.folders, arguments.there]
    ways = [folder.name for folder in arguments.folders]
    names = [n for n in PROGRAMS if (folders[0] / n / f"{n}.pte").exists()]
    names = [n for n in arguments.only or names if n in names]
    results: dict[str, dict[str, Any]] = {}
    timer = Timer(folders)
    try:
        checked = check_all(names, folders, arguments.jobs, arguments.threads, arguments.seconds)
        _save(arguments.json, checked)
        for name in (n for n in names if make(n).timed):
            results[name] = checked[name] | timer.time(name)
            _save(arguments.json, checked | results)
    finally:
        timer.process.kill()
    return _summary(results, ways) | int(_wrong(checked, [*ways, ON_GPU]))


def _summary(results: dict[str, dict[str, Any]], ways: Sequence[str]) -> int:
    heads = "".join(f"{way[:12]:>13}{'ratio':>8}" for way in ways)
    print(f"{'us a run':22}{'on the GPU':>12}{heads}", flush=True)
    ratios: dict[str, list[float]] = {way: [] for way in ways}
    for name, found in results.items():
        took = found.get("times", {})
        base = took.get(ON_GPU)
        line = f"{name:22}{base or 0:12.1f}"
        for way in (way for way in ways if way in took):
            line += f"{took[way]:13.1f}"
            if base:
                ratios[way].append(took[way] / base)
                line += f"{ratios[way][-1]:7.2f}x"
        print(line, flush=True)
    missed = False
    for way, values in ratios.items():
        if values:
            median = statistics.median(values)
            print(f"{way}: median of {len(values)} {median:.2f}x, worst {max(values):.2f}x")
        missed |= not values or statistics.median(values) > PROMISED
    return int(missed)


def _wrong(checked: dict[str, dict[str, Any]], ways: Sequence[str]) -> bool:
    right = True
    for way in ways:
        equal = [n for n, found in checked.items() if found.get(f"equal_{way}") == "equal"]
        clean = [n for n, found in checked.items() if found.get(f"audit_{way}") == "clean"]
        print(f"{way}: {len(equal)} of {len(checked)} equal to eager, {len(clean)} audits clean")
        right &= len(equal) == len(clean) == len(checked)
    return not right


def _save(path: Path | None, results: dict[str, dict[str, Any]]) -> None:
    if path is not None:
        path.write_text(json.dumps(results, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("command", choices=["lower", "run", "check", "time"])
    parser.add_argument("folders", type=Path, nargs="+")
    parser.add_argument("--there", type=Path, help="a folder for what is lowered on the GPU")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("--only", nargs="*", choices=list(PROGRAMS))
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    parser.add_argument("--threads", type=int, default=1, help="that compile, of each job")
    parser.add_argument("--seconds", type=float, default=1200, help="for lowering on the GPU")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    if arguments.command == "lower":
        return command_lower(arguments)
    if arguments.command == "run":
        return command_run(arguments)
    *here, there = arguments.folders
    folders = {folder.name: folder for folder in here} | {ON_GPU: there}
    if arguments.command == "time":
        time_given(folders)
    else:
        (name,) = arguments.only
        ways = {way: folder / name for way, folder in folders.items()}
        check(name, ways, there / name / "found.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
