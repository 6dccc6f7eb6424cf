# mypy: ignore-errors
"""The Triton kernels of a resize of bytes: ATen's fixed point, one axis after the other.

Weights are 16 bits, sums 32; the weights of an axis share one power of two, the largest up to 22
that keeps the largest weight below 2^15. A result is rounded and clamped after each axis.
"""

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["count_h", "count_w"])
def fix_kernel(weight_h, count_h, weight_w, count_w, bits, BLOCK: tl.constexpr):
    """Replace the float64 weights of one axis by integers; `bits` gets their power of two.

    One program an axis: the weights are few, and the power depends on all of them. Weights lie
    in int64 tensors, since runtimes of compiled programs need not know float64.
    """
    if tl.program_id(0) == 0:
        fix_weights(weight_h, count_h, bits, BLOCK)
    else:
        fix_weights(weight_w, count_w, bits + 1, BLOCK)


@triton.jit
def fix_weights(weight, count, bits, BLOCK: tl.constexpr):
    """The same for one axis."""
    floats = weight.to(tl.pointer_type(tl.float64), bitcast=True)
    largest = tl.zeros([BLOCK], tl.float64)
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        largest = tl.maximum(largest, tl.load(floats + place, mask=place < count, other=0.0))
    most = tl.max(largest, 0)
    power = 0
    for more in range(1, 23):
        fits = tl.floor(most * (1 << more) + 0.5) < 32768
        power += fits.to(tl.int32)
    tl.store(bits, power)
    unit = (1 << power).to(tl.float64)
    for begin in range(0, count, BLOCK):
        place = begin + tl.arange(0, BLOCK)
        value = tl.load(floats + place, mask=place < count, other=0.0) * unit
        value = tl.where(value < 0, value - 0.5, value + 0.5).to(tl.int32)
        tl.store(weight + place, value.to(tl.int64), mask=place < count)


@triton.jit(do_not_specialize=["total", "size", "target", "inner", "taps"])
def bytes_kernel(
    source, result, start, count, weight, bits, total, size, target, inner, taps,
    BLOCK: tl.constexpr,
):  # fmt: skip
    """(outer, size, inner) bytes to (outer, target, inner), both contiguous; `total` results."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    inside = place < total
    column = place % inner
    line = place // inner
    output = (line % target).to(tl.int32)
    first = tl.load(start + output, mask=inside, other=0)
    length = tl.load(count + output, mask=inside, other=0)
    power = tl.load(bits)
    at = source + (line // target * size + first) * inner + column
    sums = tl.zeros([BLOCK], tl.int32) + ((1 << power) >> 1)
    for tap in range(0, taps):
        held = inside & (tap < length)
        value = tl.load(at + tl.cast(tap, tl.int64) * inner, mask=held, other=0).to(tl.int32)
        factor = tl.load(weight + output * taps + tap, mask=held, other=0).to(tl.int32)
        sums += value * factor
    sums = tl.minimum(tl.maximum(sums >> power, 0), 255)
    tl.store(result + place, sums.to(tl.uint8), mask=inside)
