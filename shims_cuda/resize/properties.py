"""What the resize kernels promise: ATen's numbers in every dtype and layout, NaN in its window."""

from __future__ import annotations

import functools

import torch
from hypothesis import strategies as st

from graftwork.plugins import EXACT, Property, Tolerance
from graftwork.plugins.toolkit.resample_cases import (
    TOLERANCES,
    absurd_cases,
    benchmarks,
    by_the_formulas,
    cases,
    column_cases,
    rounded_once,
    with_tolerance,
)

# The interpreter pays by the plane and by the row.
small = functools.partial(cases, most_channels=2, most_elements=10)

PROPERTIES = (
    Property(
        "float-resizes-equal-aten",
        with_tolerance(st.sampled_from([*TOLERANCES]).flatmap(small)),
        reference=rounded_once,
        reference_reason="ATen's CPU kernels take no half types: there its float32 result",
        road="direct",
        benchmarks=benchmarks(),
    ),
    Property("byte-resizes-equal-aten", small(torch.uint8), EXACT, road="direct"),
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
        column_cases(most_elements=12),
        Tolerance(absolute=2e-5, strides=False),
        reference=by_the_formulas,
        reference_reason="ATen's CPU kernel repeats its first row where the width becomes 1",
        road="direct",
    ),
)
