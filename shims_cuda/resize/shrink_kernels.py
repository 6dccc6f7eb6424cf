# mypy: ignore-errors
"""The Triton kernel of a bilinear resize that at least halves the height.

A program goes down some output rows of a strip of columns and keeps the sums of the two rows whose
windows overlap, so that every input row is read once. Its neighbours above and below go the other
way: the rows that both need are read by both at the same time, and once from memory. Finished rows
go, four at a time, through scratch memory that the program uses again and again, so that it stays
in the caches; from there the windows of the width are summed. A program makes the windows of both
axes itself.

Rows and elements outside a window are weighed by 0, which is right as long as all elements are
finite. A program that finds a result that is not sums its outputs again, window by window.
"""

import triton
import triton.language as tl

from .window_kernels import axis_scale, center_of, weight_at, window_at

SHRINK_COUNTS = [
    *("planes", "channels", "height", "width", "target_h", "target_w", "taps_h", "taps_w"),
    *("row_blocks", "rows", "column_blocks", "columns", "segment", "chunks"),
    *("stride_in", "stride_ic", "stride_ih", "stride_on", "stride_oc", "stride_oh"),
    *("scratch_size", "plan_size"),
]


@triton.jit(do_not_specialize=SHRINK_COUNTS)
def shrink_kernel(
    image, scratch, plan, out,
    planes, channels, height, width, target_h, target_w, taps_h, taps_w,
    row_blocks, rows, column_blocks, columns, segment, chunks,
    stride_in, stride_ic, stride_ih, stride_on, stride_oc, stride_oh, scratch_size, plan_size,
    SCALE_H: tl.constexpr, SCALE_W: tl.constexpr, ALIGN: tl.constexpr,
    UNROLL: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr, VECTOR: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """`columns` (at most WRITE) output elements of `rows` output rows of a plane.

    Strides of the image count vectors of VECTOR elements, whose rows begin and end with one. Of
    each program are `scratch_size` blocks of 16 elements of scratch and `plan_size` integers. A
    window of the height has `segment` places, a multiple of UNROLL; one of the width `chunks` of
    four, a multiple of CHUNKS, the first at a multiple of four.
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

    ring = scratch + program.to(tl.int64) * scratch_size * 16
    weights = ring + 8 * READ
    totals = weights + chunks * (4 * WRITE)
    table = totals + rows
    lows = plan + program.to(tl.int64) * plan_size
    ends = lows + rows + 2
    find_rows(
        lows, ends, totals, line0, step, flip, count, scale_h, inverse_h, height, target_h, taps_h
    )
    element = column + tl.arange(0, WRITE)
    first, end = window_at(element, scale_w, width, target_w, taps_w, False, dtype)
    start = tl.maximum(tl.minimum(first - first % 4 - low, READ - 4), 0)
    weigh_columns(
        weights, element, first, end, scale_w, inverse_w, width == target_w, chunks, WRITE
    )
    tl.debug_barrier()
    weigh_rows(
        table, lows, ends, totals, line0, step, flip, count, segment, scale_h, inverse_h, height
    )
    tl.debug_barrier()

    result = out + batch * stride_on + channel * stride_oc
    sums0 = tl.zeros([READ], dtype)
    sums1 = tl.zeros([READ], dtype)
    low0 = tl.load(lows)
    end0 = tl.load(ends)
    low1 = tl.load(lows + 1)
    done = low0
    strange = tl.zeros([WRITE], tl.int32)
    for group in range(0, count, 4):
        # While some threads still sum the last four rows, others may write the next.
        half = ring + (group // 4 % 2) * (4 * READ)
        stop = tl.minimum(group + 4, count)
        to = half + position
        for output in range(group, stop):
            end1 = tl.load(ends + output + 1)
            low2 = tl.load(lows + output + 2)
            begin = tl.maximum(done, low0)
            if low1 < begin:
                # By rounding, or by a factor that does not fit: the next window began before.
                sums1 = add_window(
                    sums1, place, low1, tl.minimum(begin, end1), stride, totals, output + 1,
                    line0, step, flip, scale_h, inverse_h, height,
                )  # fmt: skip
            pair = table + output * (2 * segment)
            for row in range(begin, end0, UNROLL):
                # Past the window its last row is read again, and weighs nothing.
                for more in tl.static_range(UNROLL):
                    value = read_row(place, tl.minimum(row + more, end0 - 1), stride).to(dtype)
                    sums0 += value * tl.load(pair + 2 * more)
                    sums1 += value * tl.load(pair + 2 * more + 1)
                pair += 2 * UNROLL
            tl.store(to, sums0)
            to += READ
            sums0 = sums1
            sums1 = tl.zeros([READ], dtype)
            done = tl.maximum(begin, end0)
            low0, end0, low1 = low1, end1, low2
        tl.debug_barrier()
        strange |= sum_columns(
            half, weights, start, first, end, result, line0 + group * step, step,
            stop - group, element, column_end, chunks, stride_oh, READ, WRITE, CHUNKS, False,
        )  # fmt: skip
    if tl.max(strange, 0) != 0:
        for group in range(0, count, 4):
            tl.debug_barrier()
            stop = tl.minimum(group + 4, count)
            to = ring + position
            for output in range(group, stop):
                sums = add_window(
                    tl.zeros([READ], dtype), place, tl.load(lows + output),
                    tl.load(ends + output), stride, totals, output, line0, step, flip, scale_h,
                    inverse_h, height,
                )  # fmt: skip
                tl.store(to, sums)
                to += READ
            tl.debug_barrier()
            sum_columns(
                ring, weights, start, first, end, result, line0 + group * step, step,
                stop - group, element, column_end, chunks, stride_oh, READ, WRITE, CHUNKS, True,
            )  # fmt: skip


@triton.jit
def find_rows(
    lows, ends, totals, line0, step, flip, count, scale, inverse, size, target, taps
):  # fmt: skip
    """The windows of a program's output rows, and two empty ones behind them; their weights' sums.

    A window's first row, and one past its last, in the direction of the walk.
    """
    dtype: tl.constexpr = totals.dtype.element_ty
    for begin in range(0, count + 2, 32):
        output = begin + tl.arange(0, 32)
        line = line0 + tl.minimum(output, count - 1) * step
        first, end = window_at(line, scale, size, target, taps, False, dtype)
        center = center_of(line, scale, dtype)
        total = tl.zeros([32], dtype)
        for tap in range(0, taps):
            value = weight_at(first + tap, center, inverse, False, dtype)
            total += tl.where(first + tap < end, value, 0.0)
        tl.store(totals + output, tl.where(total == 0, 1.0, total), mask=output < count)
        low = tl.where(flip, size - end, first)
        end = tl.where(flip, size - first, end)
        tl.store(lows + output, tl.where(output < count, low, end), mask=output < count + 2)
        tl.store(ends + output, end, mask=output < count + 2)


@triton.jit
def weigh_rows(
    table, lows, ends, totals, line0, step, flip, count, segment, scale, inverse, size
):  # fmt: skip
    """What an input row weighs in the output row that it is read for, and in the next: two
    numbers for each place of `segment`, the first of which is the first row not read before."""
    dtype: tl.constexpr = table.dtype.element_ty
    for begin in range(0, count * segment, 128):
        which = begin + tl.arange(0, 128)
        output = which // segment
        inside = output < count
        low = tl.load(lows + output, mask=inside, other=0)
        end = tl.load(ends + output, mask=inside, other=0)
        next_low = tl.load(lows + output + 1, mask=inside, other=0)
        next_end = tl.load(ends + output + 1, mask=inside, other=0)
        before = tl.load(ends + output - 1, mask=inside & (output > 0), other=0)
        row = tl.maximum(low, before) + which % segment
        line = line0 + output * step
        pixel = tl.where(flip, size - 1 - row, row)
        total = tl.load(totals + output, mask=inside, other=1.0)
        value = weight_at(pixel, center_of(line, scale, dtype), inverse, False, dtype) / total
        held = row < end
        tl.store(table + 2 * which, tl.where(held, value, 0.0), mask=inside)
        total = tl.load(totals + output + 1, mask=output + 1 < count, other=1.0)
        center = center_of(line + step, scale, dtype)
        value = weight_at(pixel, center, inverse, False, dtype) / total
        held = held & (row >= next_low) & (row < next_end)
        tl.store(table + 2 * which + 1, tl.where(held, value, 0.0), mask=inside)


@triton.jit
def weigh_columns(
    weights, element, first, end, scale, inverse, same, chunks, WRITE: tl.constexpr
):  # fmt: skip
    """The weights of the width, four places at once, output by output; zeros outside windows."""
    dtype: tl.constexpr = weights.dtype.element_ty
    center = center_of(element, scale, dtype)[:, None]
    lane = tl.arange(0, 4)[None, :]
    total = tl.zeros([WRITE], dtype)
    for chunk in range(0, chunks):
        place = (first - first % 4)[:, None] + 4 * chunk + lane
        held = (place >= first[:, None]) & (place < end[:, None])
        value = weight_at(place, center, inverse, False, dtype)
        total += tl.sum(tl.where(held, value, 0.0), 1)
    total = tl.where(same | (total == 0), 1.0, total)[:, None]
    to = weights + tl.arange(0, WRITE)[:, None] * 4 + lane
    for chunk in range(0, chunks):
        place = (first - first % 4)[:, None] + 4 * chunk + lane
        held = (place >= first[:, None]) & (place < end[:, None])
        value = weight_at(place, center, inverse, False, dtype) / total
        tl.store(to, tl.where(held, tl.where(same, 1.0, value), 0.0))
        to += 4 * WRITE


@triton.jit
def read_row(place, row, stride):
    """An input row. It is not needed again: what is may stay in the caches."""
    return tl.load(place + tl.cast(row, tl.int64) * stride, eviction_policy="evict_first")


@triton.jit
def add_window(
    sums, place, begin, end, stride, totals, output, line0, step, flip, scale, inverse, size
):  # fmt: skip
    """`sums` of an output row plus input rows begin..end, one by one."""
    center = center_of(line0 + output * step, scale, sums.dtype)
    total = tl.load(totals + output)
    for row in range(begin, end):
        pixel = tl.where(flip, size - 1 - row, row)
        weight = weight_at(pixel, center, inverse, False, sums.dtype) / total
        sums += read_row(place, row, stride).to(sums.dtype) * weight
    return sums


@triton.jit
def sum_columns(
    ring, weights, start, first, end, result, line, step, count, element, column_end,
    chunks, stride_oh, READ: tl.constexpr, WRITE: tl.constexpr, CHUNKS: tl.constexpr,
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
    which = tl.arange(0, WRITE)[:, None] * 4 + lane
    for begin in range(0, chunks, CHUNKS):
        for more in tl.static_range(CHUNKS):
            chunk = begin + more
            weight = tl.load(weights + chunk * (4 * WRITE) + which)
            at = tl.multiple_of(tl.minimum(start + 4 * chunk, READ - 4), 4)
            at = ring + at[:, None] + lane
            tap = (first - first % 4)[:, None] + 4 * chunk + lane
            held = (tap >= first[:, None]) & (tap < end[:, None])
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
