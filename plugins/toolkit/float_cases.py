"""What plugins of sums and products draw, and how far from what their results may be."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import Tensor

from graftwork.plugins import Tolerance

__all__ = ["CLOSE", "HALVES", "ROUNDED", "WHY_ROUNDED", "WIDE", "rounded"]

WIDE = (torch.float32, torch.float64)
HALVES = (torch.bfloat16, torch.float16)

CLOSE = Tolerance(relative=1e-5, absolute=1e-5)
# Rounded twice where the bias is added to a result: sums of up to 16 before it.
ROUNDED = Tolerance(relative=2**-6, absolute=2**-5)
WHY_ROUNDED = "on a CPU eager rounds the parts of a transposed convolution to half types"


def rounded(program: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """`program(*tensors, **settings)` in float64, rounded once to the first tensor's dtype."""

    @wraps(program)
    def in_float64(*tensors: Tensor | None, **settings: Any) -> Tensor:
        assert tensors[0] is not None
        wide = [None if tensor is None else tensor.double() for tensor in tensors]
        return program(*wide, **settings).to(tensors[0].dtype)

    return in_float64
