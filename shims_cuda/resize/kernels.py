# mypy: ignore-errors
"""The Triton kernel of an antialiased resize: the sums of the height, then those of the width.

An image is planes of rows of elements that lie one after the other: (N C) planes of W elements a
row, or, channels last, N planes of W times C, whose neighbours along the width are `step` = C
elements apart.
"""

import triton
import triton.language as tl

from .row_kernels import four_rows

COUNTS = [
    *("planes", "channels", "target_h", "target_w", "taps_h", "taps_w"),
    *("row_blocks", "column_blocks", "columns"),
]


@triton.jit(do_not_specialize=COUNTS)
def resize_kernel(
    image, middle, out, start_h, count_h, weight_h, start_w, count_w, weight_w,
    planes, channels, target_h, target_w, taps_h, taps_w, step,
    row_blocks, column_blocks, columns,
    stride_in, stride_ic, stride_ih, middle_row, pitch_w, stride_on, stride_oc, stride_oh,
    UNROLL: tl.constexpr, READ: tl.constexpr, WRITE: tl.constexpr, VECTOR: tl.constexpr,
    LANES: tl.constexpr,
):  # fmt: skip
    """`columns` (at most WRITE) output elements of four output rows of a plane.

    Every input row is read once, READ elements at a time, and added to the output rows that hold
    it. The sums go through `middle`, four rows of `middle_row` columns, to the threads that sum a
    window of the width. A neighbour that needs the same element stores the same sums: every
    program stores each of its columns once, only when it knows that no row outside a window
    counts in it.

    Windows begin anywhere, so one load for each element of them would take a cache line for
    three or four threads. Neighbours along the width (LANES > 1) are read LANES at once, from a
    multiple of LANES on; where channels lie between them, the four rows lie side by side.
    """
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

    row_end = tl.minimum(row + 4, target_h)
    last_pixel = (column_end - 1) // step
    low = tl.load(start_w + column // step) * step
    high = (tl.load(start_w + last_pixel) + tl.load(count_w + last_pixel)) * step
    # Whole vectors: rows are multiples of them.
    low = low // VECTOR * VECTOR
    high = tl.cdiv(high, VECTOR) * VECTOR
    for begin in range(low, high, READ):
        read = begin + tl.arange(0, READ)
        unfit = four_rows(
            source, middle, middle_row, start_h, count_h, weight_h, row, row_end - 1, taps_h,
            read, high, stride_ih, UNROLL, READ, LANES, False,
        )  # fmt: skip
        if unfit != 0:
            four_rows(
                source, middle, middle_row, start_h, count_h, weight_h, row, row_end - 1,
                taps_h, read, high, stride_ih, UNROLL, READ, LANES, True,
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
    # A pointer for every row, although rows share weights: so both loads have one layout.
    weights = weight_w + pixel * pitch_w + lane + tl.zeros_like(line)
    if LANES > 1:
        place = middle + line * middle_row + first // LANES * LANES + lane
        stride = 1
    else:
        place = middle + (first * step + element % step) * 4 + line + lane
        stride = 4 * step
    sum_windows(
        place, weights, result, row, target_h, column, column_end, inside,
        lead, count, taps_w, stride, stride_oh, WRITE, LANES,
    )  # fmt: skip


@triton.jit
def sum_windows(
    place, weights, result, row, bottom, column, column_end, inside, lead, count, taps_w, stride,
    stride_oh, WRITE: tl.constexpr, LANES: tl.constexpr,
):  # fmt: skip
    """Sum windows of the width for four output rows, LANES elements at once, and store them."""
    line = tl.arange(0, 4)[:, None, None]
    lane = tl.arange(0, LANES)[None, None, :]
    present = inside & (row + line < bottom)
    total = tl.zeros([4, WRITE, LANES], place.dtype.element_ty)
    for begin in range(0, taps_w + LANES - 1, 2 * LANES):
        for more in tl.static_range(2):
            tap = begin + more * LANES
            some = present & (tap < lead + count)
            weight = tl.load(weights + tap, mask=some, other=0.0)
            value = tl.load(place + tap * stride, mask=some, other=0.0)
            held = (tap + lane >= lead) & (tap + lane < lead + count)
            total += tl.where(held, value, 0.0) * weight
    output = row + tl.arange(0, 4)[:, None]
    element = column + tl.arange(0, WRITE)[None, :]
    to = result + output.to(tl.int64) * stride_oh + element
    total = tl.sum(total, 2).to(result.dtype.element_ty)
    tl.store(to, total, mask=(output < bottom) & (element < column_end))
