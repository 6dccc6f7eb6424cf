# mypy: ignore-errors
"""The Triton kernels of an antialiased resize: the windows of both axes, then the sums of both.

An image is planes of rows of elements that lie one after the other: (N C) planes of W elements a
row, or, channels last, N planes of W times C, whose neighbours along the width are `step` = C
elements apart. `plugins/toolkit/resample.py` has the formulas; the roundings here are the same.
"""

import triton
import triton.language as tl

WINDOW_COUNTS = [
    *("size_h", "target_h", "taps_h"),
    *("size_w", "target_w", "taps_w", "pitch_w"),
]
COUNTS = [
    *("planes", "channels", "target_h", "target_w", "taps_h", "taps_w"),
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


@triton.jit
def row_of(start_h, count_h, output):
    """First input row, and number of rows, of the window of one output row."""
    return tl.load(start_h + output), tl.load(count_h + output)


@triton.jit
def add_row(sums, value, weights, tap, more: tl.constexpr, rows, HELD: tl.constexpr):
    """`sums` of an output row plus the input row at tap + more of its window, if that is in it."""
    held = (tap + more >= 0) & (tap + more < rows)
    weight = tl.load(weights + tap + more, mask=held, other=0.0)
    if HELD:
        value = tl.where(held, value, 0.0)
    return sums + value * weight


@triton.jit
def sum_rows(
    source, middle, middle_row, start_h, count_h, weight_h, row, last_row, taps_h, read, high,
    stride_ih, UNROLL: tl.constexpr, READ: tl.constexpr, LANES: tl.constexpr,
    HELD: tl.constexpr,
):  # fmt: skip
    """The weighted sums of input rows for four output rows, from `row` on, stored in `middle`.

    Four accumulators by name, since scalar weights cost a tenth of the registers that a tensor
    of weights takes. Without HELD, rows outside an output's window are weighed by 0, which is
    right as long as all elements are finite; the result says whether they were: 0, or NaN.
    """
    dtype: tl.constexpr = weight_h.dtype.element_ty
    output1 = tl.minimum(row + 1, last_row)
    output2 = tl.minimum(row + 2, last_row)
    first0, rows0 = row_of(start_h, count_h, row)
    first1, rows1 = row_of(start_h, count_h, output1)
    first2, rows2 = row_of(start_h, count_h, output2)
    first3, rows3 = row_of(start_h, count_h, last_row)
    bottom = first3 + rows3
    sums0 = tl.zeros([READ], dtype)
    sums1 = tl.zeros([READ], dtype)
    sums2 = tl.zeros([READ], dtype)
    sums3 = tl.zeros([READ], dtype)
    probe = tl.zeros([READ], dtype)
    weights0 = weight_h + row * taps_h
    weights1 = weight_h + output1 * taps_h
    weights2 = weight_h + output2 * taps_h
    weights3 = weight_h + last_row * taps_h
    place = source + first0.to(tl.int64) * stride_ih + read
    for begin in range(first0, bottom, UNROLL):
        for more in tl.static_range(UNROLL):
            inside = (read < high) & (begin + more < bottom)
            value = tl.load(place + more * stride_ih, mask=inside, other=0.0).to(dtype)
            sums0 = add_row(sums0, value, weights0, begin - first0, more, rows0, HELD)
            sums1 = add_row(sums1, value, weights1, begin - first1, more, rows1, HELD)
            sums2 = add_row(sums2, value, weights2, begin - first2, more, rows2, HELD)
            sums3 = add_row(sums3, value, weights3, begin - first3, more, rows3, HELD)
            if not HELD:
                probe += value * 0.0
        place += UNROLL * stride_ih
    inside = read < high
    if LANES > 1:
        tl.store(middle + read, sums0, mask=inside)
        tl.store(middle + (output1 - row) * middle_row + read, sums1, mask=inside)
        tl.store(middle + (output2 - row) * middle_row + read, sums2, mask=inside)
        tl.store(middle + (last_row - row) * middle_row + read, sums3, mask=inside)
    else:
        together = tl.join(tl.join(sums0, sums2), tl.join(sums1, sums3))
        place = middle + 4 * read[:, None] + tl.arange(0, 4)[None, :]
        tl.store(place, tl.reshape(together, [READ, 4]), mask=inside[:, None])
    return probe


@triton.jit(do_not_specialize=COUNTS)
def resize_kernel(
    image, middle, out, start_h, count_h, weight_h, start_w, count_w, weight_w,
    planes, channels, target_h, target_w, taps_h, taps_w, step, row_blocks, column_blocks, columns,
    stride_in, stride_ic, stride_ih, middle_row, pitch_w, stride_on, stride_oc, stride_oh,
    UNROLL: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr, VECTOR: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """`columns` (at most WRITE) output elements of four output rows of a plane.

    Every input row is read once, READ elements at a time, and added to the output rows that hold
    it. The sums go through `middle`, four rows of `middle_row` columns a block, to the threads
    that sum a window of the width. A neighbour that needs the same element writes the same bits.

    Windows begin anywhere, so one load for each element of them would take a cache line for
    three or four threads. Neighbours along the width (LANES > 1) are read LANES at once, from a
    multiple of LANES on; where channels lie between them, the four rows lie side by side.
    """
    dtype: tl.constexpr = weight_h.dtype.element_ty
    program = tl.program_id(0)
    column = (program % column_blocks) * columns
    program = program // column_blocks
    row = (program % row_blocks) * 4
    plane = program // row_blocks
    if plane >= planes:
        return
    column_end = tl.minimum(column + columns, target_w * step)
    batch = (plane // channels).to(tl.int64)
    channel = (plane % channels).to(tl.int64)
    source = image + batch * stride_in + channel * stride_ic
    result = out + batch * stride_on + channel * stride_oc
    middle += program.to(tl.int64) * 4 * middle_row

    last_row = tl.minimum(row + 4, target_h) - 1
    last_pixel = (column_end - 1) // step
    low = tl.load(start_w + column // step) * step
    high = (tl.load(start_w + last_pixel) + tl.load(count_w + last_pixel)) * step
    # Whole vectors: rows are multiples of them.
    low = low // VECTOR * VECTOR
    high = tl.cdiv(high, VECTOR) * VECTOR
    for begin in range(low, high, READ):
        read = begin + tl.arange(0, READ)
        probe = sum_rows(
            source, middle, middle_row, start_h, count_h, weight_h, row, last_row, taps_h,
            read, high, stride_ih, UNROLL, READ, LANES, False,
        )  # fmt: skip
        if tl.max(tl.where(probe == probe, 0, 1), 0) != 0:
            sum_rows(
                source, middle, middle_row, start_h, count_h, weight_h, row, last_row, taps_h,
                read, high, stride_ih, UNROLL, READ, LANES, True,
            )  # fmt: skip
    tl.debug_barrier()

    line = tl.arange(0, 4)[:, None, None]
    element = column + tl.arange(0, WRITE)[None, :, None]
    lane = tl.arange(0, LANES)[None, None, :]
    inside = element < column_end
    pixel = element // step
    first = tl.load(start_w + pixel, mask=inside, other=0)
    count = tl.load(count_w + pixel, mask=inside, other=0)
    lead = first % LANES
    if LANES > 1:
        place = middle + line * middle_row + first // LANES * LANES + lane
        stride = 1
    else:
        place = middle + (first * step + element % step) * 4 + line + lane
        stride = 4 * step
    present = inside & (row + line < target_h)
    # A pointer for every row, although rows share weights: so both loads have one layout.
    weights = weight_w + pixel * pitch_w + lane + tl.zeros_like(line)
    total = tl.zeros([4, WRITE, LANES], dtype)
    for begin in range(0, taps_w + LANES - 1, 2 * LANES):
        for more in tl.static_range(2):
            tap = begin + more * LANES
            some = tap < lead + count
            weight = tl.load(weights + tap, mask=present & some, other=0.0)
            value = tl.load(place + tap * stride, mask=present & some, other=0.0)
            held = (tap + lane >= lead) & (tap + lane < lead + count)
            total += tl.where(held, value, 0.0) * weight
    output = row + tl.arange(0, 4)[:, None]
    element = column + tl.arange(0, WRITE)[None, :]
    to = result + output.to(tl.int64) * stride_oh + element
    total = tl.sum(total, 2).to(out.dtype.element_ty)
    tl.store(to, total, mask=(output < target_h) & (element < column_end))
