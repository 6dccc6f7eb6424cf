# mypy: ignore-errors
"""The Triton kernel of a bilinear resize that at least halves the height.

A program goes down some output rows of a strip of columns and keeps the sums of the two rows whose
windows overlap, so that every input row is read once. Its neighbours above and below go the other
way: the rows that both need are read by both at the same time, and once from memory. Finished rows
go, four at a time, through scratch memory that the program uses again and again, so that it stays
in the caches; from there the windows of the width are summed.

Input rows are always under way: those of the next output row are asked for before this one is
stored, and the first before a program makes anything else. Weights are made where they are needed,
of numbers that all threads hold, so that nothing waits for a table of them.

Rows and elements outside a window are weighed by 0, which is right as long as all elements are
finite. A program that finds a result that is not sums its outputs again, window by window.
"""

import triton
import triton.language as tl

from .window_kernels import axis_scale, center_of, weight_at, window_at

SHRINK_COUNTS = [
    *("planes", "channels", "height", "width", "target_h", "target_w", "taps_h", "taps_w"),
    *("row_blocks", "rows", "column_blocks", "columns", "chunks"),
    *("stride_in", "stride_ic", "stride_ih", "stride_on", "stride_oc", "stride_oh"),
]


@triton.jit(do_not_specialize=SHRINK_COUNTS)
def shrink_kernel(
    image, scratch, out,
    planes, channels, height, width, target_h, target_w, taps_h, taps_w,
    row_blocks, rows, column_blocks, columns, chunks,
    stride_in, stride_ic, stride_ih, stride_on, stride_oc, stride_oh,
    SCALE_H: tl.constexpr, SCALE_W: tl.constexpr, ALIGN: tl.constexpr,
    UNROLL: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr, VECTOR: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """`columns` (at most WRITE) output elements of `rows` output rows of a plane.

    Strides of the image count vectors of VECTOR elements, whose rows begin and end with one. Of
    each program are 8 READ elements of scratch. A window of the width has `chunks` of four places,
    a multiple of CHUNKS, the first at a multiple of four.
    """
    dtype: tl.constexpr = scratch.dtype.element_ty
    program = tl.program_id(0)
    column = (program % column_blocks) * columns
    block = program // column_blocks
    plane = block // row_blocks
    block = block % row_blocks
    if plane >= planes:
        return
    column_end = tl.minimum(column + columns, target_w)
    row = block * rows
    row_end = tl.minimum(row + rows, target_h)
    count = row_end - row
    # Output rows and input rows are counted in the direction of the walk.
    flip = block % 2 == 1
    line0 = tl.where(flip, row_end - 1, row)
    step = tl.where(flip, -1, 1)

    scale_h = axis_scale(height, target_h, SCALE_H, ALIGN, dtype)
    scale_w = axis_scale(width, target_w, SCALE_W, ALIGN, dtype)
    scale_w = tl.where(width == target_w, 1.0, scale_w)
    inverse_h = 1.0 / tl.maximum(scale_h, 1.0)
    inverse_w = 1.0 / tl.maximum(scale_w, 1.0)
    low, _ = window_at(column, scale_w, width, target_w, taps_w, False, dtype)
    _, high = window_at(column_end - 1, scale_w, width, target_w, taps_w, False, dtype)
    ALIGNED: tl.constexpr = 4 if VECTOR < 4 else VECTOR
    low = low // ALIGNED * ALIGNED

    batch = (plane // channels).to(tl.int64)
    channel = (plane % channels).to(tl.int64)
    source = image + (batch * stride_in + channel * stride_ic) * VECTOR
    stride = tl.cast(stride_ih, tl.int64) * VECTOR
    source += tl.where(flip, (height - 1) * stride, 0)
    stride = tl.where(flip, -stride, stride)
    # Past the strip's last vector that vector is read again, without a mask.
    position = tl.arange(0, READ)
    vector = tl.minimum(low // VECTOR + position // VECTOR, (high - 1) // VECTOR)
    read = tl.multiple_of(vector * VECTOR + position % VECTOR, VECTOR)
    place = source + tl.max_contiguous(read, VECTOR)

    begin, end0 = rows_of(0, line0, step, flip, count, scale_h, height, target_h, taps_h, dtype)
    values = read_rows(place, begin, end0, stride, UNROLL)
    low1, end1 = rows_of(1, line0, step, flip, count, scale_h, height, target_h, taps_h, dtype)
    center0 = center_of(line0, scale_h, dtype)

    ring = scratch + program.to(tl.int64) * (8 * READ)
    element = column + tl.arange(0, WRITE)
    first, end = window_at(element, scale_w, width, target_w, taps_w, False, dtype)
    start = tl.maximum(tl.minimum(first - first % 4 - low, READ - 4), 0)
    center = center_of(element, scale_w, dtype)
    total = tl.zeros([WRITE, 4], dtype)
    for chunk in range(0, chunks):
        _held, weight = weigh_columns(chunk, first, end, center, inverse_w)
        total += weight
    factor = inverse_of(tl.sum(total, 1))

    result = out + batch * stride_on + channel * stride_oc
    sums0 = tl.zeros([READ], dtype)
    sums1 = tl.zeros([READ], dtype)
    total0 = tl.zeros([], dtype)
    total1 = tl.zeros([], dtype)
    strange = tl.zeros([WRITE], tl.int32)
    for group in range(0, count, 4):
        # While some threads still sum the last four rows, others may write the next.
        half = ring + (group // 4 % 2) * (4 * READ)
        stop = tl.minimum(group + 4, count)
        to = half + position
        for output in range(group, stop):
            center1 = center_of(line0 + (output + 1) * step, scale_h, dtype)
            if low1 < begin:
                # By rounding, or by a factor that does not fit: the next window began before.
                sums1, total1 = add_window(
                    sums1, total1, place, low1, tl.minimum(begin, end1), stride, center1, 1.0,
                    flip, inverse_h, height,
                )  # fmt: skip
            sums0, sums1, total0, total1 = add_rows(
                sums0, sums1, total0, total1, values, begin, end0, center0, center1,
                flip, inverse_h, height, UNROLL,
            )  # fmt: skip
            for row in range(begin + UNROLL, end0, UNROLL):
                more = read_rows(place, row, end0, stride, UNROLL)
                sums0, sums1, total0, total1 = add_rows(
                    sums0, sums1, total0, total1, more, row, end0, center0, center1,
                    flip, inverse_h, height, UNROLL,
                )  # fmt: skip
            begin = tl.maximum(tl.maximum(begin, end0), low1)
            values = read_rows(place, begin, end1, stride, UNROLL)
            tl.store(to, sums0 * inverse_of(total0))
            to += READ
            sums0 = sums1
            sums1 = tl.zeros([READ], dtype)
            total0 = total1
            total1 = tl.zeros([], dtype)
            end0, center0 = end1, center1
            low1, end1 = rows_of(
                output + 2, line0, step, flip, count, scale_h, height, target_h, taps_h, dtype
            )
        tl.debug_barrier()
        strange |= sum_columns(
            half, start, first, end, center, factor, inverse_w, result, line0 + group * step, step,
            stop - group, element, column_end, chunks, stride_oh, READ, WRITE, CHUNKS, False,
        )  # fmt: skip
    if tl.max(strange, 0) != 0:
        for group in range(0, count, 4):
            tl.debug_barrier()
            stop = tl.minimum(group + 4, count)
            to = ring + position
            for output in range(group, stop):
                center0 = center_of(line0 + output * step, scale_h, dtype)
                begin, end0 = rows_of(
                    output, line0, step, flip, count, scale_h, height, target_h, taps_h, dtype
                )
                total0 = tl.zeros([], dtype)
                for row in range(begin, end0):
                    total0 += weigh_row(row, center0, flip, inverse_h, height)
                sums0, total0 = add_window(
                    tl.zeros([READ], dtype), total0, place, begin, end0, stride, center0,
                    inverse_of(total0), flip, inverse_h, height,
                )  # fmt: skip
                tl.store(to, sums0)
                to += READ
            tl.debug_barrier()
            sum_columns(
                ring, start, first, end, center, factor, inverse_w, result,
                line0 + group * step, step, stop - group, element, column_end, chunks, stride_oh,
                READ, WRITE, CHUNKS, True,
            )  # fmt: skip


@triton.jit
def rows_of(
    output, line0, step, flip, count, scale, size, target, taps, DTYPE: tl.constexpr
):  # fmt: skip
    """The window of an output row: its first row, and one past its last, in the direction of the
    walk. It is empty, behind the last one, past a program's `count` rows."""
    line = line0 + tl.minimum(output, count - 1) * step
    first, end = window_at(line, scale, size, target, taps, False, DTYPE)
    low = tl.where(flip, size - end, first)
    end = tl.where(flip, size - first, end)
    return tl.where(output < count, low, end), end


@triton.jit
def read_row(place, row, stride):
    """An input row. It is not needed again: what is may stay in the caches."""
    return tl.load(place + tl.cast(row, tl.int64) * stride, eviction_policy="evict_first")


@triton.jit
def read_rows(place, begin, end, stride, UNROLL: tl.constexpr):
    """UNROLL input rows from `begin` on; past `end` the last row before it is read again."""
    last = tl.maximum(end - 1, 0)
    values = ()
    for more in tl.static_range(UNROLL):
        values += (read_row(place, tl.minimum(begin + more, last), stride),)
    return values


@triton.jit
def weigh_row(row, center, flip, inverse, size):
    """What an input row weighs in the output row at `center`; a window's add up to about 1."""
    pixel = tl.where(flip, size - 1 - row, row)
    return weight_at(pixel, center, inverse, False, center.dtype) * inverse


@triton.jit
def add_rows(
    sums0, sums1, total0, total1, values, begin, end0, center0, center1, flip,
    inverse, size, UNROLL: tl.constexpr,
):  # fmt: skip
    """`sums` of an output row and of the next plus the rows read from `begin` on, and what those
    weigh added to `total`. Rows from `end0` on weigh nothing; one before the next window weighs 0
    there anyhow, and the next window ends no earlier."""
    for more in tl.static_range(UNROLL):
        row = begin + more
        held = row < end0
        weight0 = tl.where(held, weigh_row(row, center0, flip, inverse, size), 0.0)
        weight1 = tl.where(held, weigh_row(row, center1, flip, inverse, size), 0.0)
        value = values[more].to(sums0.dtype)
        sums0 += value * weight0
        sums1 += value * weight1
        total0 += weight0
        total1 += weight1
    return sums0, sums1, total0, total1


@triton.jit
def add_window(sums, total, place, begin, end, stride, center, factor, flip, inverse, size):
    """`sums` of an output row plus input rows begin..end, one by one, and what they weigh, times
    `factor`, added to `total`."""
    for row in range(begin, end):
        weight = weigh_row(row, center, flip, inverse, size) * factor
        sums += read_row(place, row, stride).to(sums.dtype) * weight
        total += weight
    return sums, total


@triton.jit
def inverse_of(total):
    """What makes weights add up to 1; 1 where they are all 0."""
    return 1.0 / tl.where(total == 0, 1.0, total)


@triton.jit
def weigh_columns(chunk, first, end, center, inverse):
    """Whether each of four places is in an output's window of the width, and what it weighs, not
    normalised."""
    place = (first - first % 4)[:, None] + 4 * chunk + tl.arange(0, 4)[None, :]
    held = (place >= first[:, None]) & (place < end[:, None])
    weight = weight_at(place, center[:, None], inverse, False, center.dtype)
    return held, tl.where(held, weight, 0.0)


@triton.jit
def sum_columns(
    ring, start, first, end, center, factor, inverse, result, line, step, count, element,
    column_end, chunks, stride_oh, READ: tl.constexpr, WRITE: tl.constexpr, CHUNKS: tl.constexpr,
    HELD: tl.constexpr,
):  # fmt: skip
    """The windows of the width of `count` (1 to 4) rows of `ring`, stored in output rows `line`,
    line + step, ...; 1 for each output one of which is not finite.

    HELD leaves elements outside a window out, instead of weighing them by 0.
    """
    dtype: tl.constexpr = ring.dtype.element_ty
    lane = tl.arange(0, 4)[None, :]
    total0 = tl.zeros([WRITE, 4], dtype)
    total1 = tl.zeros([WRITE, 4], dtype)
    total2 = tl.zeros([WRITE, 4], dtype)
    total3 = tl.zeros([WRITE, 4], dtype)
    for begin in range(0, chunks, CHUNKS):
        for more in tl.static_range(CHUNKS):
            chunk = begin + more
            held, weight = weigh_columns(chunk, first, end, center, inverse)
            weight *= factor[:, None]
            at = tl.multiple_of(tl.minimum(start + 4 * chunk, READ - 4), 4)
            at = ring + at[:, None] + lane
            total0 += weigh(tl.load(at), weight, held, HELD)
            total1 += weigh(tl.load(at + READ), weight, held, HELD)
            total2 += weigh(tl.load(at + 2 * READ), weight, held, HELD)
            total3 += weigh(tl.load(at + 3 * READ), weight, held, HELD)
    result += element
    inside = element < column_end
    line = tl.cast(line, tl.int64)
    step = tl.cast(step, tl.int64)
    strange = store_row(total0, result + line * stride_oh, inside)
    line += step
    strange |= store_row(total1, result + line * stride_oh, inside & (count > 1))
    line += step
    strange |= store_row(total2, result + line * stride_oh, inside & (count > 2))
    line += step
    strange |= store_row(total3, result + line * stride_oh, inside & (count > 3))
    return strange


@triton.jit
def weigh(value, weight, held, HELD: tl.constexpr):
    """A value by its weight."""
    if HELD:
        value = tl.where(held, value, 0.0)
    return value * weight


@triton.jit
def store_row(total, to, inside):
    """Store the sums of one output row; 1 where one is not finite."""
    total = tl.sum(total, 1)
    tl.store(to, total.to(to.dtype.element_ty), mask=inside)
    return (inside & ~(tl.abs(total) < float("inf"))).to(tl.int32)
