"""The GPUs that a program can be lowered for without having one: `gpu("sm_90")`.

One typical card an architecture, with the numbers that decide how kernels are compiled (shared
memory, registers, processors) and how long they take (clock, throughput, bandwidth). Figures
are NVIDIA's published ones.
"""

from __future__ import annotations

import dataclasses
from typing import Any

from graftwork.backend.deviceless.errors import DevicelessError

__all__ = ["GPUS", "Gpu", "gpu"]


@dataclasses.dataclass(frozen=True)
class Gpu:
    """One card. Sizes in bytes, `clock_ghz` under load, `dram_gbs` in GB/s.

    `half_flops` and `tf32_flops` count dense tensor-core operations a processor and a clock, as
    Triton's generated code reaches them; `float_flops` those of the float32 units.
    """

    arch: str
    name: str
    sms: int
    memory: int
    shared_per_block: int
    shared_per_sm: int
    threads_per_sm: int
    l2: int
    clock_ghz: float
    dram_gbs: float
    half_flops: int
    tf32_flops: int
    float_flops: int = 256

    @property
    def capability(self) -> tuple[int, int]:
        """Compute capability, (9, 0) for sm_90."""
        digits = int(self.arch.removeprefix("sm_"))
        return digits // 10, digits % 10

    @property
    def nvcc_arch(self) -> str:
        """The number in the architecture's name, "90" for sm_90."""
        return self.arch.removeprefix("sm_")


# arch, card, processors, memory, shared memory a block and a processor, threads a processor,
# L2, clock, DRAM, then operations a processor and clock: half, TF32, float32.
_TABLE: tuple[tuple[Any, ...], ...] = (
    ("sm_80", "NVIDIA A100 80GB", 108, 80, 166912, 167936, 2048, 40, 1.35, 2039, 2048, 1024, 128),
    ("sm_86", "NVIDIA A10", 72, 24, 101376, 102400, 1536, 6, 1.5, 600, 1024, 512, 256),
    ("sm_87", "Jetson AGX Orin", 16, 64, 166912, 167936, 1536, 4, 1.2, 205, 2048, 1024, 256),
    ("sm_89", "NVIDIA L4", 58, 24, 101376, 102400, 1536, 48, 1.7, 300, 1024, 512, 256),
    ("sm_90", "NVIDIA H100 80GB", 132, 80, 232448, 233472, 2048, 50, 1.7, 3350, 4096, 2048, 256),
    ("sm_100", "NVIDIA B200", 148, 180, 232448, 233472, 2048, 126, 1.8, 8000, 8192, 4096, 256),
    ("sm_120", "RTX PRO 6000", 188, 96, 101376, 102400, 1536, 128, 2.2, 1790, 1024, 512, 256),
)

GPUS: dict[str, Gpu] = {}
for (
    _arch,
    _name,
    _sms,
    _gib,
    _block,
    _shared,
    _threads,
    _l2,
    _clock,
    _dram,
    _half,
    _tf32,
    _float,
) in _TABLE:
    GPUS[_arch] = Gpu(
        _arch,
        _name,
        _sms,
        _gib << 30,
        _block,
        _shared,
        _threads,
        _l2 << 20,
        _clock,
        _dram,
        _half,
        _tf32,
        _float,
    )


def gpu(arch: str) -> Gpu:
    """The card that stands for `arch`; DevicelessError, listing the known ones, for others."""
    if arch not in GPUS:
        known = ", ".join(GPUS)
        raise DevicelessError(f"unknown GPU architecture {arch!r}; known: {known}")
    return GPUS[arch]
