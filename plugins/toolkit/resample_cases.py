"""Examples of antialiased resizes for the properties of every plugin that implements them.

References: ATen's results, and the formulas' where its CPU kernels go wrong.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st
from torch import Tensor
from torch.export import Dim

from graftwork.plugins.properties import EXACT, Benchmark, Case, Property, Tolerance

HALVES = (torch.float16, torch.bfloat16)
TOLERANCES = {
    torch.float32: Tolerance(absolute=2e-5),
    torch.float64: Tolerance(absolute=1e-12),
    **{half: Tolerance(relative=2**-7, absolute=1e-6) for half in HALVES},
}
MODES = ("bilinear", "bicubic")
ABSURD_FACTORS = (-1.0, 0.0, 1e-40, 1e-12, 1e-3, 0.04, 0.9, 7.0, 1e9, 1e300)
BENCHMARKS = {
    "8x3x1080x1920-to-224": ((8, 3, 1080, 1920), (224, 224)),
    "1x3x2160x3840-to-512": ((1, 3, 2160, 3840), (512, 512)),
    "8x3x224-to-896": ((8, 3, 224, 224), (896, 896)),
    "1x3x941-to-10": ((1, 3, 941, 941), (10, 10)),
}


def resized(
    image: Tensor,
    *,
    mode: str,
    align_corners: bool,
    size: tuple[int, int] | None = None,
    factor: tuple[float, float] | None = None,
) -> Tensor:
    """A resize to a size, by factors, or to half the height and three more in width."""
    if size is None and factor is None:
        size = (image.shape[2] // 2, image.shape[3] + 3)
    return torch.nn.functional.interpolate(
        image, size, factor, mode=mode, align_corners=align_corners, antialias=True
    )


def resized_at_scales(
    image: Tensor,
    *,
    mode: str,
    align_corners: bool,
    size: tuple[int, int],
    scales: tuple[float | None, float | None],
) -> Tensor:
    """The operator itself, whose factors need not fit its sizes."""
    ops = {
        "bilinear": torch.ops.aten._upsample_bilinear2d_aa.default,
        "bicubic": torch.ops.aten._upsample_bicubic2d_aa.default,
    }
    result: Tensor = ops[mode](image, size, align_corners, *scales)
    return result


@st.composite
def images(draw: st.DrawFn, dtype: torch.dtype, shape: Sequence[int], layout: str) -> Tensor:
    """Values in [0, 1), or all bytes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31 - 1)))
    image = torch.rand(tuple(shape), generator=generator, dtype=torch.float64)
    image = (image * 256 if dtype == torch.uint8 else image).to(dtype)
    if layout == "channels_last":
        return image.to(memory_format=torch.channels_last)
    return image.mT.contiguous().mT if layout == "transposed" else image


@st.composite
def cases(
    draw: st.DrawFn, dtype: torch.dtype, most_channels: int = 5, most_elements: int = 30
) -> Case:
    """Static and dynamic sizes, given, by factors or from the input; NaN and infinity."""
    sizes = st.integers(1, most_elements)
    dynamic = draw(st.booleans())
    mode = draw(st.sampled_from(MODES))
    settings: dict[str, Any] = {"mode": mode, "align_corners": draw(st.booleans())}
    form = draw(st.sampled_from(("size", "factor", "from input")))
    # Export binds a program whose size may become 1 to sizes other than 1.
    smallest = (2, 2) if dynamic else (1, 1)
    if form == "size":
        settings["size"] = (draw(sizes), draw(sizes))
    elif form == "factor":
        factors = (draw(st.floats(0.2, 3)), draw(st.floats(0.2, 3)))
        settings["factor"] = factors
        first, second = (max(n, math.ceil(n / f)) for n, f in zip(smallest, factors, strict=True))
        smallest = (first, second)
    else:
        smallest = (4, 2)

    lead = (draw(st.integers(1, 2)), draw(st.integers(2, most_channels)))
    layouts = ("contiguous", "channels_last") + (() if dynamic else ("transposed",))
    layout = draw(st.sampled_from(layouts))
    drawn = []
    for _ in range(3 if dynamic else 1):
        height, width = (n + draw(st.integers(0, most_elements)) for n in smallest)
        image = draw(images(dtype, (*lead, height, width), layout))
        assume(_aten_is_right(image, resized(image.to(torch.float32), **settings)))
        if dtype.is_floating_point:
            # An infinity tells a cubic weight of 1e-14 from 0, which ATen's rounding mixes up.
            values = (math.nan, math.inf, -math.inf) if mode == "bilinear" else (math.nan,)
            for value in draw(st.lists(st.sampled_from(values), max_size=3)):
                image[tuple(draw(st.integers(0, n - 1)) for n in image.shape)] = value
        drawn.append(image)
    dims = {
        dim: Dim(name, min=n, max=64)
        for dim, name, n in zip((2, 3), ("h", "w"), smallest, strict=True)
    }
    return Case(
        resized,
        (drawn[0],),
        settings,
        dynamic_shapes=((dims,),) if dynamic else None,
        more_inputs=tuple((image,) for image in drawn[1:]),
    )


def _aten_is_right(image: Tensor, result: Tensor) -> bool:
    """Whether ATen's CPU kernels can be asked (see the properties for what goes wrong)."""
    height, width = result.shape[2:]
    column = width == 1 and height not in (1, image.shape[2])
    return not column and not (image.dtype == torch.uint8 and (height, width) == (1, 1))


@st.composite
def absurd_cases(draw: st.DrawFn) -> Case:
    """Factors that have nothing to do with the sizes, and some that are none."""
    shape = (1, 2, draw(st.integers(1, 12)), draw(st.integers(1, 12)))
    factor = st.sampled_from((None, *ABSURD_FACTORS))
    settings = {
        "mode": draw(st.sampled_from(MODES)),
        "align_corners": draw(st.booleans()),
        "size": (draw(st.integers(1, 12)), draw(st.integers(1, 12))),
        "scales": (draw(factor), draw(factor)),
    }
    image = draw(images(torch.float32, shape, "contiguous"))
    return Case(resized_at_scales, (image,), settings)


@st.composite
def column_cases(draw: st.DrawFn, most_elements: int = 30) -> Case:
    """Resizes to a width of 1."""
    shape = (1, 2, draw(st.integers(1, most_elements)), draw(st.integers(1, most_elements)))
    settings = {
        "mode": draw(st.sampled_from(MODES)),
        "align_corners": draw(st.booleans()),
        "size": (draw(st.integers(1, most_elements)), 1),
        "scales": (None, None),
    }
    image = draw(images(torch.float32, shape, "contiguous"))
    return Case(resized_at_scales, (image,), settings)


def beyond_aten(most_elements: int = 30) -> list[Property]:
    """Properties of what ATen's CPU kernels compute wrongly, against the formulas."""
    return [
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
            column_cases(most_elements),
            Tolerance(absolute=2e-5, strides=False),
            reference=by_the_formulas,
            reference_reason="ATen's CPU kernel repeats its first row where the width becomes 1",
            road="direct",
        ),
    ]


def by_the_formulas(
    image: Tensor,
    *,
    mode: str,
    align_corners: bool,
    size: tuple[int, int],
    scales: tuple[float | None, float | None],
) -> Tensor:
    """The resize in float64, one output and one element of its window at a time."""
    result = image.to(torch.float64)
    for dim in (3, 2):
        length, target = result.shape[dim], size[dim - 2]
        if length == target:
            continue
        scale = _scale(length, target, align_corners, scales[dim - 2])
        rows = [_weights(length, i, scale, mode) for i in range(target)]
        parts = [
            sum(
                (weight * result.select(dim, k) for k, weight in row),
                torch.zeros_like(result.select(dim, 0)),
            )
            for row in rows
        ]
        result = torch.stack(parts, dim)
    return result.to(image.dtype)


def _scale(length: int, target: int, align_corners: bool, factor: float | None) -> float:
    if align_corners:
        return (length - 1) / (target - 1) if target > 1 else 0.0
    return min(1 / factor, 1e18) if factor is not None and factor > 0 else length / target


def _weights(length: int, i: int, scale: float, mode: str) -> list[tuple[int, float]]:
    stretch = max(scale, 1.0)
    support = stretch * (1 if mode == "bilinear" else 2)
    center = scale * (i + 0.5)
    window = range(max(int(center - support + 0.5), 0), min(int(center + support + 0.5), length))
    weights = [_filter(mode, abs((k - center + 0.5) / stretch)) for k in window]
    total = math.fsum(weights) or 1.0
    return [(k, weight / total) for k, weight in zip(window, weights, strict=True)]


def _filter(mode: str, x: float) -> float:
    if mode == "bilinear":
        return max(1 - x, 0.0)
    if x < 1:
        return (1.5 * x - 2.5) * x * x + 1
    return ((-0.5 * x + 2.5) * x - 4) * x + 2 if x < 2 else 0.0


def rounded_once(image: Tensor, **settings: Any) -> Tensor:
    """ATen's result, for half types its float32 result rounded to the image's dtype."""
    if image.dtype in HALVES:
        return resized(image.to(torch.float32), **settings).to(image.dtype)
    return resized(image, **settings)


def with_tolerance(cases: st.SearchStrategy[Case]) -> st.SearchStrategy[Case]:
    """The cases with the tolerance of their dtype, bytes being compared exactly anyhow."""
    return cases.map(
        lambda case: replace(case, tolerance=TOLERANCES.get(case.inputs[0].dtype, EXACT))
    )


def benchmarks() -> list[Benchmark]:
    """Both filters at every size of `BENCHMARKS`, float32."""
    return [_benchmark(name, mode) for name in BENCHMARKS for mode in MODES]


def _benchmark(name: str, mode: str) -> Benchmark:
    shape, size = BENCHMARKS[name]
    settings = {"mode": mode, "align_corners": False, "size": size}
    return Benchmark(
        f"{mode}-{name}",
        lambda device: Case(resized, (torch.rand(shape, device=device),), settings),
    )
