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
    *("row_blocks", "rows", "column_blocks", "columns"),
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
def window_of(start, count, output, last):
    """First element, and one past the last, of the window of an output; `last` bounds it."""
    output = tl.minimum(output, last)
    first = tl.load(start + output)
    return first, first + tl.load(count + output)


@triton.jit
def add_row(sums, value, weights, row, first, held, HELD: tl.constexpr):
    """`sums` of an output plus an input row, which with HELD may lie before its window."""
    if HELD:
        held = held & (row >= first)
        value = tl.where(held, value, 0.0)
    return sums + value * tl.load(weights + row, mask=held, other=0.0)


@triton.jit
def read_row(source, row, end, inside, stride_ih, EVICT: tl.constexpr):
    """One input row, zeros from row `end` on."""
    place = source + tl.cast(row, tl.int64) * stride_ih
    return tl.load(place, mask=inside & (row < end), other=0.0, eviction_policy=EVICT)


@triton.jit
def add_rows(
    sums0, sums1, sums2, sums3, source, begin, end, inside, stride_ih,
    first0, first1, first2, first3, weights0, weights1, weights2, weights3,
    UNROLL: tl.constexpr, OVERLAP: tl.constexpr, HELD: tl.constexpr, EVICT: tl.constexpr,
):  # fmt: skip
    """The sums of OVERLAP outputs plus input rows begin..end, UNROLL under way at once."""
    for start in range(begin, end, UNROLL):
        for more in tl.static_range(UNROLL):
            row = start + more
            held = row < end
            value = read_row(source, row, end, inside, stride_ih, EVICT).to(sums0.dtype)
            sums0 = add_row(sums0, value, weights0, row, first0, held, HELD)
            if OVERLAP >= 2:
                sums1 = add_row(sums1, value, weights1, row, first1, held, HELD)
            if OVERLAP == 4:
                sums2 = add_row(sums2, value, weights2, row, first2, held, HELD)
                sums3 = add_row(sums3, value, weights3, row, first3, held, HELD)
    return sums0, sums1, sums2, sums3


@triton.jit
def read_ahead(source, begin, end, inside, stride_ih, UNROLL: tl.constexpr, EVICT: tl.constexpr):
    """The first UNROLL (at most 6) input rows of begin..end."""
    value0 = read_row(source, begin, end, inside, stride_ih, EVICT)
    value1 = value0
    value2 = value0
    value3 = value0
    value4 = value0
    value5 = value0
    if UNROLL > 1:
        value1 = read_row(source, begin + 1, end, inside, stride_ih, EVICT)
    if UNROLL > 2:
        value2 = read_row(source, begin + 2, end, inside, stride_ih, EVICT)
    if UNROLL > 3:
        value3 = read_row(source, begin + 3, end, inside, stride_ih, EVICT)
    if UNROLL > 4:
        value4 = read_row(source, begin + 4, end, inside, stride_ih, EVICT)
    if UNROLL > 5:
        value5 = read_row(source, begin + 5, end, inside, stride_ih, EVICT)
    return value0, value1, value2, value3, value4, value5


@triton.jit
def add_ahead(
    sums, value0, value1, value2, value3, value4, value5, weights, begin, end,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """`sums` of an output plus the rows that `read_ahead` read."""
    dtype: tl.constexpr = sums.dtype
    sums += value0.to(dtype) * tl.load(weights + begin, mask=begin < end, other=0.0)
    if UNROLL > 1:
        sums += value1.to(dtype) * tl.load(weights + begin + 1, mask=begin + 1 < end, other=0.0)
    if UNROLL > 2:
        sums += value2.to(dtype) * tl.load(weights + begin + 2, mask=begin + 2 < end, other=0.0)
    if UNROLL > 3:
        sums += value3.to(dtype) * tl.load(weights + begin + 3, mask=begin + 3 < end, other=0.0)
    if UNROLL > 4:
        sums += value4.to(dtype) * tl.load(weights + begin + 4, mask=begin + 4 < end, other=0.0)
    if UNROLL > 5:
        sums += value5.to(dtype) * tl.load(weights + begin + 5, mask=begin + 5 < end, other=0.0)
    return sums


@triton.jit
def sum_rows(
    source, middle, middle_row, start_h, count_h, weight_h, row, row_end, taps_h, inside,
    stride_ih, READ: tl.constexpr, UNROLL: tl.constexpr, OVERLAP: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """The weighted sums of input rows for the output rows from `row` on, stored in `middle`.

    Windows begin and end in order. Where an image shrinks, OVERLAP = 2 (bilinear) or 4 of them
    overlap: when output i is finished, the window of output i + OVERLAP begins, so every input
    row is read once and added to OVERLAP sums. Rounding, and images that grow, let a window begin
    earlier; it gets those rows when its turn comes.

    The rows that finish an output are read while the one before is summed.
    """
    dtype: tl.constexpr = weight_h.dtype.element_ty
    last = row_end - 1
    sums0 = tl.zeros([READ], dtype)
    sums1 = tl.zeros([READ], dtype)
    sums2 = tl.zeros([READ], dtype)
    sums3 = tl.zeros([READ], dtype)
    first0, end0 = window_of(start_h, count_h, row, last)
    first1, end1 = window_of(start_h, count_h, row + 1, last)
    first2, end2 = window_of(start_h, count_h, row + 2, last)
    first3, end3 = window_of(start_h, count_h, row + 3, last)
    done = first0
    whole = tl.maximum(done, first1 if OVERLAP == 2 else first3)
    value0, value1, value2, value3, value4, value5 = read_ahead(
        source, whole, end0, inside, stride_ih, UNROLL, EVICT
    )
    for output in range(row, row_end):
        weights0 = weight_h + output * taps_h - first0
        weights1 = weight_h + tl.minimum(output + 1, last) * taps_h - first1
        weights2 = weight_h + tl.minimum(output + 2, last) * taps_h - first2
        weights3 = weight_h + tl.minimum(output + 3, last) * taps_h - first3
        first4, end4 = window_of(start_h, count_h, output + 4, last)
        if OVERLAP == 2:
            newest, next_first, next_end = first1, first2, end2
        else:
            newest, next_first, next_end = first3, first4, end4
        if done < tl.minimum(newest, end0):
            sums0, sums1, sums2, sums3 = add_rows(
                sums0, sums1, sums2, sums3, source, done, tl.minimum(newest, end0), inside,
                stride_ih, first0, first1, first2, first3,
                weights0, weights1, weights2, weights3, 3, OVERLAP, True, EVICT,
            )  # fmt: skip
        # From here on all OVERLAP windows hold the rows up to `end0`.
        whole = tl.maximum(done, newest)
        done = tl.maximum(done, end0)
        next0, next1, next2, next3, next4, next5 = read_ahead(
            source, tl.maximum(done, next_first), end1, inside & (output < last), stride_ih,
            UNROLL, EVICT,
        )  # fmt: skip
        sums0 = add_ahead(
            sums0, value0, value1, value2, value3, value4, value5, weights0, whole, end0, UNROLL
        )
        sums1 = add_ahead(
            sums1, value0, value1, value2, value3, value4, value5, weights1, whole, end0, UNROLL
        )
        if OVERLAP == 4:
            sums2 = add_ahead(
                sums2, value0, value1, value2, value3, value4, value5, weights2, whole, end0,
                UNROLL,
            )  # fmt: skip
            sums3 = add_ahead(
                sums3, value0, value1, value2, value3, value4, value5, weights3, whole, end0,
                UNROLL,
            )  # fmt: skip
        if whole + UNROLL < end0:
            sums0, sums1, sums2, sums3 = add_rows(
                sums0, sums1, sums2, sums3, source, whole + UNROLL, end0, inside,
                stride_ih, first0, first1, first2, first3,
                weights0, weights1, weights2, weights3, 3, OVERLAP, False, EVICT,
            )  # fmt: skip
        tl.store(middle, sums0, mask=inside)
        middle += middle_row
        fresh = tl.zeros([READ], dtype)
        if (output + OVERLAP < row_end) & (next_first < done):
            weights = weight_h + (output + OVERLAP) * taps_h - next_first
            fresh, _, _, _ = add_rows(
                fresh, fresh, fresh, fresh, source, next_first, tl.minimum(done, next_end),
                inside, stride_ih, next_first, next_first, next_first, next_first,
                weights, weights, weights, weights, 1, 1, False, EVICT,
            )  # fmt: skip
        sums0 = sums1
        if OVERLAP == 2:
            sums1 = fresh
        else:
            sums1, sums2, sums3 = sums2, sums3, fresh
        first0, first1, first2, first3 = first1, first2, first3, first4
        end0, end1, end2, end3 = end1, end2, end3, end4
        value0, value1, value2 = next0, next1, next2
        value3, value4, value5 = next3, next4, next5


@triton.jit
def sum_windows(
    place, weights, present, lane, lead, count, taps_w, step,
    WRITE: tl.constexpr, LANES: tl.constexpr, VECTORS: tl.constexpr, HELD: tl.constexpr,
):  # fmt: skip
    """Weighted sums of windows of the width, by lanes: (4, WRITE, LANES).

    Without HELD, elements beside a window in its first and last vector are weighed by 0, which
    is right as long as they are finite; where they are not, a sum is NaN.
    """
    total = tl.zeros([4, WRITE, LANES], weights.dtype.element_ty)
    for begin in range(0, taps_w + LANES - 1, VECTORS * LANES):
        for more in tl.static_range(VECTORS):
            tap = begin + more * LANES
            some = present & (tap < lead + count)
            weight = tl.load(weights + tap, mask=some, other=0.0)
            value = tl.load(place + tap * step, mask=some, other=0.0)
            if HELD:
                held = (tap + lane >= lead) & (tap + lane < lead + count)
                value = tl.where(held, value, 0.0)
            total += value * weight
    return total


@triton.jit(do_not_specialize=COUNTS)
def resize_kernel(
    image, middle, out, start_h, count_h, weight_h, start_w, count_w, weight_w,
    planes, channels, target_h, target_w, taps_h, taps_w, step,
    row_blocks, rows, column_blocks, columns,
    stride_in, stride_ic, stride_ih, middle_row, pitch_w, stride_on, stride_oc, stride_oh,
    UNROLL: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr, VECTOR: tl.constexpr,
    OVERLAP: tl.constexpr, LANES: tl.constexpr, VECTORS: tl.constexpr,
    EVICT: tl.constexpr,
):  # fmt: skip
    """`columns` output elements of `rows` output rows of a plane.

    Every input row is read once, READ elements at a time, and added to the output rows that hold
    it. The sums go through `middle`, rows of `middle_row` elements, to the threads that sum a
    window of the width. A neighbour that needs the same element writes the same bits.

    Windows begin anywhere, so one load for each element of them would take a cache line for
    three or four threads. Neighbours along the width (LANES > 1) are read LANES at once, from a
    multiple of LANES on.
    """
    program = tl.program_id(0)
    column = (program % column_blocks) * columns
    program = program // column_blocks
    row = (program % row_blocks) * rows
    plane = program // row_blocks
    if plane >= planes:
        return
    column_end = tl.minimum(column + columns, target_w * step)
    batch = (plane // channels).to(tl.int64)
    channel = (plane % channels).to(tl.int64)
    source = image + batch * stride_in + channel * stride_ic
    result = out + batch * stride_on + channel * stride_oc
    middle += program.to(tl.int64) * rows * middle_row

    row_end = tl.minimum(row + rows, target_h)
    last_pixel = (column_end - 1) // step
    low = tl.load(start_w + column // step) * step
    high = (tl.load(start_w + last_pixel) + tl.load(count_w + last_pixel)) * step
    # Whole vectors: rows are multiples of them.
    low = low // VECTOR * VECTOR
    high = tl.cdiv(high, VECTOR) * VECTOR
    for begin in range(low, high, READ):
        read = begin + tl.arange(0, READ)
        sum_rows(
            source + read, middle + read, middle_row, start_h, count_h, weight_h, row, row_end,
            taps_h, read < high, stride_ih, READ, UNROLL, OVERLAP, EVICT,
        )  # fmt: skip
    tl.debug_barrier()

    line = tl.arange(0, 4)[:, None, None]
    lane = tl.arange(0, LANES)[None, None, :]
    for start in range(column, column_end, WRITE):
        element = start + tl.arange(0, WRITE)[None, :, None]
        inside = element < column_end
        pixel = element // step
        first = tl.load(start_w + pixel, mask=inside, other=0)
        count = tl.load(count_w + pixel, mask=inside, other=0)
        lead = first % LANES
        origin = first // LANES * LANES * step + element % step
        # A pointer for every row, although rows share weights: so both loads have one layout.
        weights = weight_w + pixel * pitch_w + lane + tl.zeros_like(line)
        for output in range(row, row_end, 4):
            place = middle + (output - row + line) * middle_row + origin + lane
            present = inside & (output + line < row_end)
            total = sum_windows(
                place, weights, present, lane, lead, count, taps_w, step,
                WRITE, LANES, VECTORS, False,
            )  # fmt: skip
            wrong = tl.max(tl.max(tl.max(tl.where(total == total, 0, 1), 2), 1), 0)
            if wrong != 0:
                total = sum_windows(
                    place, weights, present, lane, lead, count, taps_w, step,
                    WRITE, LANES, VECTORS, True,
                )  # fmt: skip
            output_row = output + tl.arange(0, 4)[:, None]
            output_element = start + tl.arange(0, WRITE)[None, :]
            to = result + output_row.to(tl.int64) * stride_oh + output_element
            total = tl.sum(total, 2).to(out.dtype.element_ty)
            tl.store(to, total, mask=(output_row < row_end) & (output_element < column_end))
