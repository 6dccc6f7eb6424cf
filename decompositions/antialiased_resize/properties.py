"""What the resize promises: ATen's results, and the formulas' where its CPU kernels go wrong."""

from __future__ import annotations

import torch
from hypothesis import strategies as st
from torch import Tensor

from graftwork.plugins import EXACT, Case, Property, Refusal, Tolerance
from graftwork.plugins.toolkit.resample_cases import (
    absurd_cases,
    benchmarks,
    by_the_formulas,
    cases,
    column_cases,
    resized,
    rounded_once,
)

def _refusal(name: str, image: Tensor, size: tuple[int, int], message: str) -> Refusal:
    settings = {"mode": "bilinear", "align_corners": False, "size": size}
    return Refusal(name, Case(resized, (image,), settings), Exception, message)


PROPERTIES = (
    Property(
        "float-resizes-equal-aten",
        cases(torch.float32),
        Tolerance(absolute=2e-5),
        refused=(
            _refusal("integers", torch.ones(1, 1, 4, 4, dtype=torch.int32), (2, 2), "'Int'"),
            _refusal("no height", torch.ones(1, 1, 0, 4), (2, 2), "greater than 0"),
            _refusal("to nothing", torch.ones(1, 1, 4, 4), (0, 2), "greater than 0"),
        ),
        benchmarks=benchmarks(),
    ),
    Property("double-resizes-equal-aten", cases(torch.float64), Tolerance(absolute=1e-12)),
    Property("byte-resizes-equal-aten", cases(torch.uint8), EXACT),
    Property(
        "half-resizes-round-once",
        st.sampled_from((torch.float16, torch.bfloat16)).flatmap(cases),
        Tolerance(relative=2**-7, absolute=1e-6),
        reference=rounded_once,
        reference_reason="ATen's CPU kernels take no half types: its float32 result, rounded",
    ),
    Property(
        "absurd-factors-follow-the-formulas",
        absurd_cases(),
        Tolerance(absolute=1e-4, strides=False),
        reference=by_the_formulas,
        reference_reason="ATen's CPU kernel reads outside the image for such factors",
    ),
    Property(
        "columns-follow-the-formulas",
        column_cases(),
        Tolerance(absolute=2e-5, strides=False),
        reference=by_the_formulas,
        reference_reason="ATen's CPU kernel repeats its first row where the width becomes 1",
    ),
)
