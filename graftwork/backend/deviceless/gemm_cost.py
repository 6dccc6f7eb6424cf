"""How long a matrix product takes with a given tile, estimated: for choosing among templates.

A product M x N x K is cut into tiles of the output; each processor works on as many as its
registers and shared memory hold, round by round. A step of the inner loop takes as long as the
slowest of its arithmetic, its loads, and the latency of a load that the pipeline does not hide.
Constants were fitted to measured times of every candidate on an H200 (see docs), and scale to
other cards by their published figures.
"""

from __future__ import annotations

import dataclasses
import math

from graftwork.backend.deviceless.gpus import Gpu

__all__ = ["GemmShape", "Tile", "estimate_us", "fits"]

_BYTES = {
    "float64": 8,
    "float32": 4,
    "int32": 4,
    "float16": 2,
    "bfloat16": 2,
    "int8": 1,
    "uint8": 1,
}


@dataclasses.dataclass(frozen=True)
class GemmShape:
    """An output of `batch` x `m` x `n` summed over `k`.

    `tf32`: float32 on tensor cores. `aligned`: rows start on 16 bytes, so that loads are wide
    and can be pipelined. `gathered`: rows are computed addresses (a convolution).
    """

    m: int
    n: int
    k: int
    batch: int = 1
    dtype: str = "float32"
    tf32: bool = False
    aligned: bool = True
    gathered: bool = False

    @property
    def itemsize(self) -> int:
        """Bytes an element."""
        return _BYTES.get(self.dtype, 4)


@dataclasses.dataclass(frozen=True)
class Tile:
    """One configuration: the output tile, the step along K, pipeline stages, warps a tile."""

    m: int
    n: int
    k: int
    stages: int
    warps: int

    def shared(self, itemsize: int) -> int:
        """Bytes of shared memory for the tile's pipelined operands."""
        return max(1, self.stages) * (self.m + self.n) * self.k * itemsize


def fits(shape: GemmShape, tile: Tile, gpu: Gpu) -> bool:
    """Whether the tile's operands and its epilogue fit a block's shared memory, with room."""
    epilogue = tile.m * tile.n * 4 if gpu.capability >= (9, 0) else 0
    return max(tile.shared(shape.itemsize), epilogue) <= 0.95 * gpu.shared_per_block


def estimate_us(shape: GemmShape, tile: Tile, gpu: Gpu) -> float:
    """Microseconds, to rank tiles by; the launch included."""
    tiles = shape.batch * math.ceil(shape.m / tile.m) * math.ceil(shape.n / tile.n)
    steps = math.ceil(shape.k / tile.k)
    threads = tile.warps * 32

    # Registers: the accumulator, two operands' fragments, and what addressing takes.
    registers = tile.m * tile.n / threads + 40 + (tile.m + tile.n) * tile.k / threads / 4
    spill = 1.0 if registers <= 255 else 1.0 + (registers - 255) / 64
    by_registers = 65536 // int(min(255, registers) * threads)
    by_shared = gpu.shared_per_sm // max(1, tile.shared(shape.itemsize))
    by_threads = gpu.threads_per_sm // threads
    resident = max(1, min(by_registers, by_shared, by_threads, 16))

    # Only as many as there are work for: the last round, and small outputs, leave some idle.
    per_sm = math.ceil(tiles / gpu.sms)
    together = min(resident, per_sm)
    rounds = math.ceil(per_sm / resident)

    clock = gpu.clock_ghz * 1e3  # cycles a microsecond
    flops = 2.0 * tile.m * tile.n * tile.k
    arithmetic = flops * together / (_throughput(shape, gpu) * _efficiency(shape, tile)) / clock

    loaded = (tile.m + tile.n) * tile.k * shape.itemsize
    width = 1.0 if shape.aligned else 3.0
    if shape.gathered:
        width *= 1.3
    l2_bytes = 64.0 * clock  # bytes a microsecond that one processor takes from L2
    loads = loaded * together * width / l2_bytes
    busy = min(gpu.sms, tiles)
    dram = _dram_share(shape, tile) * loaded * together * busy / (gpu.dram_gbs * 1e3)

    latency = 0.6 if shape.aligned else 1.0
    in_flight = max(1.0, (tile.stages - 1) if shape.aligned else 1.0)
    hidden = latency / in_flight / max(1.0, together * tile.warps / 4 / 2)
    step = max(arithmetic, loads, dram, hidden) + 0.02
    start = 2.0 + 0.7 * min(tile.stages, steps) / max(1, tile.stages)
    store = tile.m * tile.n * shape.itemsize * together / l2_bytes
    return start + rounds * (steps * step * spill + store + 0.5)


def _throughput(shape: GemmShape, gpu: Gpu) -> float:
    """Operations a cycle that one processor does on this type."""
    if shape.itemsize <= 2:
        return float(gpu.half_flops)
    if shape.tf32 and shape.itemsize == 4:
        return float(gpu.tf32_flops)
    return float(gpu.float_flops) / (1 if shape.itemsize == 4 else 2)


def _efficiency(shape: GemmShape, tile: Tile) -> float:
    """How much of the peak a tile's inner loop reaches: larger tiles reuse operands more."""
    on_tensor_cores = shape.itemsize <= 2 or shape.tf32
    intensity = tile.m * tile.n / (tile.m + tile.n)
    reach = intensity / (intensity + (32 if on_tensor_cores else 12))
    return 0.8 * reach


def _dram_share(shape: GemmShape, tile: Tile) -> float:
    """The part of the tile loads that L2 does not serve: each operand once from memory."""
    once = shape.m * shape.k + shape.k * shape.n
    all_loads = (
        math.ceil(shape.n / tile.n) * shape.m * shape.k
        + math.ceil(shape.m / tile.m) * shape.k * shape.n
    )
    return min(1.0, once / max(1, all_loads))
