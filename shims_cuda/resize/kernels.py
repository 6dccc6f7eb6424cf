# mypy: ignore-errors
"""The Triton kernels of an antialiased resize: the windows of both axes, then the sums of both.

An image is planes of rows of elements that lie one after the other: (N C) planes of W elements a
row, or, channels last, N planes of W times C, whose neighbours along the width are `step` = C
elements apart. `plugins/toolkit/resample.py` has the formulas; the roundings here are the same.
"""

import triton
import triton.language as tl

WINDOW_COUNTS = ["size_h", "target_h", "taps_h", "size_w", "target_w", "taps_w"]
COUNTS = [
    *("planes", "channels", "width", "target_h", "target_w", "taps_w"),
    *("row_blocks", "column_blocks", "columns"),
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
def axis_windows(
    start, count, weight, size, target, taps,
    SCALE: tl.constexpr, ALIGN: tl.constexpr, CUBIC: tl.constexpr, DTYPE: tl.constexpr,
    TAP_MAJOR: tl.constexpr, BLOCK: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """First element, length and weights of BLOCK outputs of one axis.

    SCALE is the scale that a factor gives, 0 where the sizes give it.
    """
    output = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = output < target
    # The height's weights lie by tap, the width's by output.
    by_tap = target if TAP_MAJOR else 1
    by_output = 1 if TAP_MAJOR else taps
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
        distance = ((first[None, :] + tap).to(DTYPE) - center[None, :]).to(tl.float64) + 0.5
        value = weigh(tl.abs((distance * inverse).to(DTYPE)), CUBIC)
        total += tl.sum(tl.where(tap < length[None, :], value, 0.0), 0)
    total = tl.where(total == 0, 1.0, total)
    for begin in range(0, taps, TAPS):
        tap = begin + tl.arange(0, TAPS)[:, None]
        distance = ((first[None, :] + tap).to(DTYPE) - center[None, :]).to(tl.float64) + 0.5
        value = weigh(tl.abs((distance * inverse).to(DTYPE)), CUBIC) / total[None, :]
        value = tl.where(same, 1.0, value).to(DTYPE)
        place = weight + tap * by_tap + output[None, :] * by_output
        tl.store(place, value, mask=(tap < length[None, :]) & inside[None, :])
    tl.store(start + output, first, mask=inside)
    tl.store(count + output, length, mask=inside)


@triton.jit(do_not_specialize=WINDOW_COUNTS)
def windows_kernel(
    start_h, count_h, weight_h, size_h, target_h, taps_h,
    start_w, count_w, weight_w, size_w, target_w, taps_w,
    SCALE_H: tl.constexpr, SCALE_W: tl.constexpr, ALIGN: tl.constexpr, CUBIC: tl.constexpr,
    BLOCK: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """The windows of the height (second program index 0) and of the width (1)."""
    dtype: tl.constexpr = weight_h.dtype.element_ty
    if tl.program_id(1) == 0:
        axis_windows(
            start_h, count_h, weight_h, size_h, target_h, taps_h,
            SCALE_H, ALIGN, CUBIC, dtype, True, BLOCK, TAPS,
        )  # fmt: skip
    else:
        axis_windows(
            start_w, count_w, weight_w, size_w, target_w, taps_w,
            SCALE_W, ALIGN, CUBIC, dtype, False, BLOCK, TAPS,
        )  # fmt: skip


@triton.jit
def sum_rows(
    source, weight_h, top, bottom, first, rows, output, target_h, read, high, stride_ih,
    ROWS: tl.constexpr, UNROLL: tl.constexpr, READ: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """The weighted sums of the input rows top..bottom for ROWS output rows: (ROWS, READ).

    Without HELD, rows outside an output's window are weighed by 0, which is right as long as all
    elements are finite; whether they were is the second result: 0 a column, or NaN.
    """
    dtype: tl.constexpr = weight_h.dtype.element_ty
    sums = tl.zeros([ROWS, READ], dtype)
    probe = tl.zeros([1, READ], dtype)
    place = source + tl.cast(top, tl.int64) * stride_ih + read
    for y in range(top, bottom, UNROLL):
        for more in tl.static_range(UNROLL):
            value = tl.load(
                place + more * stride_ih, mask=(read < high) & (y + more < bottom), other=0.0
            ).to(dtype)
            tap = y + more - first
            held = (tap >= 0) & (tap < rows)
            weight = tl.load(weight_h + tap * target_h + output, mask=held, other=0.0)
            if HELD:
                sums += tl.where(held, value, 0.0) * weight
            else:
                sums += value * weight
                probe += value * 0.0
        place += UNROLL * stride_ih
    return sums, probe


@triton.jit(do_not_specialize=COUNTS)
def resize_kernel(
    image, middle, out, start_h, count_h, weight_h, start_w, count_w, weight_w,
    planes, channels, width, target_h, target_w, taps_w, step,
    row_blocks, column_blocks, columns,
    stride_in, stride_ic, stride_ih, stride_on, stride_oc, stride_oh,
    ROWS: tl.constexpr, UNROLL: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr,
    VECTOR: tl.constexpr,
):  # fmt: skip
    """`columns` (at most WRITE) output elements of ROWS output rows of a plane.

    Every input row is read once, READ elements at a time, and added to the output rows that hold
    it. The sums go through `middle`, ROWS of a column side by side, so that reading a window back
    reads whole sectors. A neighbour that needs the same column writes the same bits.
    """
    dtype: tl.constexpr = weight_h.dtype.element_ty
    program = tl.program_id(0)
    column = (program % column_blocks) * columns
    program = program // column_blocks
    middle += program.to(tl.int64) * width * step * ROWS
    row = (program % row_blocks) * ROWS
    plane = program // row_blocks
    if plane >= planes:
        return
    column_end = tl.minimum(column + columns, target_w * step)
    batch = (plane // channels).to(tl.int64)
    channel = (plane % channels).to(tl.int64)
    source = image + batch * stride_in + channel * stride_ic
    result = out + batch * stride_on + channel * stride_oc

    last_row = tl.minimum(row + ROWS, target_h) - 1
    last_pixel = (column_end - 1) // step
    top = tl.load(start_h + row)
    bottom = tl.load(start_h + last_row) + tl.load(count_h + last_row)
    low = tl.load(start_w + column // step) * step
    high = (tl.load(start_w + last_pixel) + tl.load(count_w + last_pixel)) * step
    # Whole vectors: rows are multiples of them.
    low = low // VECTOR * VECTOR
    high = tl.cdiv(high, VECTOR) * VECTOR

    line = tl.arange(0, ROWS)[:, None]
    output = row + line
    present = output < target_h
    first = tl.load(start_h + output, mask=present, other=0)
    rows = tl.load(count_h + output, mask=present, other=0)
    for begin in range(low, high, READ):
        read = begin + tl.arange(0, READ)[None, :]
        sums, probe = sum_rows(
            source, weight_h, top, bottom, first, rows, output, target_h, read, high, stride_ih,
            ROWS, UNROLL, READ, False,
        )  # fmt: skip
        if tl.max(tl.where(probe == probe, 0, 1)) != 0:
            sums, probe = sum_rows(
                source, weight_h, top, bottom, first, rows, output, target_h, read, high,
                stride_ih, ROWS, UNROLL, READ, True,
            )  # fmt: skip
        tl.store(middle + read * ROWS + line, sums, mask=read < high)
    tl.debug_barrier()

    element = column + tl.arange(0, WRITE)[None, :]
    inside = element < column_end
    pixel = element // step
    first = tl.load(start_w + pixel, mask=inside, other=0)
    count = tl.load(count_w + pixel, mask=inside, other=0)
    place = middle + (first * step + element % step) * ROWS + line
    weight_w += pixel * taps_w
    total = tl.zeros([ROWS, WRITE], dtype)
    for tap in range(0, taps_w, UNROLL):
        for more in tl.static_range(UNROLL):
            held = tap + more < count
            weight = tl.load(weight_w + tap + more, mask=held, other=0.0)
            value = tl.load(place + (tap + more) * step * ROWS, mask=held & (line >= 0), other=0.0)
            total += value * weight
    to = result + output.to(tl.int64) * stride_oh + element
    tl.store(to, total.to(out.dtype.element_ty), mask=present & inside)
