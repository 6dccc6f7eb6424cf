# mypy: ignore-errors
"""Sums of the height: input rows into output rows, for a stretch of READ columns.

`four_rows` keeps four output rows at once; every input row between the first and the last of
their windows is read once and added to all four. `rolling_rows` keeps the two rows that overlap
where a bilinear filter shrinks an image, and finishes one after the other.
"""

import triton
import triton.language as tl


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
def four_rows(
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


@triton.jit
def window_of(start_h, count_h, output, last):
    """First input row, and one past the last, of the window of an output row, at most `last`."""
    output = tl.minimum(output, last)
    first = tl.load(start_h + output)
    return first, first + tl.load(count_h + output)


@triton.jit
def read_row(source, row, end, inside, stride_ih):
    """One input row, zeros from row `end` on. It is not needed again: `middle` may stay in the
    cache instead."""
    place = source + tl.cast(row, tl.int64) * stride_ih
    return tl.load(place, mask=inside & (row < end), other=0.0, eviction_policy="evict_first")


@triton.jit
def read_ahead(source, begin, end, inside, stride_ih, UNROLL: tl.constexpr):
    """The first UNROLL (2 to 6) input rows of begin..end."""
    value0 = read_row(source, begin, end, inside, stride_ih)
    value1 = read_row(source, begin + 1, end, inside, stride_ih)
    value2 = value1
    value3 = value1
    value4 = value1
    value5 = value1
    if UNROLL > 2:
        value2 = read_row(source, begin + 2, end, inside, stride_ih)
    if UNROLL > 3:
        value3 = read_row(source, begin + 3, end, inside, stride_ih)
    if UNROLL > 4:
        value4 = read_row(source, begin + 4, end, inside, stride_ih)
    if UNROLL > 5:
        value5 = read_row(source, begin + 5, end, inside, stride_ih)
    return value0, value1, value2, value3, value4, value5


@triton.jit
def add_weighed(sums, value, weights, row, held):
    """`sums` plus an input row, by its weight if `held`; otherwise it is all zeros."""
    return sums + value.to(sums.dtype) * tl.load(weights + row, mask=held, other=0.0)


@triton.jit
def add_ahead(
    sums, value0, value1, value2, value3, value4, value5, weights, begin, end,
    UNROLL: tl.constexpr,
):  # fmt: skip
    """`sums` of an output row plus what `read_ahead` read."""
    sums = add_weighed(sums, value0, weights, begin, begin < end)
    sums = add_weighed(sums, value1, weights, begin + 1, begin + 1 < end)
    if UNROLL > 2:
        sums = add_weighed(sums, value2, weights, begin + 2, begin + 2 < end)
    if UNROLL > 3:
        sums = add_weighed(sums, value3, weights, begin + 3, begin + 3 < end)
    if UNROLL > 4:
        sums = add_weighed(sums, value4, weights, begin + 4, begin + 4 < end)
    if UNROLL > 5:
        sums = add_weighed(sums, value5, weights, begin + 5, begin + 5 < end)
    return sums


@triton.jit
def add_rows(
    sums0, sums1, source, begin, end, inside, stride_ih, first0, first1, weights0, weights1,
    BOTH: tl.constexpr,
):  # fmt: skip
    """The sums of two output rows plus input rows begin..end; without BOTH only the first's.

    Rows before a window are left out of its sums. None lies behind one, as windows end in order.
    """
    for row in range(begin, end):
        value = read_row(source, row, end, inside, stride_ih)
        held = row >= first0
        sums0 = add_weighed(sums0, tl.where(held, value, 0.0), weights0, row, held)
        if BOTH:
            held = row >= first1
            sums1 = add_weighed(sums1, tl.where(held, value, 0.0), weights1, row, held)
    return sums0, sums1


@triton.jit
def rolling_rows(
    source, middle, middle_row, start_h, count_h, weight_h, row, row_end, taps_h, inside,
    stride_ih, READ: tl.constexpr, UNROLL: tl.constexpr,
):  # fmt: skip
    """The weighted sums of input rows for the output rows row..row_end, stored in `middle`.

    Windows begin and end in order. Where a bilinear filter shrinks an image two of them overlap:
    when output i is finished, the window of output i + 2 begins, so every input row is read once
    and added to two sums. Rounding may let a window begin earlier, or later: these rows are
    looked at one by one. The rows that finish an output are read while the one before is summed.
    """
    dtype: tl.constexpr = weight_h.dtype.element_ty
    last = row_end - 1
    sums0 = tl.zeros([READ], dtype)
    sums1 = tl.zeros([READ], dtype)
    first0, end0 = window_of(start_h, count_h, row, last)
    first1, end1 = window_of(start_h, count_h, row + 1, last)
    first2, end2 = window_of(start_h, count_h, row + 2, last)
    done = first0
    value0, value1, value2, value3, value4, value5 = read_ahead(
        source, tl.maximum(done, first1), end0, inside, stride_ih, UNROLL
    )
    for output in range(row, row_end):
        weights0 = weight_h + output * taps_h - first0
        weights1 = weight_h + tl.minimum(output + 1, last) * taps_h - first1
        first3, end3 = window_of(start_h, count_h, output + 3, last)
        if done < tl.minimum(first1, end0):
            sums0, sums1 = add_rows(
                sums0, sums1, source, done, tl.minimum(first1, end0), inside, stride_ih,
                first0, first1, weights0, weights1, True,
            )  # fmt: skip
        # From here to `end0` both windows hold all rows.
        both = tl.maximum(done, first1)
        done = tl.maximum(done, end0)
        next0, next1, next2, next3, next4, next5 = read_ahead(
            source, tl.maximum(done, first2), end1, inside & (output < last), stride_ih, UNROLL
        )
        sums0 = add_ahead(
            sums0, value0, value1, value2, value3, value4, value5, weights0, both, end0, UNROLL
        )
        sums1 = add_ahead(
            sums1, value0, value1, value2, value3, value4, value5, weights1, both, end0, UNROLL
        )
        if both + UNROLL < end0:
            sums0, sums1 = add_rows(
                sums0, sums1, source, both + UNROLL, end0, inside, stride_ih,
                first0, first1, weights0, weights1, True,
            )  # fmt: skip
        tl.store(middle, sums0, mask=inside)
        middle += middle_row
        sums0 = sums1
        sums1 = tl.zeros([READ], dtype)
        if (output + 2 < row_end) & (first2 < done):
            weights2 = weight_h + (output + 2) * taps_h - first2
            sums1, _ = add_rows(
                sums1, sums1, source, first2, tl.minimum(done, end2), inside, stride_ih,
                first2, first2, weights2, weights2, False,
            )  # fmt: skip
        first0, end0, first1, end1, first2, end2 = first1, end1, first2, end2, first3, end3
        value0, value1, value2 = next0, next1, next2
        value3, value4, value5 = next3, next4, next5
