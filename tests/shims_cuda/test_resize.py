"""The resize kernels, interpreted on the CPU and compiled for every supported GPU."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from triton.runtime.interpreter import InterpreterBuilder

from graftwork.plugins import Declined, LoweringContext, rewrite_program, select_plugins
from graftwork.plugins.toolkit.resample import BICUBIC, BILINEAR
from graftwork.plugins.toolkit.resample_cases import by_the_formulas
from graftwork.plugins.verification import assert_verified
from graftwork.shims_cuda.resize.operator import antialiased_resize
from graftwork.shims_cuda.resize.operator import resize as resize_by_kernel

FILTERS = {"bilinear": BILINEAR, "bicubic": BICUBIC}


def ours(x: torch.Tensor, size: tuple[int, int], mode: str = "bilinear") -> torch.Tensor:
    return resize_by_kernel(x, size, FILTERS[mode], False, (None, None))


def aten(x: torch.Tensor, size: tuple[int, int], mode: str = "bilinear") -> torch.Tensor:
    return F.interpolate(x, size, mode=mode, antialias=True)


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=2e-5, equal_nan=True)
    assert ours.stride() == theirs.stride()


def test_properties_hold(examples: int) -> None:
    assert_verified("resize", examples=examples)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(9, 11), (50, 9), (9, 60), (45, 2), (2, 38), (45, 38)])
def test_axes_shrink_grow_and_stay_in_both_layouts(
    size: tuple[int, int], layout: torch.memory_format
) -> None:
    x = torch.rand(1, 2, 45, 38).to(memory_format=layout)
    close(ours(x, size), aten(x, size))


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_nan_and_infinity_stay_in_their_windows(layout: torch.memory_format) -> None:
    """One program sums four rows: the rows that do not hold the NaN must not get it from those
    that do, nor must columns of the same vector."""
    x = torch.rand(1, 2, 40, 40)
    x[0, 0, 11, 11], x[0, 0, 30, 5], x[0, 1, 0, 39] = math.nan, math.inf, -math.inf
    x = x.to(memory_format=layout)
    result = ours(x, (10, 10))
    close(result, aten(x, (10, 10)))
    assert 0 < (~result.isfinite()).sum() < 30


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_neighbours_store_the_same_sums(
    layout: torch.memory_format, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Programs side by side share columns of sums and run in any order: whatever one of them
    ever stores must be right, with a NaN in the last row too, which few windows hold."""
    stored: dict[int, list[float]] = {}
    store = InterpreterBuilder.create_masked_store

    def noting(self: Any, pointers: Any, value: Any, mask: Any, *rest: Any) -> Any:
        given = zip(pointers.data.flat, value.data.flat, mask.data.flat, strict=True)
        for place, number in ((place, number) for place, number, lives in given if lives):
            stored.setdefault(int(place), []).append(float(number))
        return store(self, pointers, value, mask, *rest)

    x = torch.rand(1, 1, 12, 700)
    x[0, 0, 11, 225:245] = math.nan
    x = x.to(memory_format=layout)
    with monkeypatch.context() as patch:
        patch.setattr(InterpreterBuilder, "create_masked_store", noting)
        result = ours(x, (9, 600), "bicubic")
    close(result, aten(x, (9, 600), "bicubic"))
    several = [numbers for numbers in stored.values() if len(numbers) > 1]
    assert any(math.isnan(numbers[0]) for numbers in several)
    for numbers in several:
        assert all(n == numbers[0] or math.isnan(n + numbers[0]) for n in numbers)
        assert len({math.isnan(n) for n in numbers}) == 1


@pytest.mark.parametrize(("height", "target"), [(25, 3), (34, 6)])
def test_rows_at_the_edges_of_windows_are_in_the_right_ones(height: int, target: int) -> None:
    """25 to 3: by rounding, the third window begins before the first one ends. 34 to 6: the
    sixth begins a row after the fourth ends. Their weights are all but 0; a NaN shows them."""
    x = torch.rand(height, 1, height, 8)
    x[torch.arange(height), 0, torch.arange(height)] = math.nan
    result, expected = ours(x, (target, 3)), aten(x, (target, 3))
    assert torch.equal(result.isnan(), expected.isnan())
    close(result, expected)


@pytest.mark.parametrize(("height", "target"), [(50, 20), (41, 11)])
def test_the_largest_numbers_do_not_overflow(height: int, target: int) -> None:
    """Weights of rows add up to a little more than 1 before they are normalised."""
    x = torch.full((1, 1, height, 20), 0.999 * torch.finfo(torch.float32).max)
    result, expected = ours(x, (target, 8)), aten(x, (target, 8))
    assert expected.isfinite().all()
    torch.testing.assert_close(result, expected, rtol=1e-6, atol=0)


def test_wide_windows_span_several_reads() -> None:
    """pytorch/vision#7671: eager CUDA fails on 941 to 10. Here, also more columns than one
    program reads at once, which the interpreter's 512 show at a width of 3000."""
    close(ours(torch.ones(1, 1, 21, 941), (2, 10)), torch.ones(1, 1, 2, 10))
    for height in (3, 6):
        x = torch.rand(1, 1, height, 3000)
        close(ours(x, (2, 2)), aten(x, (2, 2)))


@pytest.mark.parametrize("size", [(10, 12), (10, 40)])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("factor", [0.3, 1.0, 2.0])
def test_a_factor_that_does_not_fit_the_sizes_counts(
    factor: float, axis: int, size: tuple[int, int]
) -> None:
    """At 2.0 four windows overlap where the sizes let two; at 0.3 they leave elements out. An axis
    that keeps its size is copied."""
    x = torch.rand(1, 1, 40, 40)
    factors = (factor, None) if axis == 0 else (None, factor)
    expected = torch.ops.aten._upsample_bilinear2d_aa(x, size, False, *factors)
    close(resize_by_kernel(x, size, BILINEAR, False, factors), expected)


@pytest.mark.parametrize("factors", [(0.3, None), (None, 0.3)])
def test_windows_past_the_image_are_empty(factors: tuple[float | None, float | None]) -> None:
    """Of 16 windows 3.3 elements apart the last lie behind the 40 elements, where ATen reads."""
    x = torch.rand(1, 1, 40, 40)
    expected = by_the_formulas(
        x.double(), mode="bilinear", align_corners=False, size=(16, 16), scales=factors
    )
    result = resize_by_kernel(x, (16, 16), BILINEAR, False, factors)
    close(result, expected.float())
    assert (result == 0).any()


def test_crops_are_read_in_place() -> None:
    x = torch.rand(2, 4, 40, 37)[:, 1:3, 5:30, 3:36]
    close(ours(x, (7, 9)), aten(x, (7, 9)))
    turned = torch.rand(1, 2, 30, 20).transpose(2, 3)
    close(ours(turned, (7, 9)), aten(turned, (7, 9)))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_rounded_once(dtype: torch.dtype) -> None:
    x = torch.rand(1, 1, 33, 48).to(dtype)
    exact = by_the_formulas(
        x.double(), mode="bilinear", align_corners=False, size=(13, 17), scales=(None, None)
    )
    result = ours(x, (13, 17))
    assert result.dtype == dtype
    assert (result != exact.to(dtype)).float().mean() < 0.01


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize("size", [(20, 9), (70, 50), (61, 20), (20, 43)])
def test_bytes_equal_aten_exactly(size: tuple[int, int], layout: torch.memory_format) -> None:
    x = torch.randint(0, 256, (1, 3, 61, 43), dtype=torch.uint8)
    x[0, 0, :30], x[0, 0, 30:] = 255, 0
    x = x.to(memory_format=layout)
    for mode in FILTERS:
        result, expected = ours(x, size, mode), aten(x, size, mode)
        assert torch.equal(result, expected) and result.stride() == expected.stride()


def rewritten(program: Callable[..., Any], x: torch.Tensor) -> tuple[torch.nn.Module, Any]:
    module = torch.nn.Module()
    module.forward = program  # type: ignore[method-assign]
    exported = torch.export.export(module, (x,))
    selection = select_plugins(disable=["all"], enable=["resize", "antialiased-resize"])
    after, log = rewrite_program(exported, selection, LoweringContext("cuda", "cuda"))
    return after.module(), log


def test_kernel_comes_first_and_growing_images_are_decomposed() -> None:
    x = torch.rand(1, 1, 12, 9)
    module, log = rewritten(lambda x: aten(x, (5, 4)), x)
    assert (log.fired("resize"), log.fired("antialiased-resize")) == (1, 0)
    close(module(x), aten(x, (5, 4)))
    module, log = rewritten(lambda x: aten(x, (24, 18)), x)
    assert (log.fired("resize"), log.fired("antialiased-resize")) == (0, 1)
    assert log.declined("resize") == 1
    close(module(x), aten(x, (24, 18)))


def test_other_dtypes_are_declined() -> None:
    with pytest.raises(Declined, match=r"ATen does not resize torch\.int32"):
        ours(torch.zeros(1, 1, 4, 4, dtype=torch.int32), (2, 2))


def test_only_outputs_are_written() -> None:
    x = torch.rand(1, 2, 9, 8)
    torch.library.opcheck(
        antialiased_resize.op,
        (x, [4, 5], [6, 5], [0.0, 0.0], False, False, False),
        test_utils=("test_schema", "test_faketensor"),
    )


CALLS: dict[str, Callable[[torch.dtype], Any]] = {
    "shrink": lambda dtype: ours(torch.zeros(1, 1, 90, 160, dtype=dtype), (10, 10)),
    "plain": lambda dtype: ours(torch.zeros(1, 1, 90, 160, dtype=dtype), (60, 70)),
    "channels-last": lambda dtype: ours(
        torch.zeros(1, 3, 90, 70, dtype=dtype).to(memory_format=torch.channels_last),
        (10, 10),
        "bicubic",
    ),
}


@pytest.mark.parametrize("name", CALLS)
def test_kernels_compile_for_every_gpu(
    name: str, compile_everywhere: Callable[..., set[str]]
) -> None:
    call = functools.partial(CALLS[name], torch.float16)
    names = {"shrink_kernel"} if name == "shrink" else {"windows_kernel", "resize_kernel"}
    assert compile_everywhere(call) == names


def test_every_dtype_compiles_for_every_gpu(
    deep: None, compile_everywhere: Callable[..., set[str]]
) -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        for name in ("shrink", "plain"):
            assert compile_everywhere(functools.partial(CALLS[name], dtype))
    names = compile_everywhere(functools.partial(CALLS["plain"], torch.uint8))
    assert names == {"windows_kernel", "fix_kernel", "bytes_kernel"}
