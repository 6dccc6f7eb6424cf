# mypy: ignore-errors
"""Sums of the height: input rows into four output rows at once, for a stretch of READ columns.

Every input row between the first and the last of their windows is read once and added to all four.
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
    right as long as all elements are finite. Where one was not, the result is 1 and nothing is
    stored: a neighbour may have stored the right sums of the same columns by then. Else it is 0.
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
    unfit = 0
    if not HELD:
        unfit = tl.max(tl.where(probe == probe, 0, 1), 0)
        inside &= unfit == 0
    if LANES > 1:
        tl.store(middle + read, sums0, mask=inside)
        tl.store(middle + (output1 - row) * middle_row + read, sums1, mask=inside)
        tl.store(middle + (output2 - row) * middle_row + read, sums2, mask=inside)
        tl.store(middle + (last_row - row) * middle_row + read, sums3, mask=inside)
    else:
        together = tl.join(tl.join(sums0, sums2), tl.join(sums1, sums3))
        place = middle + 4 * read[:, None] + tl.arange(0, 4)[None, :]
        tl.store(place, tl.reshape(together, [READ, 4]), mask=inside[:, None])
    return unfit
