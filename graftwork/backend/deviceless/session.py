"""What the parts of one deviceless lowering share."""

from __future__ import annotations

import dataclasses
import platform
from pathlib import Path

from graftwork.backend.deviceless.decisions import Decisions
from graftwork.backend.deviceless.gpus import Gpu
from graftwork.backend.deviceless.stubs import Toolkit

__all__ = ["Session"]


@dataclasses.dataclass
class Session:
    """The GPU stood in for, the toolkit that compiles for it, and what was decided so far."""

    gpu: Gpu
    ptx: bool
    toolkit: Toolkit
    stubs: Path
    decisions: Decisions = dataclasses.field(init=False)

    def __post_init__(self) -> None:
        self.decisions = Decisions(self.gpu.arch)

    @property
    def is_x86(self) -> bool:
        """Whether the host side is built for x86-64."""
        return platform.machine() in ("x86_64", "AMD64")
