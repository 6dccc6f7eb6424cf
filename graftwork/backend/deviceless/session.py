"""What the parts of one deviceless lowering share."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from graftwork.backend.deviceless.decisions import Decisions
from graftwork.backend.deviceless.gpus import Gpu
from graftwork.backend.deviceless.marks import Marks
from graftwork.backend.deviceless.stubs import Toolkit

__all__ = ["Session"]


@dataclasses.dataclass
class Session:
    """The GPU stood in for, the toolkit that compiles for it, and what was decided so far."""

    gpu: Gpu
    ptx: bool
    toolkit: Toolkit
    stubs: Path
    marks: Marks = dataclasses.field(default_factory=Marks)
    decisions: Decisions = dataclasses.field(init=False)
    # Whether the program being compiled has a kernel whose PTX runs on this architecture only.
    arch_specific: bool = False

    def __post_init__(self) -> None:
        self.decisions = Decisions(self.gpu.arch)

    def image_arch(self) -> str:
        """The architecture that a fatbin's images are labelled with; asked once a library."""
        specific, self.arch_specific = self.arch_specific, False
        return self.gpu.nvcc_arch + ("a" if specific else "")
