"""antialiased-resize: ATen's numbers, at every size, with NaN and infinity in their windows."""

import functools
import math

import pytest
import torch
import torch.nn.functional as F
from torch.export import Dim

from graftwork.decompositions.antialiased_resize.sums import resize as resize_floats
from graftwork.plugins.toolkit.resample import BICUBIC, BILINEAR, Axis, count_taps, find_windows
from graftwork.plugins.toolkit.resample_cases import by_the_formulas
from graftwork.plugins.verification import assert_verified

ID = "antialiased-resize"
CPU = torch.device("cpu")
aten = torch.ops.aten


def resize(x, mode="bilinear", **settings):
    return F.interpolate(x, mode=mode, antialias=True, **settings)


@pytest.fixture
def rewritten(rewrite):
    return functools.partial(rewrite, ID)


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


@pytest.mark.parametrize(
    ("mode", "right"),
    [
        ("bilinear", [3.5714288, 5.1428576, 9.8571434, 11.4285717]),
        ("bicubic", [2.9338841, 4.7603307, 10.2396698, 12.0661154]),
    ],
)
def test_small_resizes_of_the_public_reports(rewritten, mode, right):
    """pytorch/executorch#7031 (bilinear has no kernel), pytorch/vision#6806 (bicubic refused)."""
    x = torch.arange(16.0).reshape(1, 1, 4, 4)
    program = rewritten(lambda x: resize(x, mode, size=(2, 2)), x)
    torch.testing.assert_close(program(x).flatten(), torch.tensor(right), rtol=0, atol=2e-6)
    assert program.fired == 1
    assert not any("upsample" in str(op) for op in program.ops)


def test_strong_downscale_of_ones_is_ones(rewritten):
    """pytorch/vision#7671: eager CUDA fails on it."""
    x = torch.ones(1, 1, 941, 941)
    result = rewritten(lambda x: resize(x, size=(10, 10)), x)(x)
    torch.testing.assert_close(result, torch.ones(1, 1, 10, 10), rtol=0, atol=2e-6)


def test_factor_worked_out_from_a_dynamic_size(rewritten):
    """pytorch/pytorch#185371: export makes such a factor a constant, and says so."""

    def to_sixteen(x):
        return resize(x, scale_factor=16 / x.shape[2])

    x = torch.rand(1, 1, 16, 16)
    dims = ({2: Dim("h", min=8, max=64), 3: Dim("w", min=8, max=64)},)
    with pytest.raises(torch._dynamo.exc.UserError, match="specified range 8 <= h <= 64"):
        rewritten(to_sixteen, x, dims=dims)

    def to_size(x):
        return resize(x, size=(16, 16))

    other = torch.rand(1, 1, 32, 32)
    torch.testing.assert_close(rewritten(to_size, x, dims=dims)(other), to_size(other))


@pytest.mark.parametrize("mode", ["bilinear", "bicubic"])
def test_dynamic_heights_shrink_grow_stay_and_divide(rewritten, mode):
    def fixed(x):
        return resize(x, mode, size=(21, 9))

    x = torch.rand(1, 2, 30, 13)
    program = rewritten(fixed, x, dims=({2: Dim("h", min=2, max=200)},))
    for height in (2, 7, 20, 21, 22, 42, 63, 147, 200):
        x = torch.rand(1, 2, height, 13)
        x[0, 0, height // 2, 4] = math.nan
        torch.testing.assert_close(program(x), fixed(x), rtol=0, atol=2e-5, equal_nan=True)


def test_align_corners_to_a_dynamic_size_that_becomes_one(rewritten):
    def halves(x):
        return resize(x, size=(x.shape[2] - 1, 5), align_corners=True)

    x = torch.rand(1, 1, 9, 7)
    program = rewritten(halves, x, dims=({2: Dim("h", min=3, max=30)},))
    for height in (3, 4, 17):
        x = torch.rand(1, 1, height, 7)
        torch.testing.assert_close(program(x), halves(x), rtol=0, atol=2e-5)

    axis = Axis(9, 1, align_corners=True, factor=None)
    windows = find_windows(axis, BILINEAR, torch.float32, CPU)
    torch.testing.assert_close(windows.weights[:2, 0], torch.tensor([1.0, 0.0]))


@pytest.mark.parametrize("factor", [None, 1.0, 1.02])
def test_axis_that_keeps_its_size_is_left_alone(rewritten, factor):
    """Whatever its factor; at export where the sizes are known, at run time where not."""

    def same_height(x):
        return aten._upsample_bilinear2d_aa(x, [x.shape[2], 3], False, factor, None)

    x = torch.rand(1, 1, 6, 6)
    x[0, 0, 3, 3] = math.nan
    torch.testing.assert_close(rewritten(same_height, x)(x), same_height(x), equal_nan=True)

    def to_six(x):
        return aten._upsample_bilinear2d_aa(x, [6, 3], False, factor, None)

    program = rewritten(to_six, torch.rand(1, 1, 9, 6), dims=({2: Dim("h", min=3, max=30)},))
    torch.testing.assert_close(program(x), to_six(x), equal_nan=True)


def test_sizes_known_to_stay_cost_nothing(rewritten):
    program = rewritten(lambda x: resize(x, size=(6, 6)), torch.rand(1, 1, 6, 6))
    assert program.fired == 1
    assert aten.index.Tensor not in program.ops


def test_nan_and_infinity_stay_in_their_windows(rewritten):
    x = torch.rand(1, 1, 40, 40)
    x[0, 0, 11, 11], x[0, 0, 30, 5] = math.nan, math.inf
    result = rewritten(lambda x: resize(x, size=(10, 10)), x)(x)
    torch.testing.assert_close(result, resize(x, size=(10, 10)), equal_nan=True)
    assert 0 < (~result.isfinite()).sum() < 20


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
@pytest.mark.parametrize(("height", "width"), [(9, 11), (90, 11), (9, 60), (45, 2)])
@pytest.mark.parametrize("runs_on", ["cpu", "cuda"])
def test_forms_for_compilers_equal_aten(layout, height, width, runs_on):
    x = torch.rand(2, 3, 45, 38)
    x[0, 0, 11, 11], x[1, 2, 30, 5] = math.nan, math.inf
    x = x.to(memory_format=layout)
    result = resize_floats(x, (height, width), BILINEAR, False, (None, None), runs_on)
    expected = resize(x, size=(height, width))
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5, equal_nan=True)
    assert result.stride() == expected.stride()


@pytest.mark.parametrize("factor", [0.0, -1.0, 1e-45, 1e-300, 1e300])
def test_absurd_factors_follow_the_formulas(factor):
    x = torch.rand(1, 1, 7, 5)
    factors = (factor, None)
    result = resize_floats(x, (3, 4), BILINEAR, False, factors, "interpreter")
    exact = by_the_formulas(x, mode="bilinear", align_corners=False, size=(3, 4), scales=factors)
    torch.testing.assert_close(result, exact, rtol=0, atol=1e-5)


def test_compiled_program_equals_aten(rewrite, deep):
    x = torch.rand(2, 3, 60, 45)
    x[0, 0, 11, 11] = math.nan
    program = rewrite(ID, lambda x: resize(x, size=(7, 9)), x, target="aoti")
    result = torch.compile(program.program.module())(x)
    expected = resize(x, size=(7, 9))
    torch.testing.assert_close(result, expected, rtol=0, atol=2e-5, equal_nan=True)


def test_work_grows_with_the_window_not_with_the_input():
    assert count_taps(Axis(10_000, 10_000 // 3, False, None), 1) <= 8
    assert count_taps(Axis(10_000, 20_000, False, None), 2) == 5
    assert count_taps(Axis(7, 2, False, 1e-30), 2) == 7


def test_whole_ratios_count_their_taps_in_integers():
    for whole in range(1, 60):
        for target in (1, 3, 7, 41):
            assert count_taps(Axis(whole * target, target, False, None), 1) == min(
                2 * whole + 1, whole * target
            )


@pytest.mark.parametrize("filter", [BILINEAR, BICUBIC])
def test_every_window_fits_the_taps(filter):
    for size in range(1, 40):
        for target in range(1, 40):
            for align_corners in (False, True):
                axis = Axis(size, target, align_corners, None)
                windows = find_windows(axis, filter, torch.float32, CPU)
                longest = int((windows.end - windows.start).max())
                assert longest <= windows.weights.shape[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_types_are_rounded_once(rewritten, dtype):
    x = torch.rand(1, 3, 64, 48).to(dtype)
    result = rewritten(lambda x: resize(x, size=(13, 17)), x)(x)
    exact = by_the_formulas(
        x.double(), mode="bilinear", align_corners=False, size=(13, 17), scales=(None, None)
    )
    assert result.dtype == dtype
    wrong = result != exact.to(dtype)
    assert wrong.float().mean() < 0.01


def test_bytes_equal_aten_exactly(rewritten):
    for channels, mode in ((3, "bilinear"), (3, "bicubic"), (5, "bicubic")):
        x = torch.randint(0, 256, (2, channels, 61, 43), dtype=torch.uint8)
        x[0, 0, :30] = 255
        x[0, 0, 30:] = 0
        for size in ((20, 9), (90, 70)):
            program = rewritten(functools.partial(resize, mode=mode, size=size), x)
            assert torch.equal(program(x), resize(x, mode, size=size))


def test_memory_format_is_kept(rewritten):
    x = torch.rand(2, 3, 20, 14).to(memory_format=torch.channels_last)
    program = rewritten(lambda x: resize(x, size=(7, 30)), x)
    assert program(x).is_contiguous(memory_format=torch.channels_last)
    x = torch.rand(1, 1, 20, 14).as_strided((1, 1, 20, 14), (280, 1, 14, 1))
    program = rewritten(lambda x: resize(x, size=(7, 30)), x)
    assert program(x).stride() == resize(x, size=(7, 30)).stride()


def test_output_size_from_factors(rewritten):
    def scaled(x):
        return resize(x, "bicubic", scale_factor=(0.7, 2.0))

    x = torch.rand(1, 1, 16, 5)
    program = rewritten(scaled, x, dims=({2: Dim("h", min=8, max=64)},))
    for height in (8, 10, 33, 64):
        x = torch.rand(1, 1, height, 5)
        torch.testing.assert_close(program(x), scaled(x), rtol=0, atol=2e-5)


def test_resizes_inside_a_branch_are_rewritten(rewritten):
    def branched(x, flag):
        return torch.cond(
            flag,
            lambda x: resize(x, size=(4, 4)),
            lambda x: resize(x, "bicubic", size=(4, 4)),
            (x,),
        )

    x = torch.rand(1, 1, 9, 9)
    program = rewritten(branched, x, torch.tensor(True))
    assert program.fired == 2
    for flag in (torch.tensor(True), torch.tensor(False)):
        torch.testing.assert_close(program(x, flag), branched(x, flag))


def test_plain_resizes_and_other_dtypes_are_left_alone(rewritten):
    x = torch.rand(1, 1, 9, 9)
    plain = rewritten(lambda x: F.interpolate(x, size=(4, 4), mode="bilinear"), x)
    assert plain.fired == 0
    integers = rewritten(lambda x: resize(x, size=(4, 4)), x.to(torch.int32))
    assert integers.fired == 0
    assert integers.declined == ["ATen does not resize torch.int32"]


def test_decomposed_programs_are_rewritten_too(rewritten):
    x = torch.rand(1, 1, 9, 9)
    program = rewritten(lambda x: resize(x, scale_factor=0.5), x, decompose=True)
    assert program.fired == 1
    torch.testing.assert_close(program(x), resize(x, scale_factor=0.5))
