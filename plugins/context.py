"""What a plugin is told about the lowering it takes part in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch

TARGETS = ("cpu", "aoti", "cuda")


@dataclass(frozen=True)
class LoweringContext:
    """The facts of one lowering, given to every hook that asks for `context`.

    Attributes:
        target: one of `TARGETS`: `cpu` (ExecuTorch, XNNPACK and portable kernels), `aoti`
            (an AOTInductor package) or `cuda` (ExecuTorch's CUDA delegate).
        device: the kind of device the lowered program runs on, `cpu` or `cuda`.
        archs: CUDA architectures to compile for, such as `("sm_80", "sm_90")`; empty means
            the GPU of this machine.
        sample_inputs: positional example inputs the program was exported with.
        sample_kwargs: keyword example inputs.
        torch_version: version of the torch in use, without its build suffix.
        application_limit: apply at most this many rewrites, counted over all plugins in
            order; None means no limit. A wrong rewrite is found by halving it.
    """

    target: str = "cpu"
    device: str = "cpu"
    archs: tuple[str, ...] = ()
    sample_inputs: tuple[Any, ...] = ()
    sample_kwargs: Mapping[str, Any] = field(default_factory=dict)
    torch_version: str = torch.__version__.split("+")[0]
    application_limit: int | None = None
