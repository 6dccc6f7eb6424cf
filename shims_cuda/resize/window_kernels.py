# mypy: ignore-errors
"""Where every output of an axis looks, and with which weights; and the Triton kernel that writes
this down for both axes.

`plugins/toolkit/resample.py` has the formulas. Where a window begins and ends is rounded as there.
"""

import triton
import triton.language as tl

WINDOW_COUNTS = [
    *("size_h", "target_h", "taps_h"),
    *("size_w", "target_w", "taps_w", "pitch_w"),
]


@triton.jit
def axis_scale(size, target, SCALE: tl.constexpr, ALIGN: tl.constexpr, DTYPE: tl.constexpr):
    """Input elements an output element: SCALE where a factor gives it, else 0 and the sizes do."""
    size_f = tl.cast(size, tl.float64)
    target_f = tl.cast(target, tl.float64)
    if SCALE > 0:
        scale = tl.full((), SCALE, tl.float64)
    elif ALIGN:
        scale = (size_f - 1) / tl.maximum(target_f - 1, 1.0)
        scale = tl.where(target_f > 1, scale, 0.0)
    else:
        scale = size_f / target_f
    return scale.to(DTYPE)


@triton.jit
def center_of(output, scale, DTYPE: tl.constexpr):
    """The middle of a window. The maximum, of numbers that are never negative, keeps compilers
    from contracting the product with the sum that follows, which would round otherwise."""
    return tl.maximum((output.to(DTYPE) + 0.5) * scale, 0.0)


@triton.jit
def element_at(edge, size, DTYPE: tl.constexpr):
    """trunc(edge + 0.5), from 0 to `size`; exact for float32, as ATen's sum in double is."""
    edge = tl.minimum(tl.maximum(edge, 0.0), tl.cast(size, DTYPE))
    if edge.dtype == tl.float64:
        element = (edge + 0.5).to(tl.int32)
    else:
        element = edge.to(tl.int32)
        element += (edge - element.to(DTYPE) >= 0.5).to(tl.int32)
    return tl.minimum(element, size)


@triton.jit
def window_at(
    output, scale, size, target, taps, CUBIC: tl.constexpr, DTYPE: tl.constexpr
):  # fmt: skip
    """First element of a window and one past its last. An axis that keeps its size is copied."""
    center = center_of(output, scale, DTYPE)
    support = tl.maximum(scale, 1.0) * (2 if CUBIC else 1)
    first = element_at(center - support, size, DTYPE)
    end = tl.minimum(element_at(center + support, size, DTYPE), first + taps)
    same = size == target
    return tl.where(same, output, first), tl.where(same, output + 1, end)


@triton.jit
def weight_at(position, center, inverse, CUBIC: tl.constexpr, DTYPE: tl.constexpr):
    """An element's weight, not normalised: the triangle, or Keys' cubic with coefficient -0.5.

    `inverse` is that of the scale, at most 1.
    """
    distance = tl.abs((position.to(DTYPE) - center + 0.5) * inverse)
    if CUBIC:
        near = (1.5 * distance - 2.5) * distance * distance + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        return tl.where(distance < 1, near, tl.where(distance < 2, far, 0.0))
    else:
        return tl.where(distance < 1, 1 - distance, 0.0)


@triton.jit
def axis_windows(
    start, count, weight, size, target, taps, pitch,
    SCALE: tl.constexpr, ALIGN: tl.constexpr, CUBIC: tl.constexpr, DTYPE: tl.constexpr,
    LANES: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """First element, length and weights of BLOCK outputs of one axis.

    An output has `pitch` weights, the first of them that of the last multiple of LANES before
    its window, and zeros outside it.
    """
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = output < target
    scale = axis_scale(size, target, SCALE, ALIGN, DTYPE)
    inverse = 1.0 / tl.maximum(scale, 1.0)
    center = center_of(output, scale, DTYPE)[None, :]
    first, end = window_at(output, scale, size, target, taps, CUBIC, DTYPE)
    total = tl.zeros([BLOCK], DTYPE)
    for begin in range(0, taps, TAPS):
        place = first[None, :] + begin + tl.arange(0, TAPS)[:, None]
        value = weight_at(place, center, inverse, CUBIC, DTYPE)
        total += tl.sum(tl.where(place < end[None, :], value, 0.0), 0)
    total = tl.where(total == 0, 1.0, total)
    to = weight + output[None, :] * pitch
    for begin in range(0, pitch, TAPS):
        tap = begin + tl.arange(0, TAPS)[:, None]
        place = (first - first % LANES)[None, :] + tap
        value = weight_at(place, center, inverse, CUBIC, DTYPE) / total[None, :]
        value = tl.where(size == target, 1.0, value)
        held = (place >= first[None, :]) & (place < end[None, :])
        value = tl.where(held, value, 0.0).to(DTYPE)
        tl.store(to + tap, value, mask=(tap < pitch) & inside[None, :])
    tl.store(start + output, first, mask=inside)
    tl.store(count + output, end - first, mask=inside)


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
