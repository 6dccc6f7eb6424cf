# mypy: ignore-errors
"""The Triton kernel that makes the windows of both axes of an antialiased resize.

`plugins/toolkit/resample.py` has the formulas; the roundings here are the same.
"""

import triton
import triton.language as tl

WINDOW_COUNTS = [
    *("size_h", "target_h", "taps_h"),
    *("size_w", "target_w", "taps_w", "pitch_w"),
]


@triton.jit
def weigh(distance, CUBIC: tl.constexpr):
    """The triangle, or Keys' cubic with coefficient -0.5, of a distance that is not negative."""
    if CUBIC:
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        return tl.where(distance < 1, near, tl.where(distance < 2, far, 0.0))
    else:
        return tl.where(distance < 1, 1 - distance, 0.0)


@triton.jit
def tap_weights(
    first, length, center, inverse, tap, CUBIC: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """The weights of the elements first + tap of windows, not yet normalised; 0 outside."""
    inside = (tap >= 0) & (tap < length[None, :])
    distance = ((first[None, :] + tap).to(DTYPE) - center[None, :]).to(tl.float64) + 0.5
    value = weigh(tl.abs((distance * inverse).to(DTYPE)), CUBIC)
    return tl.where(inside, value, 0.0)


@triton.jit
def axis_windows(
    start, count, weight, size, target, taps, pitch,
    SCALE: tl.constexpr, ALIGN: tl.constexpr, CUBIC: tl.constexpr, DTYPE: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """First element, length and weights of BLOCK outputs of one axis.

    An output has `pitch` weights, the first of them that of the last multiple of LANES before
    its window, and zeros outside it. SCALE is the scale that a factor gives, 0 where the sizes
    give it.
    """
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = output < target
    size_f = tl.cast(size, tl.float64)
    target_f = tl.cast(target, tl.float64)
    if SCALE > 0:
        scale = tl.full((), SCALE, tl.float64)
    elif ALIGN:
        scale = (size_f - 1) / tl.maximum(target_f - 1, 1.0)
        scale = tl.where(target_f > 1, scale, 0.0)
    else:
        scale = size_f / target_f
    scale = scale.to(DTYPE)
    stretch = tl.maximum(scale, 1.0)
    support = stretch * (2 if CUBIC else 1)
    inverse = (1.0 / stretch.to(tl.float64)).to(DTYPE).to(tl.float64)
    center = ((output.to(tl.float64) + 0.5) * scale.to(tl.float64)).to(DTYPE)
    first = (center - support).to(tl.float64) + 0.5
    first = tl.minimum(tl.maximum(first, 0.0), size_f).to(tl.int32)
    end = (center + support).to(tl.float64) + 0.5
    end = tl.minimum(tl.maximum(end, 0.0), size_f).to(tl.int32)
    same = size_f == target_f
    first = tl.where(same, output, first)
    length = tl.where(same, 1, end - first)
    length = tl.minimum(length, taps)
    total = tl.zeros([BLOCK], DTYPE)
    for begin in range(0, taps, TAPS):
        tap = begin + tl.arange(0, TAPS)[:, None]
        value = tap_weights(first, length, center, inverse, tap, CUBIC, DTYPE)
        total += tl.sum(value, 0)
    total = tl.where(total == 0, 1.0, total)
    for begin in range(0, pitch, TAPS):
        place = begin + tl.arange(0, TAPS)[:, None]
        tap = place - first[None, :] % LANES
        value = tap_weights(first, length, center, inverse, tap, CUBIC, DTYPE) / total[None, :]
        value = tl.where(same, tl.where(tap == 0, 1.0, 0.0), value).to(DTYPE)
        place = weight + output[None, :] * pitch + place
        tl.store(place, value, mask=(tap + first[None, :] % LANES < pitch) & inside[None, :])
    tl.store(start + output, first, mask=inside)
    tl.store(count + output, length, mask=inside)


@triton.jit(do_not_specialize=WINDOW_COUNTS)
def windows_kernel(
    start_h, count_h, weight_h, size_h, target_h, taps_h,
    start_w, count_w, weight_w, size_w, target_w, taps_w, pitch_w,
    SCALE_H: tl.constexpr, SCALE_W: tl.constexpr, ALIGN: tl.constexpr, CUBIC: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """The windows of the height (second program index 0) and of the width (1)."""
    if weight_h.dtype.element_ty == tl.int64:  # the bits of float64
        weight_h = weight_h.to(tl.pointer_type(tl.float64), bitcast=True)
        weight_w = weight_w.to(tl.pointer_type(tl.float64), bitcast=True)
    dtype: tl.constexpr = weight_h.dtype.element_ty
    if tl.program_id(1) == 0:
        axis_windows(
            start_h, count_h, weight_h, size_h, target_h, taps_h, taps_h,
            SCALE_H, ALIGN, CUBIC, dtype, 1, BLOCK, TAPS,
        )  # fmt: skip
    else:
        axis_windows(
            start_w, count_w, weight_w, size_w, target_w, taps_w, pitch_w,
            SCALE_W, ALIGN, CUBIC, dtype, LANES, BLOCK, TAPS,
        )  # fmt: skip
