"""Times calls: the latency of each, the rate of many in a row, and the memory they peak at."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

__all__ = ["Timing", "time_calls"]


@dataclass(frozen=True)
class Timing:
    """Microseconds a call, and bytes.

    Attributes:
        minimum, p50, p90, p99: of single calls, each waited for.
        queued: of calls one after the other, waited for at the end, per call.
        memory: the most in use during the calls beyond what was in use before them: on CUDA what
            torch's allocator held, on the CPU resident memory; None where it cannot be read.
    """

    minimum: float
    p50: float
    p90: float
    p99: float
    queued: float
    memory: int | None


def time_calls(call: Callable[[], Any], *, device: str, iterations: int, warm_ups: int) -> Timing:
    """Time `call`, which runs on `device`."""
    for _ in range(warm_ups):
        call()
    _wait(device)
    before = _reset_peak(device)
    latencies = []
    for _ in range(iterations):
        start = time.perf_counter()
        call()
        _wait(device)
        latencies.append((time.perf_counter() - start) * 1e6)
    peak = _peak(device)
    start = time.perf_counter()
    for _ in range(iterations):
        call()
    _wait(device)
    queued = (time.perf_counter() - start) * 1e6 / iterations
    memory = None if before is None or peak is None else max(0, peak - before)
    ordered = sorted(latencies)
    return Timing(
        ordered[0],
        percentile(ordered, 50),
        percentile(ordered, 90),
        percentile(ordered, 99),
        queued,
        memory,
    )


def percentile(ordered: Sequence[float], percent: int) -> float:
    """The smallest value that at least `percent` of a hundred values do not exceed."""
    return ordered[max(0, math.ceil(len(ordered) * percent / 100) - 1)]


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def _reset_peak(device: str) -> int | None:
    """Begin to measure the peak anew; bytes in use now."""
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()
        return int(torch.cuda.memory_allocated())
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return _status("VmRSS")


def _peak(device: str) -> int | None:
    return int(torch.cuda.max_memory_allocated()) if device == "cuda" else _status("VmHWM")


def _status(field: str) -> int | None:
    """A line of /proc/self/status in bytes."""
    try:
        found = re.search(rf"^{field}:\s*(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        return None
    return int(found.group(1)) * 1024 if found else None
