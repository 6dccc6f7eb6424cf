"""Antialiased resizes, rewritten and compiled, against ATen's kernel, in one process.

    python benchmarks/resize.py [--device cuda] [--case NAME] [--json FILE]

On the CPU the two run on two threads (`--threads`), timed by the processor time they take, which
a busy machine does not blur. On a GPU both are replayed from CUDA graphs, inputs of 100 MB and
more. Prints milliseconds, the ratio, and the largest difference from ATen's CPU kernel.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F

from graftwork.plugins import LoweringContext, rewrite_program, select_plugins

SIZES = {
    "1080p-to-224": ((8, 3, 1080, 1920), (224, 224)),
    "4k-to-512": ((1, 3, 2160, 3840), (512, 512)),
    "224-to-896": ((8, 3, 224, 224), (896, 896)),
}
FORMS = {
    "float32": lambda x: x,
    "float16": lambda x: x.half(),
    "bfloat16": lambda x: x.bfloat16(),
    "channels_last": lambda x: x.to(memory_format=torch.channels_last),
    "uint8": lambda x: (x * 256).to(torch.uint8),
}


class Resize(torch.nn.Module):
    """One resize."""

    def __init__(self, mode: str, size: tuple[int, int]) -> None:
        super().__init__()
        self.mode, self.size = mode, size

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.interpolate(x, self.size, mode=self.mode, antialias=True)


def cases() -> dict[str, tuple[str, str, str]]:
    """Name to (mode, size, form): every size in float32, the first in the other forms too."""
    named = [(mode, size, "float32") for size in SIZES for mode in ("bilinear", "bicubic")]
    named += [("bilinear", "1080p-to-224", form) for form in FORMS if form != "float32"]
    return {f"{mode}-{size}-{form}": (mode, size, form) for mode, size, form in named}


def compiled(module: Resize, x: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """The module rewritten by the two plugins for it and compiled as the AOT compiler would."""
    program = torch.export.export(module, (x,), strict=False)
    context = LoweringContext(target="aoti", device=x.device.type)
    selection = select_plugins(disable=["all"], enable=["resize", "antialiased-resize"])
    rewritten, _ = rewrite_program(program, selection, context)
    function: Callable[[torch.Tensor], torch.Tensor] = torch.compile(rewritten.module())
    return function


def time_cpu(function: Callable[[], object], runs: int = 7) -> float:
    """Processor milliseconds of the fastest run, all threads together."""
    function()
    taken = []
    for _ in range(runs):
        start = time.process_time()
        function()
        taken.append(time.process_time() - start)
    return 1e3 * min(taken)


def time_cuda(function: Callable[[], object], runs: int = 30) -> float:
    """Device milliseconds, the median replay of a CUDA graph of five calls."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(5):
            function()
    taken = []
    for _ in range(runs):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in "se")
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        taken.append(start.elapsed_time(end) / 5)
    return statistics.median(taken)


def measure(name: str, device: str) -> dict[str, object]:
    """One case: times of both, their ratio, the difference from ATen on the CPU."""
    mode, size, form = cases()[name]
    shape, target = SIZES[size]
    torch.manual_seed(0)
    x = FORMS[form](torch.rand(shape)).to(device)
    module = Resize(mode, target)
    timed = time_cuda if device == "cuda" else time_cpu
    with torch.no_grad():
        start = time.perf_counter()
        function = compiled(module, x)
        result = function(x)
        seconds = time.perf_counter() - start
        exact = x.cpu() if form == "uint8" else x.float().cpu()
        gap = (result.cpu().float() - module(exact).float()).abs().max().item()
        ours = timed(lambda: function(x))
        try:
            aten: float | None = timed(lambda: module(x))
        except RuntimeError:
            aten = None
    return {
        "name": name,
        "ours_ms": ours,
        "aten_ms": aten,
        "ratio": ours / aten if aten else None,
        "max_abs_diff": gap,
        "compile_s": seconds,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--case", action="append", choices=tuple(cases()), metavar="NAME")
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = []
    print(f"{'case':36} {'ours ms':>9} {'ATen ms':>9} {'ratio':>6} {'max diff':>9} {'compile':>8}")
    for name in arguments.case or cases():
        row = measure(name, arguments.device)
        rows.append(row)
        aten, ratio = (f"{row[k]:.3f}" if row[k] else "-" for k in ("aten_ms", "ratio"))
        print(
            f"{name:36} {row['ours_ms']:9.3f} {aten:>9} {ratio:>6} "
            f"{row['max_abs_diff']:9.1e} {row['compile_s']:7.1f}s",
            flush=True,
        )
    if arguments.json:
        arguments.json.write_text(json.dumps(rows, indent=2) + "\n")
    sys.exit(0)


if __name__ == "__main__":
    main()
