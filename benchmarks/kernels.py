"""Times the kernel plugins on a GPU: ours, ATen's default, ATen's deterministic mode, the floor.

    python benchmarks/kernels.py [--plugins scatter,index-put] [--sweep] [--out FOLDER]

The sizes are the plugins' own (`Property.benchmarks`). Every size is checked on random data in the
same run, against the property's reference, before it is timed. Times are medians, in
microseconds, of CUDA graph replays over several sets of inputs larger together than the L2 cache;
what cannot be captured (a result sized by the data) is timed call by call. The floor is the bytes
of the inputs and outputs, each moved once, over the bandwidth of a large copy on the same GPU.
A column for FlagGems is filled where it is installed (`pip install flag-gems`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
import triton
from sweeps import SWEEPS

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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--plugins", default=",".join(PLUGINS))
    parser.add_argument("--sweep", action="store_true", help="powers of two and odd sizes too")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("benchmarks/kernels.py needs a CUDA GPU; this machine shows none")
    bandwidth = copy_bandwidth()
    head = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "copy_bandwidth_gb_s": round(bandwidth / 1e9),
    }
    print(head)
    rows, swept = [], []
    for plugin_id in options.plugins.split(","):
        for promise in find_plugin(plugin_id).call("list_properties"):
            for size in promise.benchmarks:
                rows.append(measure(plugin_id, promise, size.name, size.make, bandwidth))
                print(line(rows[-1]), flush=True)
        if options.sweep and plugin_id in SWEEPS:
            for name, make in SWEEPS[plugin_id]():
                swept.append(measure(plugin_id, None, name, make, bandwidth, quick=True))
    if swept:
        report_sweep(swept)
    options.out.mkdir(parents=True, exist_ok=True)
    record = head | {"rows": [asdict(r) for r in rows], "sweep": [asdict(r) for r in swept]}
    (options.out / "kernels.json").write_text(json.dumps(record, indent=1) + "\n")
    (options.out / "kernels.md").write_text(table(head, rows))


def measure(
    plugin_id: str,
    promise: Property | None,
    name: str,
    make: Callable[[str], Case],
    bandwidth: float,
    quick: bool = False,
) -> Row:
    """Check one size, then time each column."""
    cases = [make("cuda")]
    while not quick and len(cases) < 4 and len(cases) * moved_bytes(cases[0]) < CACHED:
        cases.append(make("cuda"))
    plugin = find_plugin(plugin_id)
    (choice,) = select_plugin_alone(plugin, cases[0].options).enabled
    context = LoweringContext(target="cuda", device="cuda")
    functions = plugin.call("list_kernels", options=choice.options, context=context)

    def ours() -> Any:
        return SubstituteOperators(functions)

    correct = "not compared" if quick else check(promise, cases[0], ours)
    repeats = 5 if quick else 15

    def column(around: Callable[[], Any], deterministic: bool = False) -> float | None:
        torch.use_deterministic_algorithms(deterministic)
        try:
            return time_calls([caller(case, around) for case in cases], repeats)
        except Exception as error:
            print(f"  {name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            return None
        finally:
            torch.use_deterministic_algorithms(False)

    floor = (moved_bytes(cases[0]) + result_bytes(cases[0])) / bandwidth * 1e6
    times = column(ours), column(nullcontext)
    rest = (None, None) if quick else (column(nullcontext, True), column_of_flaggems(column))
    return Row(plugin_id, name, *times, *rest, floor, correct)


def caller(case: Case, around: Callable[[], Any]) -> Callable[[], Any]:
    """A call of the case's program in eager mode, inside `around()`."""
    module = case.module()

    def call() -> Any:
        with torch.no_grad(), around():
            return module(*case.inputs)

    return call


def check(promise: Property | None, case: Case, ours: Callable[[], Any]) -> str:
    """`equal`, or how the result differs from the property's reference."""
    assert promise is not None
    reference = promise.reference or case.program
    # Thousands of values land on one element here, a few in the property itself.
    tolerance = replace(promise.tolerance, absolute=promise.tolerance.absolute * 100)
    difference = compare(caller(case, ours)(), reference(*case.inputs, **case.settings), tolerance)
    return difference.why or "equal"


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
    torch.cuda.set_sync_debug_mode("error")
    try:
        call()
    except RuntimeError:
        return True
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return False


def column_of_flaggems(column: Callable[[Callable[[], Any]], float | None]) -> float | None:
    """The same programs with FlagGems' kernels in ATen's place; None where not installed."""
    try:
        import flag_gems
    except ImportError:
        return None
    return column(flag_gems.use_gems)


def copy_bandwidth() -> float:
    """Bytes read and written per second by a copy of 1 GB."""
    source = torch.randn(2**28, device="cuda")
    target = torch.empty_like(source)
    return 2 * source.nbytes / time_calls([lambda: target.copy_(source)], 15) * 1e6


def moved_bytes(case: Case) -> int:
    """Bytes of the inputs, each element of memory once: an expanded index is small."""
    return sum(size_in_memory(value) for value in case.inputs if isinstance(value, torch.Tensor))


def result_bytes(case: Case) -> int:
    """Bytes of the result."""
    result = caller(case, nullcontext)()
    return int(result.numel() * result.itemsize)


def size_in_memory(tensor: torch.Tensor) -> int:
    """Bytes of the distinct elements of a tensor."""
    sizes = [s for s, stride in zip(tensor.shape, tensor.stride(), strict=True) if stride]
    return int(torch.Size(sizes).numel() * tensor.itemsize)


def report_sweep(rows: Sequence[Row]) -> None:
    """The worst ratio to ATen's default of each plugin, and the ten worst sizes."""
    known = sorted((r for r in rows if r.ratio), key=lambda r: -(r.ratio or 0))
    print(f"sweep: {len(known)} sizes, worst first")
    for row in known[:12]:
        print(line(row))


def line(row: Row) -> str:
    """One row as text."""

    def show(value: float | None) -> str:
        return "      -" if value is None else f"{value:7.1f}"

    ratio = "    -" if row.ratio is None else f"{row.ratio:5.2f}"
    columns = (row.ours, row.aten, row.deterministic, row.flaggems, row.floor)
    return f"{row.plugin + ' ' + row.name:62s}{' '.join(map(show, columns))} {ratio} {row.correct}"


def table(head: dict[str, Any], rows: Sequence[Row]) -> str:
    """The rows as a Markdown table, with what they were measured on."""
    lines = [
        f"{head['gpu']}, torch {head['torch']}, Triton {head['triton']}; microseconds, medians.",
        "",
        "| plugin | size | ours | ATen | ATen deterministic | FlagGems | floor | ours / ATen |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        columns = (row.ours, row.aten, row.deterministic, row.flaggems, row.floor)
        shown = " | ".join("-" if value is None else f"{value:.0f}" for value in columns)
        ratio = "-" if row.ratio is None else f"{row.ratio:.2f}"
        lines.append(f"| {row.plugin} | {row.name} | {shown} | {ratio} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    main()
