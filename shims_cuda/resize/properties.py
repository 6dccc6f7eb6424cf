"""What the resize kernel promises: ATen's numbers in every layout, NaN in its windows."""

from __future__ import annotations

import functools

import torch
from hypothesis import strategies as st

from graftwork.plugins import EXACT, Property, Tolerance
from graftwork.plugins.toolkit.resample_cases import (
    HALVES,
    TOLERANCES,
    absurd_cases,
    benchmarks,
    by_the_formulas,
    cases,
    column_cases,
    rounded_once,
)

# The interpreter pays by the plane and by the row.
small = functools.partial(cases, most_channels=2, most_elements=16)

PROPERTIES = (
    Property(
        "float-resizes-equal-aten",
        small(torch.float32),
        TOLERANCES[torch.float32],
        road="direct",
        benchmarks=benchmarks(),
    ),
    Property(
        "double-resizes-equal-aten",
        small(torch.float64),
        TOLERANCES[torch.float64],
        road="direct",
    ),
    Property("byte-resizes-equal-aten", small(torch.uint8), EXACT, road="direct"),
    Property(
        "half-resizes-round-once",
        st.sampled_from(HALVES).flatmap(small),
        TOLERANCES[torch.float16],
        reference=rounded_once,
        reference_reason="ATen's CPU kernels take no half types: its float32 result, rounded",
        road="direct",
    ),
    Property(
        "absurd-factors-follow-the-formulas",
        absurd_cases(),
        Tolerance(absolute=1e-4, strides=False),
        reference=by_the_formulas,
        reference_reason="ATen's CPU kernel reads outside the image for such factors",
        road="direct",
    ),
    Property(
        "columns-follow-the-formulas",
        column_cases(),
        Tolerance(absolute=2e-5, strides=False),
        reference=by_the_formulas,
        reference_reason="ATen's CPU kernel repeats its first row where the width becomes 1",
        road="direct",
    ),
)
