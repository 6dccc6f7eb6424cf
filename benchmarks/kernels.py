"""Times the kernel plugins on a GPU: ours, ATen's default, ATen's deterministic mode, the floor.

    python benchmarks/kernels.py [--plugins scatter,index-put] [--sweep] [--out FOLDER]
    for n in $(seq 0 13); do
        python benchmarks/kernels.py --sweep --programs FOLDER --compile $n/14 &
    done; wait

The sizes are the plugins' own (`Property.benchmarks`). Every size is checked on random data in the
same run, against the property's reference, before it is timed. Times are medians, in
microseconds, of CUDA graph replays over several sets of inputs larger together than the L2 cache;
what cannot be captured (a result sized by the data) is timed call by call, from Python and again
as a program compiled by `graftwork.lower(target="aoti")`. The floor is the bytes of the inputs and
outputs, each moved once, over the bandwidth at which a kernel reads and writes 1 GB on the same
GPU. A column for FlagGems is filled where it is installed (`pip install flag-gems`), last of all
and row by row, as its kernels may hang; its warnings are left out.

The other lines above compile every kernel beforehand, in fourteen processes, and lower the
programs to where `--programs` names the same folder in the first line.

In the folder that `--out` names, by default benchmarks/results, `kernels-GPU.json` holds the GPU,
the versions and every row (`sweep`: the rows of the sweep), and `kernels-GPU.md` the rows and the
worst of the sweep.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
import triton
from sweeps import SWEEPS
from torch.utils import _pytree as pytree

import graftwork
from graftwork.plugins import Case, LoweringContext, Property
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.comparing import compare
from graftwork.plugins.reference import SubstituteOperators

PLUGINS = ("scatter", "scatter-reduce", "index-put", "sort")
CACHED = 200e6  # bytes; inputs are drawn until their sets exceed it, or four times


@dataclass
class Row:
    """One size: times in microseconds, None where a column could not run."""

    plugin: str
    name: str
    ours: float | None
    aten: float | None
    deterministic: float | None
    flaggems: float | None
    floor: float
    correct: str

    @property
    def ratio(self) -> float | None:
        """Ours over ATen's default."""
        return self.ours / self.aten if self.ours and self.aten else None


@dataclass(frozen=True)
class Size:
    """A size to measure: one of a property's, or of the sweep, where `promise` is None."""

    plugin: str
    name: str
    make: Callable[[str], Case]
    promise: Property | None = None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugins", default=",".join(PLUGINS))
    parser.add_argument("--sweep", action="store_true", help="powers of two and odd sizes too")
    parser.add_argument("--compile", metavar="N/M", help="only run the Nth of M parts, once")
    parser.add_argument("--programs", type=Path, help="where --compile keeps compiled programs")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/kernels.py needs a CUDA GPU; this machine shows none")
    sizes = list(list_sizes(options.plugins.split(","), options.sweep))
    if options.compile:
        part, parts = map(int, options.compile.split("/"))
        for size in sizes[part::parts]:
            run_once(size, options.programs)
        return
    programs = options.programs or Path(tempfile.mkdtemp())
    bandwidth = copy_bandwidth()
    head = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_bandwidth_gb_s": round(bandwidth / 1e9),
    }
    print(head)
    rows: list[Row] = []
    timed: list[tuple[Size, Row]] = []
    swept = []
    name = f"kernels-{head['gpu'].split()[-1].lower()}"
    options.out.mkdir(parents=True, exist_ok=True)

    def save() -> None:
        record = head | {"rows": [asdict(r) for r in rows], "sweep": [asdict(r) for r in swept]}
        (options.out / f"{name}.json").write_text(json.dumps(record, indent=1) + "\n")
        (options.out / f"{name}.md").write_text(table(head, rows, swept))

    for size in sizes:
        row = measure(size, bandwidth)
        if size.promise:
            timed.append((size, row))
            for each in (row, *measure_compiled(size, row, programs)):
                rows.append(each)
                print(line(each), flush=True)
        else:
            swept.append(row)
        save()
    for row in worst(swept):
        print(line(row))
    for size, row in timed:
        row.flaggems = time_flaggems(size)
        if row.flaggems is not None:
            print(line(row), flush=True)
            save()


def list_sizes(plugins: Sequence[str], sweep: bool) -> Iterator[Size]:
    """The plugins' own sizes, then those of the sweep."""
    for plugin_id in plugins:
        for promise in find_plugin(plugin_id).call("list_properties"):
            for size in promise.benchmarks:
                yield Size(plugin_id, size.name, size.make, promise)
    for plugin_id in plugins if sweep else ():
        for name, make in SWEEPS[plugin_id]():
            yield Size(plugin_id, name, make)


def run_once(size: Size, programs: Path | None) -> None:
    """Run one size, so that its kernels are compiled; what fails is told when it is measured."""
    case = size.make("cuda")
    with suppress(Exception), kernels_of(size, case)():
        caller(case)()
    if programs and size.promise and reads_back(caller(case)):
        compiled(size, case, programs)


def kernels_of(size: Size, case: Case) -> Callable[[], SubstituteOperators]:
    """Puts the plugin's kernels in ATen's place."""
    plugin = find_plugin(size.plugin)
    (choice,) = select_plugin_alone(plugin, case.options).enabled
    context = LoweringContext(target="cuda", device="cuda")
    functions = plugin.call("list_kernels", options=choice.options, context=context)
    return lambda: SubstituteOperators(functions)


def measure(size: Size, bandwidth: float) -> Row:
    """Check one size, then time each column but FlagGems'."""
    cases = draw_cases(size)
    ours = kernels_of(size, cases[0])
    correct = check(size.promise, cases[0], ours) if size.promise else "not compared"
    floor = (moved_bytes(cases[0]) + result_bytes(cases[0])) / bandwidth * 1e6
    times = time_column(size, cases, ours), time_column(size, cases, nullcontext)
    slow = time_column(size, cases, nullcontext, True) if size.promise else None
    return Row(size.plugin, size.name, *times, slow, None, floor, correct)


def measure_compiled(size: Size, row: Row, programs: Path) -> Iterator[Row]:
    """The row again with ours as a compiled program, where graph replays cannot show that."""
    cases = draw_cases(size)
    if reads_back(caller(cases[0])):
        name = f"{row.name}-compiled"
        try:
            package = graftwork.load(compiled(size, cases[0], programs))
            ours = time_calls([partial(package, *case.inputs) for case in cases], 15)
            yield replace(row, name=name, ours=ours, correct="equal")
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0]}")


def compiled(size: Size, case: Case, programs: Path) -> Path:
    """The program lowered to `aoti`, compared with eager; kept in `programs`."""
    file = programs / f"{size.name}.pt2"
    if not file.exists():
        settings = {"device": "cuda"}
        module, inputs = case.module(), case.inputs
        graftwork.lower(
            module, inputs, target="aoti", settings=settings, directory=programs, name=size.name
        )
    return file


def draw_cases(size: Size) -> list[Case]:
    """Sets of inputs that together exceed the L2 cache; one set in a sweep."""
    cases = [size.make("cuda")]
    while size.promise and len(cases) < 4 and len(cases) * moved_bytes(cases[0]) < CACHED:
        cases.append(size.make("cuda"))
    return cases


def time_column(
    size: Size, cases: Sequence[Case], around: Callable[[], Any], deterministic: bool = False
) -> float | None:
    """Median microseconds of the cases inside `around()`; None, with a message, on an error.

    `around()` is entered once, as a program would, so that only the calls are timed.
    """
    torch.use_deterministic_algorithms(deterministic)
    try:
        with around():
            calls = [caller(case) for case in cases]
            return time_calls(calls, 15 if size.promise else 5)
    except Exception as error:
        print(f"  {size.name}: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None
    finally:
        torch.use_deterministic_algorithms(False)


def time_flaggems(size: Size) -> float | None:
    """The same program with FlagGems' kernels in ATen's place; None where not installed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            import flag_gems
        except ImportError:
            return None
        return time_column(size, draw_cases(size), flag_gems.use_gems)


def caller(case: Case) -> Callable[[], Any]:
    """A call of the case's program in eager mode."""
    module = case.module()

    def call() -> Any:
        with torch.no_grad():
            return module(*case.inputs)

    return call


def check(promise: Property, case: Case, ours: Callable[[], Any]) -> str:
    """`equal`, or how the result differs from the property's reference."""
    reference = promise.reference or case.program
    # Thousands of values land on one element here, a few in the property itself.
    tolerance = replace(promise.tolerance, absolute=promise.tolerance.absolute * 100)
    with ours():
        outputs = pytree.tree_leaves(caller(case)())
    expected = pytree.tree_leaves(reference(*case.inputs, **case.settings))
    differences = [compare(*pair, tolerance) for pair in zip(outputs, expected, strict=True)]
    return "; ".join(filter(None, (difference.why for difference in differences))) or "equal"


def time_calls(calls: Sequence[Callable[[], Any]], repeats: int) -> float:
    """Median microseconds of a call, over graph replays where the calls can be captured."""
    for call in calls:
        call()
    torch.cuda.synchronize()
    try:
        if any(map(reads_back, calls)):
            raise RuntimeError("a call that reads the host cannot be captured")
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for _ in range(2):
                for call in calls:
                    call()
        run: Callable[[], Any] = graph.replay
    except Exception:
        torch.cuda.synchronize()

        def run() -> None:
            for _ in range(2):
                for call in calls:
                    call()

    samples = []
    for number in range(repeats + 2):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        run()
        end.record()
        end.synchronize()
        if number >= 2:
            samples.append(begin.elapsed_time(end) * 1e3 / (2 * len(calls)))
    return statistics.median(samples)


def reads_back(call: Callable[[], Any]) -> bool:
    """Whether the call waits for the GPU; tried first, as a failed capture breaks generators."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def copy_bandwidth() -> float:
    """Bytes read and written per second by an elementwise kernel over 1 GB.

    No `copy_`: in a captured graph that is a memcpy, which reaches two thirds of it on an H200.
    """
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / time_calls([lambda: torch.neg(source, out=target)], 15) * 1e6


def moved_bytes(case: Case) -> int:
    """Bytes of the inputs, each element of memory once: an expanded index is small."""
    return sum(size_in_memory(value) for value in case.inputs if isinstance(value, torch.Tensor))


def result_bytes(case: Case) -> int:
    """Bytes of what the program returns."""
    return sum(r.numel() * r.itemsize for r in pytree.tree_leaves(caller(case)()))


def size_in_memory(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements of a tensor."""
    sizes = [s for s, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return int(torch.Size(sizes).numel() * tensor.itemsize)


def worst(rows: Sequence[Row]) -> list[Row]:
    """Each plugin's four largest ratios to ATen's default, the largest first."""
    found: dict[str, list[Row]] = {}
    for row in sorted((r for r in rows if r.ratio), key=lambda r: -(r.ratio or 0)):
        found.setdefault(row.plugin, []).append(row)
    return [row for of_plugin in found.values() for row in of_plugin[:4]]


def line(row: Row) -> str:
    """One row as text."""

    def show(value: float | None) -> str:
        return "      -" if value is None else f"{value:7.1f}"

    ratio = "    -" if row.ratio is None else f"{row.ratio:5.2f}"
    columns = (row.ours, row.aten, row.deterministic, row.flaggems, row.floor)
    return f"{row.plugin + ' ' + row.name:62s}{' '.join(map(show, columns))} {ratio} {row.correct}"


def table(head: dict[str, Any], rows: Sequence[Row], swept: Sequence[Row]) -> str:
    """The rows and the worst of the sweep as a Markdown table, with what they were measured on."""
    lines = [
        f"{head['gpu']}, torch {head['torch']}, Triton {head['triton']}; microseconds, medians.",
        "",
        "| plugin | size | ours | ATen | ATen deterministic | FlagGems | floor | ours / ATen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in (*rows, *worst(swept)):
        columns = (row.ours, row.aten, row.deterministic, row.flaggems, row.floor)
        shown = " | ".join("-" if value is None else f"{value:.0f}" for value in columns)
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.plugin} | {row.name} | {shown} | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
