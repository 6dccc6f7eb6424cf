"""How long a matrix product takes with a given tile, estimated: for choosing among templates.

A product M x N x K is cut into tiles of the output; each processor holds as many as its
registers and shared memory allow, round by round. A step of the inner loop takes as long as the
slowest of its arithmetic, its loads from L2, the latency of a load that neither the pipeline nor
the other resident tiles hide, and the cost of keeping the tile's warps in step.

The constants were fitted to the times of twenty tiles on twenty-six shapes (bfloat16, TF32,
float32; aligned or not; one tile to thousands) on an H200, and scale to other cards by clock and
published throughput.
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
    per_sm = math.ceil(tiles / gpu.sms)
    resident = min(_resident(shape, tile, gpu), per_sm)
    full, rest = divmod(per_sm, resident)
    loop = full * resident * _step_ns(shape, tile, gpu, resident)
    if rest:
        loop += rest * _step_ns(shape, tile, gpu, rest)
    rounds = full + bool(rest)
    start_and_store = rounds * _START_NS + per_sm * tile.m * tile.n * shape.itemsize / _l2(gpu)
    traffic = shape.m * shape.k + shape.k * shape.n + shape.m * shape.n
    dram = shape.batch * traffic * shape.itemsize / gpu.dram_gbs
    return _LAUNCH_US + max(steps * loop + start_and_store, dram) / 1e3


# Of an H200 at 1.7 GHz.
_LAUNCH_US = 2.0
_START_NS = 1500.0
_LATENCY_CLOCKS = 1450  # from asking for a tile's operands to having them
_L2_BYTES_A_CLOCK = 47  # that one processor takes
_OVERLAP = 2.0
_REACHED = 0.7  # of the published tensor-core throughput, by generated code
# Float32 without tensor cores is bound by shared memory: the more accumulators a thread keeps,
# the more it does with what it loads. Operations a clock and processor, by accumulators.
_FMA_RATES = ((4, 28.0), (8, 32.0), (16, 34.0), (32, 61.0), (64, 101.0), (128, 110.0))
_FMA_RATE_OF_A_WARP = 59.0


def _step_ns(shape: GemmShape, tile: Tile, gpu: Gpu, together: int) -> float:
    """Nanoseconds that one tile's step takes of a processor which holds `together` tiles."""
    flops = 2.0 * tile.m * tile.n * tile.k
    if _on_tensor_cores(shape):
        published = gpu.half_flops if shape.itemsize <= 2 else gpu.tf32_flops
        arithmetic = flops / (_REACHED * published)
    else:
        arithmetic = flops / _fma_rate(tile, together, gpu, shape.itemsize)
    loads = (tile.m + tile.n) * tile.k * shape.itemsize / _L2_BYTES_A_CLOCK
    if shape.gathered:
        loads *= 1.3
    # An unaligned row is loaded element by element, and without the asynchronous copies that
    # would keep several steps in flight.
    in_flight = tile.stages - 1 if tile.stages > 1 and shape.aligned else 0.7
    latency = _LATENCY_CLOCKS / in_flight / together
    in_step = 50 + 20 * tile.warps
    # They overlap, but not quite: a norm between the largest (infinity) and the sum (1).
    parts = (arithmetic, loads, latency, in_step)
    clocks = float(sum(part**_OVERLAP for part in parts) ** (1 / _OVERLAP))
    return _spill(shape, tile) * clocks / gpu.clock_ghz


def _fma_rate(tile: Tile, together: int, gpu: Gpu, itemsize: int) -> float:
    """Operations a clock that a processor's float32 units do on `together` such tiles."""
    kept = tile.m * tile.n / (tile.warps * 32)
    low = _FMA_RATES[0]
    limit = _FMA_RATES[-1][1]
    for entry in _FMA_RATES:
        if kept <= entry[0]:
            share = (kept - low[0]) / (entry[0] - low[0]) if entry[0] > low[0] else 0.0
            limit = low[1] + share * (entry[1] - low[1])
            break
        low = entry
    warps = _FMA_RATE_OF_A_WARP * tile.warps * together
    rate = 1 / (1 / limit + 1 / warps)
    return rate * gpu.float_flops / 256 * (1.0 if itemsize == 4 else 0.5)


def _resident(shape: GemmShape, tile: Tile, gpu: Gpu) -> int:
    """How many tiles a processor holds at once."""
    threads = tile.warps * 32
    by_registers = 65536 // int(min(255.0, _registers(shape, tile)) * threads)
    by_shared = gpu.shared_per_sm // (tile.shared(shape.itemsize) + 1024)
    by_threads = gpu.threads_per_sm // threads
    return max(1, min(by_registers, by_shared, by_threads, 16))


def _registers(shape: GemmShape, tile: Tile) -> float:
    """Registers a thread, about: accumulators, fragments of the operands, addresses."""
    threads = tile.warps * 32
    kept = tile.m * tile.n / threads
    if not shape.aligned:
        return 40 + kept + 2.6 * (tile.m + tile.n) * tile.k / threads
    return 40 + 1.2 * kept if _on_tensor_cores(shape) else 64 + 2 * kept


def _spill(shape: GemmShape, tile: Tile) -> float:
    """How much slower a step is for the registers that do not fit."""
    if not shape.aligned:
        return 1 + max(0.0, _registers(shape, tile) - 255) / 40
    kept = tile.m * tile.n / (tile.warps * 32)
    loaded = (tile.m + tile.n) * tile.k / (tile.warps * 32)
    if _on_tensor_cores(shape):
        if shape.gathered:
            addresses = loaded * shape.itemsize / 8  # eight bytes for each load of sixteen
            return 1 + max(0.0, 40 + 1.2 * kept + addresses - 200) / 80
        return 1 + max(0.0, 40 + 1.2 * kept - 255) / 40
    if shape.gathered and tile.stages > 2 and loaded >= 64:
        return 4.0  # a pipeline keeps the addresses of what it loads
    return 4.0 if kept >= 128 and tile.k >= 64 else 1.0 + max(0.0, kept - 128) / 32


def _on_tensor_cores(shape: GemmShape) -> bool:
    return shape.itemsize <= 2 or (shape.tf32 and shape.itemsize == 4)


def _l2(gpu: Gpu) -> float:
    """Bytes a nanosecond that one processor takes from L2."""
    return _L2_BYTES_A_CLOCK * gpu.clock_ghz
