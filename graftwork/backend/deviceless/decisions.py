"""What was decided without a benchmark while lowering: one record a choice, for the report."""

from __future__ import annotations

import dataclasses
from typing import Any

__all__ = ["Decisions", "FusionChoice", "KernelChoice", "PadChoice", "TemplateChoice"]


@dataclasses.dataclass(frozen=True)
class TemplateChoice:
    """A GEMM or convolution template picked by the cost model, `estimate_us` its guess."""

    name: str
    m: int
    n: int
    k: int
    batch: int
    dtype: str
    config: str
    candidates: int
    estimate_us: float


@dataclasses.dataclass(frozen=True)
class KernelChoice:
    """A kernel's configuration, picked from `candidates` that compiled and fit."""

    kernel: str
    config: str
    candidates: int
    shared: int
    registers: int
    stack: int


@dataclasses.dataclass(frozen=True)
class PadChoice:
    """Whether an unaligned matrix product is padded, with the model's guess for both."""

    op: str
    m: int
    n: int
    k: int
    dtype: str
    padded: bool
    plain_us: float
    padded_us: float


@dataclasses.dataclass(frozen=True)
class FusionChoice:
    """Whether `epilogue` is fused into `template` (nodes), and a thread's registers then."""

    template: str
    epilogue: str
    fused: bool
    registers: int
    spilled: int


@dataclasses.dataclass
class Decisions:
    """Every choice of one lowering, in the order made."""

    arch: str
    templates: list[TemplateChoice] = dataclasses.field(default_factory=list)
    kernels: list[KernelChoice] = dataclasses.field(default_factory=list)
    pads: list[PadChoice] = dataclasses.field(default_factory=list)
    fusions: list[FusionChoice] = dataclasses.field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Plain lists and dicts, ready for JSON."""
        return dataclasses.asdict(self)
