"""What the resize kernels promise: ATen's numbers in every dtype and layout, NaN in its window."""

from __future__ import annotations

import functools

import torch
from hypothesis import strategies as st

from graftwork.plugins import EXACT, Property
from graftwork.plugins.toolkit.resample_cases import (
    TOLERANCES,
    benchmarks,
    beyond_aten,
    cases,
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
    *beyond_aten(most_elements=12),
)
