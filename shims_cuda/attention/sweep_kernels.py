# mypy: ignore-errors
"""The running softmax of a tile of query rows over the keys that it may see.

Notation: i a query row of a sequence, j a key of it, `shift` what lines the two up (row i stands
at key position i + shift). Scores are kept times log2(e), so that exp2 is all that is needed.
A tile of keys is swept unmasked where every row sees all of it, and masked elsewhere; loads past
the end of a sequence are masked too, since what lies there belongs to another sequence and
0 * NaN is NaN.
"""

import triton
import triton.language as tl

UNBOUNDED = tl.constexpr(1 << 29)

# float32 operands cut into three bfloat16 numbers, 24 bits, and the six products that matter. Low
# parts below 2^-133 are lost and a number next to the largest float32 rounds to infinity; so
# queries come 2^17 times as large, keys half and weights 2^16 times as large as they are, all
# exactly. What is left shows in the results, see `strange`.
CUT = tl.constexpr("bf16x6")

# Counts that vary from call to call must not make a kernel compile again for a 1 or a multiple
# of 16.
COUNTS = ["heads", "group", "batches", "tokens_q", "tokens_k", "left", "right", "max_k"]


@triton.jit
def window_of(left, right, max_k, FLASH2: tl.constexpr):
    """The bounds of a window as numbers, UNBOUNDED for none; see `flash2_window`."""
    if FLASH2:
        left = tl.where(left >= max_k, -1, left)
        right = tl.where(right >= max_k, -1, right)
        new_left = tl.where((left < 0) & (right >= 0), max_k, left)
        right = tl.where((right < 0) & (left >= 0), max_k, right)
        left = new_left
    left = tl.where(left < 0, UNBOUNDED, tl.minimum(left, UNBOUNDED))
    right = tl.where(right < 0, UNBOUNDED, tl.minimum(right, UNBOUNDED))
    return left, right


@triton.jit
def pages_of(table, start, column, keys, PAGE: tl.constexpr, BLOCK_N: tl.constexpr):
    """The pages that hold the keys start + column: one where a page holds whole tiles, else one
    for each key, 0 for keys past the end. `start` is a multiple of BLOCK_N."""
    if PAGE == 0:
        return tl.zeros((), tl.int32)
    elif PAGE % BLOCK_N == 0:
        return tl.load(table + start // PAGE, mask=start < keys, other=0)
    else:
        token = start + column
        return tl.load(table + token // PAGE, mask=token < keys, other=0)


@triton.jit
def key_rows(
    base,
    page,
    start,
    offset,
    stride_token,
    stride_page,
    PAGE: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Addresses of the keys start + offset: (rows,) pointers to their first element.

    Packed keys lie one after the other from `base`; paged ones in pages of PAGE tokens, see
    `pages_of`.
    """
    if PAGE == 0:
        return base + tl.cast(start, tl.int64) * stride_token + offset * stride_token
    elif PAGE % BLOCK_N == 0:
        base += page.to(tl.int64) * stride_page + tl.cast(start % PAGE, tl.int64) * stride_token
        return base + offset * stride_token
    else:
        return base + page.to(tl.int64) * stride_page + (start + offset) % PAGE * stride_token


@triton.jit
def read_rows(
    row, feature, inside,
    SIZE: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr, ACROSS: tl.constexpr,
):  # fmt: skip
    """The rows that `row` points to: (rows, BLOCK), or with ACROSS (BLOCK, rows)."""
    if ACROSS:
        place = row[None, :] + feature[:, None]
        inside = inside[None, :]
        held = (feature < SIZE)[:, None]
    else:
        place = row[:, None] + feature[None, :]
        inside = inside[:, None]
        held = (feature < SIZE)[None, :]
    if MASKED:
        if SIZE == BLOCK:
            tile = tl.load(place, mask=inside, other=0.0)
        else:
            tile = tl.load(place, mask=inside & held, other=0.0)
    elif SIZE == BLOCK:
        tile = tl.load(place)
    else:
        tile = tl.load(place, mask=held, other=0.0)
    return tile


@triton.jit
def weigh(
    score, norm, best, mask_base, start, keys, row, left, right, scale, stride_mk, mask_row,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr,
):  # fmt: skip
    """One step of the running softmax: from the scores of a tile of keys to its weights, the
    factor by which earlier sums shrink, and the new `norm` and `best`."""
    column = tl.arange(0, BLOCK_N)
    inside = start + column < keys
    if MASK != 0:
        mask_ptr = mask_base + (start + column).to(tl.int64) * stride_mk
        if MASK_ROWS:
            mask_ptr = mask_ptr[None, :] + mask_row[:, None]
        else:
            mask_ptr = mask_ptr[None, :]
        if MASKED:
            mask = tl.load(mask_ptr, mask=inside[None, :], other=0)
        else:
            mask = tl.load(mask_ptr)
        if MASK == 1:
            score = tl.where(mask != 0, score * scale, float("-inf"))
        else:
            score = score * scale + mask.to(tl.float32) * 1.4426950408889634
    if MASKED:
        seen = inside[None, :]
        if LEFT:
            seen = seen & (start + column[None, :] >= row[:, None] - left)
        if RIGHT:
            seen = seen & (start + column[None, :] <= row[:, None] + right)
        score = tl.where(seen, score, float("-inf"))
    if MASK == 0:
        new_best = tl.maximum(best, tl.max(score, 1) * scale)
    else:
        new_best = tl.maximum(best, tl.max(score, 1))
    safe = new_best
    if MASKED or MASK != 0:
        # A row that has seen nothing yet: any finite number stands in for its best score.
        safe = tl.where(new_best == float("-inf"), 0.0, new_best)
    if MASK == 0:
        weight = tl.exp2(score * scale - safe[:, None])
    else:
        weight = tl.exp2(score - safe[:, None])
    shrink = tl.exp2(best - safe)
    norm = norm * shrink + tl.sum(weight, 1)
    return weight, shrink, norm, new_best


@triton.jit
def sweep(
    acc, norm, best, page, q, k_base, v_base, mask_base, table,
    lo, hi, keys, row, left, right, scale,
    stride_kt, stride_kp, stride_vt, stride_vp, stride_mk, mask_row,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr, PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the keys lo..hi to the running softmax (acc, norm, best) of a tile of rows.

    `page` are the pages of the first tile; those of the next are read a tile ahead, since copies
    that wait for another load do not overlap. `row` holds the key positions of the rows. MASKED
    says that a tile may hold keys past the end or outside the window; MASK is 0 for no mask
    tensor, 1 for a boolean, 2 for a float one.
    """
    column = tl.arange(0, BLOCK_N)
    feature = tl.arange(0, BLOCK_D)
    feature_v = tl.arange(0, BLOCK_DV)
    for start in tl.range(lo, hi, BLOCK_N):
        inside = start + column < keys
        k_row = key_rows(k_base, page, start, column, stride_kt, stride_kp, PAGE, BLOCK_N)
        k = read_rows(k_row, feature, inside, D, BLOCK_D, MASKED, True)
        if PRECISION == CUT:
            k *= 0.5
        score = tl.dot(q, k, input_precision=PRECISION)
        weight, shrink, norm, best = weigh(
            score, norm, best, mask_base, start, keys, row, left, right, scale, stride_mk,
            mask_row, BLOCK_N, MASKED, LEFT, RIGHT, MASK, MASK_ROWS,
        )  # fmt: skip
        v_row = key_rows(v_base, page, start, column, stride_vt, stride_vp, PAGE, BLOCK_N)
        v = read_rows(v_row, feature_v, inside, DV, BLOCK_DV, MASKED, False)
        if PRECISION == CUT:
            weight *= 65536.0
        if v.dtype == tl.float32 and PRECISION == "ieee":
            # One after the other onto the sum of all keys before, products in scalar units are
            # two to three times as far off; Triton would make that of a sum of two.
            part = tl.dot(weight, v, input_precision=PRECISION)
            acc = tl.fma(acc, tl.broadcast_to(shrink[:, None], acc.shape), part)
        else:
            acc = tl.dot(weight.to(v.dtype), v, acc * shrink[:, None], input_precision=PRECISION)
        page = pages_of(table, start + BLOCK_N, column, keys, PAGE, BLOCK_N)
    return acc, norm, best, page


@triton.jit
def attend(
    q, k_base, v_base, mask_base, table, page,
    begin, end, keys, first, last, row, left, right, scale,
    stride_kt, stride_kp, stride_vt, stride_vp, stride_mk, mask_row,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr, PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Weighted values, weights' sums and best scores of a tile of rows over keys begin..end.

    The rows' key positions are `row`, from `first` to `last`; `page` are the pages of the tile
    from `begin`, a multiple of BLOCK_N. Whole tiles of keys that every row sees are swept without
    masks, what lies before and after them with.
    """
    low = begin
    high = end
    all_low = begin
    all_high = end
    if LEFT:
        low = tl.maximum(begin, tl.maximum(first - left, 0) // BLOCK_N * BLOCK_N)
        all_low = tl.cdiv(tl.maximum(last - left, 0), BLOCK_N) * BLOCK_N
    if RIGHT:
        high = tl.minimum(end, tl.maximum(last + right + 1, 0))
        all_high = tl.minimum(end, tl.maximum(first + right + 1, 0))
    all_high = all_high // BLOCK_N * BLOCK_N

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    main = low
    if LEFT:
        main = tl.maximum(tl.minimum(all_low, high), low)
        page = pages_of(table, low, tl.arange(0, BLOCK_N), keys, PAGE, BLOCK_N)
        acc, norm, best, page = sweep(
            acc, norm, best, page, q, k_base, v_base, mask_base, table,
            low, main, keys, row, left, right, scale,
            stride_kt, stride_kp, stride_vt, stride_vp, stride_mk, mask_row,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, True, LEFT, RIGHT,
            MASK, MASK_ROWS, PAGE, PRECISION,
        )  # fmt: skip
    acc, norm, best, page = sweep(
        acc, norm, best, page, q, k_base, v_base, mask_base, table,
        main, all_high, keys, row, left, right, scale,
        stride_kt, stride_kp, stride_vt, stride_vp, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, False, LEFT, RIGHT,
        MASK, MASK_ROWS, PAGE, PRECISION,
    )  # fmt: skip
    acc, norm, best, page = sweep(
        acc, norm, best, page, q, k_base, v_base, mask_base, table,
        tl.maximum(all_high, main), high, keys, row, left, right, scale,
        stride_kt, stride_kp, stride_vt, stride_vp, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, True, LEFT, RIGHT,
        MASK, MASK_ROWS, PAGE, PRECISION,
    )  # fmt: skip
    return acc, norm, best


@triton.jit
def normalised(acc, norm, dtype: tl.constexpr):
    """The sums over their weights' total; a row without weights stays 0.

    A division for each element takes a tenth of a short sequence's time. A product with the
    inverse is 2^-23 off at most, which rounding to half types hides; float32 divides.
    """
    norm = tl.where(norm == 0.0, 1.0, norm)
    if dtype == tl.float32:
        return acc / norm[:, None]
    else:
        return acc * (1.0 / norm)[:, None]


@triton.jit
def strange(acc, norm, present):
    """Whether results by products of CUT operands need IEEE products to be right: 0 or 1.

    That is so where one of those `present` is not finite, as infinite or huge operands leave
    nothing finite in a row, or is 0 or tiny, as it may be made of values whose low parts were
    lost. A row that is masked out entirely is 0 too.
    """
    size = tl.abs(normalised(acc, norm, tl.float32))
    held = (size > 8.077935669463161e-28) & (size < float("inf"))  # 2^-90
    return tl.max(tl.max(tl.where(held | ~present, 0, 1), 1), 0)


@triton.jit
def log_sum(best, norm):
    """The natural log-sum-exp of a row; +inf for one without keys, as flash attention 2 has it."""
    total = best * 0.6931471805599453 + tl.log(norm)
    return tl.where((norm == 0.0) | (best == float("inf")), float("inf"), total)
