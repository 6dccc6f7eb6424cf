"""What the resize promises: ATen's results, and the formulas' where its CPU kernels go wrong."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from graftwork.plugins import EXACT, Case, Property, Refusal
from graftwork.plugins.toolkit.resample_cases import (
    HALVES,
    TOLERANCES,
    benchmarks,
    beyond_aten,
    cases,
    resized,
    rounded_once,
    with_tolerance,
)


def _refusal(name: str, image: Tensor, size: tuple[int, int], message: str) -> Refusal:
    settings = {"mode": "bilinear", "align_corners": False, "size": size}
    return Refusal(name, Case(resized, (image,), settings), Exception, message)


NO_HALVES = "ATen's CPU kernels take no half types: there its float32 result, rounded"

# Tracing an example takes a hundred times what computing it takes. So the numbers of every dtype
# are compared with the operators in place, and exported programs of all dtypes in one property.
PROPERTIES = (
    Property(
        "exported-resizes-equal-aten",
        with_tolerance(st.sampled_from((*TOLERANCES, torch.uint8)).flatmap(cases)),
        reference=rounded_once,
        reference_reason=NO_HALVES,
        refused=(
            _refusal("integers", torch.ones(1, 1, 4, 4, dtype=torch.int32), (2, 2), "'Int'"),
            _refusal("no height", torch.ones(1, 1, 0, 4), (2, 2), "greater than 0"),
            _refusal("to nothing", torch.ones(1, 1, 4, 4), (0, 2), "greater than 0"),
        ),
        benchmarks=benchmarks(),
    ),
    Property(
        "float-resizes-equal-aten",
        cases(torch.float32),
        TOLERANCES[torch.float32],
        road="direct",
    ),
    Property(
        "double-resizes-equal-aten",
        cases(torch.float64),
        TOLERANCES[torch.float64],
        road="direct",
    ),
    Property("byte-resizes-equal-aten", cases(torch.uint8), EXACT, road="direct"),
    Property(
        "half-resizes-round-once",
        st.sampled_from(HALVES).flatmap(cases),
        TOLERANCES[torch.float16],
        reference=rounded_once,
        reference_reason=NO_HALVES,
        road="direct",
    ),
    *beyond_aten(),
)
