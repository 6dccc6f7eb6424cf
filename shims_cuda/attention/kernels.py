# mypy: ignore-errors
"""The Triton kernels of attention: a plan over packed sequences, the forward sweep, split keys.

Notation: i a query row of a sequence, j a key of it, `shift` what lines the two up (row i stands
at key position i + shift). Scores are kept times log2(e), so that exp2 is all that is needed.
A tile of keys is swept unmasked where every row sees all of it, and masked elsewhere; loads past
the end of a sequence are masked too, since what lies there belongs to another sequence and
0 * NaN is NaN.
"""

import triton
import triton.language as tl

UNBOUNDED = tl.constexpr(1 << 29)

# Counts that vary from call to call must not make a kernel compile again for a 1 or a multiple
# of 16.
COUNTS = ["heads", "group", "batches", "tokens_q", "tokens_k", "left", "right", "max_k"]


@triton.jit
def sequence_bounds(cu, index, tokens):
    """Begin and end of slot `index` of `cu`, inside [0, tokens] whatever `cu` holds."""
    begin = tl.load(cu + index).to(tl.int32)
    end = tl.load(cu + index + 1).to(tl.int32)
    begin = tl.minimum(tl.maximum(begin, 0), tokens)
    return begin, tl.minimum(tl.maximum(end, begin), tokens)


@triton.jit
def slot_bounds(cu, slot, sequences, tokens):
    """Begin and end of the query tokens of `slot`: slot 0 is what lies before the first
    sequence, slot n the n-th one, and slot sequences + 1 what lies past the last."""
    begin = tl.load(cu + slot - 1, mask=(slot > 0) & (slot <= sequences + 1), other=0)
    end = tl.load(cu + slot, mask=slot <= sequences, other=2147483647)
    begin = tl.minimum(tl.maximum(begin.to(tl.int32), 0), tokens)
    end = tl.minimum(end, 2147483647).to(tl.int32)
    return begin, tl.minimum(tl.maximum(end, begin), tokens)


@triton.jit
def slot_keys(
    cu_k, used_k, slot, sequences, tokens_k, USED: tl.constexpr, PAGED: tl.constexpr
):  # fmt: skip
    """First key and number of keys of each slot; none for the two that are no sequences."""
    real = (slot > 0) & (slot <= sequences)
    if PAGED:
        begin = tl.where(real, 0, 0)
        keys = tl.where(real, tokens_k, 0)
    else:
        begin = tl.load(cu_k + slot - 1, mask=real, other=0).to(tl.int32)
        end = tl.load(cu_k + slot, mask=real, other=0).to(tl.int32)
        begin = tl.minimum(tl.maximum(begin, 0), tokens_k)
        keys = tl.minimum(tl.maximum(end, begin), tokens_k) - begin
    if USED:
        used = tl.load(used_k + slot - 1, mask=real, other=0).to(tl.int32)
        keys = tl.minimum(tl.maximum(used, 0), keys)
    return begin, keys


@triton.jit(do_not_specialize=["sequences", "tokens_q", "tokens_k"])
def plan_kernel(
    cu_q, cu_k, used_k, plan, sequences, tokens_q, tokens_k,
    BLOCK_M: tl.constexpr, SLOTS: tl.constexpr, WIDE: tl.constexpr, USED: tl.constexpr,
    PAGED: tl.constexpr,
):  # fmt: skip
    """Deal the query tiles of all sequences out, those with the most keys first.

    plan[0] is the number of tiles; tile t has the eight numbers from plan[8 + 8 t]: first tile
    and number of tiles of its slot, first row, rows, first key, keys, sequence. Each program
    places SLOTS slots by counting the tiles of all slots that come before them.
    """
    slot = tl.program_id(0) * SLOTS + tl.arange(0, SLOTS)
    slots = sequences + 2
    begin, end = slot_bounds(cu_q, slot, sequences, tokens_q)
    tiles = tl.where(slot < slots, tl.cdiv(end - begin, BLOCK_M), 0)
    key_begin, keys = slot_keys(cu_k, used_k, slot, sequences, tokens_k, USED, PAGED)
    first = tl.zeros([SLOTS], tl.int32)
    total = 0
    for start in range(0, slots, SLOTS):
        other = start + tl.arange(0, SLOTS)
        other_begin, other_end = slot_bounds(cu_q, other, sequences, tokens_q)
        other_tiles = tl.where(other < slots, tl.cdiv(other_end - other_begin, BLOCK_M), 0)
        _, other_keys = slot_keys(cu_k, used_k, other, sequences, tokens_k, USED, PAGED)
        earlier = (other_keys[None, :] > keys[:, None]) | (
            (other_keys[None, :] == keys[:, None]) & (other[None, :] < slot[:, None])
        )
        first += tl.sum(tl.where(earlier, other_tiles[None, :], 0), 1)
        total += tl.sum(other_tiles, 0)
    if tl.program_id(0) == 0:
        tl.store(plan, total)
    for start in range(0, tl.max(tiles, 0), WIDE):
        tile = start + tl.arange(0, WIDE)
        inside = tile[None, :] < tiles[:, None]
        record = plan + 8 + 8 * (first[:, None] + tile[None, :])
        tl.store(record, tl.broadcast_to(first[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 1, tl.broadcast_to(tiles[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 2, tl.broadcast_to(begin[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 3, tl.broadcast_to((end - begin)[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 4, tl.broadcast_to(key_begin[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 5, tl.broadcast_to(keys[:, None], [SLOTS, WIDE]), mask=inside)
        tl.store(record + 6, tl.broadcast_to((slot - 1)[:, None], [SLOTS, WIDE]), mask=inside)


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
def key_rows(
    base,
    table,
    start,
    offset,
    keys,
    stride_token,
    stride_page,
    PAGE: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Addresses of the keys start + offset: (rows,) pointers to their first element.

    Packed keys lie one after the other from `base`; paged ones in pages of PAGE tokens, found
    through `table`.
    """
    if PAGE == 0:
        return base + tl.cast(start, tl.int64) * stride_token + offset * stride_token
    else:
        token = start + offset
        if MASKED:
            page = tl.load(table + token // PAGE, mask=token < keys, other=0)
        else:
            page = tl.load(table + token // PAGE)
        return base + page.to(tl.int64) * stride_page + (token % PAGE) * stride_token


@triton.jit
def sweep(
    acc, norm, best, q, k_base, v_base, mask_base, table,
    lo, hi, keys, row, left, right, scale,
    stride_kt, stride_kp, stride_vt, stride_vp, stride_mk, mask_row,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_N: tl.constexpr, MASKED: tl.constexpr, LEFT: tl.constexpr, RIGHT: tl.constexpr,
    MASK: tl.constexpr, MASK_ROWS: tl.constexpr, PAGE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """Add the keys lo..hi to the running softmax (acc, norm, best) of a tile of rows.

    `row` holds the key positions of the rows. MASKED says that a tile may hold keys past the
    end or outside the window; MASK is 0 for no mask tensor, 1 for a boolean, 2 for a float one.
    """
    column = tl.arange(0, BLOCK_N)
    feature = tl.arange(0, BLOCK_D)
    feature_v = tl.arange(0, BLOCK_DV)
    for start in tl.range(lo, hi, BLOCK_N):
        inside = start + column < keys
        k_row = key_rows(k_base, table, start, column, keys, stride_kt, stride_kp, PAGE, MASKED)
        k_ptr = k_row[None, :] + feature[:, None]
        if MASKED:
            if D == BLOCK_D:
                k = tl.load(k_ptr, mask=inside[None, :], other=0.0)
            else:
                k = tl.load(k_ptr, mask=inside[None, :] & (feature < D)[:, None], other=0.0)
        elif D == BLOCK_D:
            k = tl.load(k_ptr)
        else:
            k = tl.load(k_ptr, mask=(feature < D)[:, None], other=0.0)
        score = tl.dot(q, k, input_precision=PRECISION)
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
        acc = acc * shrink[:, None]
        best = new_best
        v_row = key_rows(v_base, table, start, column, keys, stride_vt, stride_vp, PAGE, MASKED)
        v_ptr = v_row[:, None] + feature_v[None, :]
        if MASKED:
            if DV == BLOCK_DV:
                v = tl.load(v_ptr, mask=inside[:, None], other=0.0)
            else:
                v = tl.load(v_ptr, mask=inside[:, None] & (feature_v < DV)[None, :], other=0.0)
        elif DV == BLOCK_DV:
            v = tl.load(v_ptr)
        else:
            v = tl.load(v_ptr, mask=(feature_v < DV)[None, :], other=0.0)
        acc = tl.dot(weight.to(v.dtype), v, acc, input_precision=PRECISION)
    return acc, norm, best


@triton.jit
def tile_of(
    plan, program, heads, tokens_q, tokens_k,
    VARLEN: tl.constexpr, BLOCK_M: tl.constexpr, SWEEP: tl.constexpr,
):  # fmt: skip
    """What program `program` works on: sequence (or batch), head, first row of the tile, first
    row and rows of the sequence, first key and keys.

    Heads go in groups of SWEEP; inside a group the tiles go from the last to the first (under a
    causal mask the last is the longest), all heads of the group for each.
    """
    if VARLEN:
        record = plan + 8 + 8 * (program // heads)
        first = tl.load(record)
        tiles = tl.maximum(tl.load(record + 1), 1)
        begin = tl.load(record + 2)
        rows = tl.load(record + 3)
        key_begin = tl.load(record + 4)
        keys = tl.load(record + 5)
        sequence = tl.load(record + 6)
        rest = program - first * heads
    else:
        tiles = tl.cdiv(tokens_q, BLOCK_M)
        sequence = program // (tiles * heads)
        rest = program % (tiles * heads)
        begin = sequence * 0
        rows = tokens_q
        key_begin = sequence * 0
        keys = tokens_k
    group = rest // (tiles * SWEEP)
    rest = rest % (tiles * SWEEP)
    head = group * SWEEP + rest % SWEEP
    tile = (tiles - 1 - rest // SWEEP) * BLOCK_M
    return sequence, head, tile, begin, rows, key_begin, keys


@triton.jit(do_not_specialize=COUNTS)
def forward_kernel(
    query, key, value, out, lse, mask, plan, table,
    scale, heads, group, batches, tokens_q, tokens_k, left, right, max_k,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    stride_mb, stride_mh, stride_mq, stride_mk, stride_table, stride_lse,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SWEEP: tl.constexpr, VARLEN: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, FLASH2: tl.constexpr,
    PAGE: tl.constexpr, MASK: tl.constexpr, MASK_ROWS: tl.constexpr, LSE: tl.constexpr,
    NEGATE: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M query rows of one head of one sequence against all keys it may see."""
    # A compiler may hand a float over in double precision.
    scale = tl.cast(scale, tl.float32)
    program = tl.program_id(0)
    # Before the check, so that its load and theirs are under way together; a record past the
    # last one is garbage that nothing uses.
    sequence, head, tile, begin, rows, key_begin, keys = tile_of(
        plan, program, heads, tokens_q, tokens_k, VARLEN, BLOCK_M, SWEEP
    )
    if VARLEN:
        tiles = tl.load(plan)
    else:
        tiles = tl.cdiv(tokens_q, BLOCK_M) * batches
    if program >= tiles * heads:
        return
    head_k = head // group
    if VARLEN:
        shift = keys - rows
        batch = sequence.to(tl.int64) * 0
        if PAGE != 0:
            table += sequence.to(tl.int64) * stride_table
    else:
        shift = 0
        batch = sequence.to(tl.int64)
    if LEFT or RIGHT:
        left, right = window_of(left, right, max_k, FLASH2)

    row = tile + tl.arange(0, BLOCK_M)
    feature = tl.arange(0, BLOCK_D)
    feature_v = tl.arange(0, BLOCK_DV)
    present = row < rows
    token = begin + tile
    q_base = (
        query + batch * stride_qb + token.to(tl.int64) * stride_qt + head.to(tl.int64) * stride_qh
    )
    q_ptr = q_base + tl.arange(0, BLOCK_M)[:, None] * stride_qt + feature[None, :]
    q = tl.load(q_ptr, mask=present[:, None] & (feature < D)[None, :], other=0.0)
    if NEGATE:
        q = -q
    k_base = key + batch * stride_kb + head_k.to(tl.int64) * stride_kh
    v_base = value + batch * stride_vb + head_k.to(tl.int64) * stride_vh
    if PAGE == 0:
        k_base += key_begin.to(tl.int64) * stride_kt
        v_base += key_begin.to(tl.int64) * stride_vt
    mask_base = mask
    mask_row = tl.minimum(row, rows - 1).to(tl.int64) * stride_mq
    if MASK != 0:
        mask_base += batch * stride_mb + head.to(tl.int64) * stride_mh

    # Keys that some row sees: [low, high). Keys that all rows see: [all_low, all_high), whole
    # tiles of them.
    first = tile + shift
    last = tl.minimum(tile + BLOCK_M, rows) - 1 + shift
    low = 0
    all_low = 0
    high = keys
    all_high = keys
    if LEFT:
        low = tl.maximum(first - left, 0) // BLOCK_N * BLOCK_N
        all_low = tl.cdiv(tl.maximum(last - left, 0), BLOCK_N) * BLOCK_N
    if RIGHT:
        high = tl.minimum(tl.maximum(last + right + 1, 0), keys)
        all_high = tl.minimum(tl.maximum(first + right + 1, 0), keys)
    all_high = all_high // BLOCK_N * BLOCK_N

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    position = row + shift
    main = low
    if LEFT:
        main = tl.minimum(all_low, high)
        acc, norm, best = sweep(
            acc, norm, best, q, k_base, v_base, mask_base, table,
            low, main, keys, position, left, right, scale,
            stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, True, LEFT, RIGHT,
            MASK, MASK_ROWS, PAGE, PRECISION,
        )  # fmt: skip
    acc, norm, best = sweep(
        acc, norm, best, q, k_base, v_base, mask_base, table,
        main, all_high, keys, position, left, right, scale,
        stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, False, LEFT, RIGHT,
        MASK, MASK_ROWS, PAGE, PRECISION,
    )  # fmt: skip
    acc, norm, best = sweep(
        acc, norm, best, q, k_base, v_base, mask_base, table,
        tl.maximum(all_high, main), high, keys, position, left, right, scale,
        stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, True, LEFT, RIGHT,
        MASK, MASK_ROWS, PAGE, PRECISION,
    )  # fmt: skip

    acc = normalised(acc, norm, out.dtype.element_ty)
    out_base = (
        out + batch * stride_ob + token.to(tl.int64) * stride_ot + head.to(tl.int64) * stride_oh
    )
    out_ptr = out_base + tl.arange(0, BLOCK_M)[:, None] * stride_ot + feature_v[None, :]
    tl.store(
        out_ptr, acc.to(out.dtype.element_ty), mask=present[:, None] & (feature_v < DV)[None, :]
    )
    if LSE:
        total = log_sum(best, norm)
        tl.store(lse + head.to(tl.int64) * stride_lse + begin + row, total, mask=present)


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
def log_sum(best, norm):
    """The natural log-sum-exp of a row; +inf for one without keys, as flash attention 2 has it."""
    total = best * 0.6931471805599453 + tl.log(norm)
    return tl.where((norm == 0.0) | (best == float("inf")), float("inf"), total)


@triton.jit
def keys_of(
    cu_k, used_k, table, sequence, tokens_k, stride_table,
    USED: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """First key and number of keys of a sequence, and its row of the page table."""
    if PAGE == 0:
        key_begin, key_end = sequence_bounds(cu_k, sequence, tokens_k)
        keys = key_end - key_begin
    else:
        key_begin = sequence * 0
        keys = tokens_k
        table += sequence.to(tl.int64) * stride_table
    if USED:
        keys = tl.minimum(tl.maximum(tl.load(used_k + sequence).to(tl.int32), 0), keys)
    return key_begin, keys, table


@triton.jit(do_not_specialize=[*COUNTS, "sequences", "total_rows"])
def split_kernel(
    query, key, value, part, part_lse, mask, cu_q, cu_k, used_k, table,
    scale, heads, group, sequences, tokens_q, tokens_k, left, right, max_k,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_mb, stride_mh, stride_mq, stride_mk,
    stride_table, total_rows,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CHUNK: tl.constexpr, VARLEN: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, FLASH2: tl.constexpr, USED: tl.constexpr,
    PAGE: tl.constexpr, MASK: tl.constexpr, MASK_ROWS: tl.constexpr, NEGATE: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """Few query rows against CHUNK keys: the queries of all heads that share a key head.

    Writes the chunk's normalised result and its log2-sum-exp2 to row (chunk, token, head) of
    `part` and `part_lse`; a row that sees no key of the chunk gets -inf and no result. The chunks
    of a sequence do not depend on the rest of the batch.
    """
    scale = tl.cast(scale, tl.float32)
    chunk = tl.program_id(1)
    kv_heads = heads // group
    sequence = tl.program_id(0) // kv_heads
    head_k = tl.program_id(0) % kv_heads
    if sequence >= sequences:
        return
    if VARLEN:
        begin, end = sequence_bounds(cu_q, sequence, tokens_q)
        rows = end - begin
        key_begin, keys, table = keys_of(
            cu_k, used_k, table, sequence, tokens_k, stride_table, USED, PAGE
        )
        shift = keys - rows
        batch = sequence.to(tl.int64) * 0
        first_token = begin
    else:
        begin = sequence * 0
        rows = tokens_q
        key_begin = sequence * 0
        keys = tokens_k
        shift = 0
        batch = sequence.to(tl.int64)
        first_token = sequence * tokens_q
    if LEFT or RIGHT:
        left, right = window_of(left, right, max_k, FLASH2)

    item = tl.arange(0, BLOCK_M)
    row = item // group
    head = head_k * group + item % group
    present = row < rows
    feature = tl.arange(0, BLOCK_D)
    feature_v = tl.arange(0, BLOCK_DV)
    token = (begin + row).to(tl.int64)
    q_row = query + batch * stride_qb + token * stride_qt + head.to(tl.int64) * stride_qh
    q = tl.load(
        q_row[:, None] + feature[None, :],
        mask=present[:, None] & (feature < D)[None, :],
        other=0.0,
    )
    if NEGATE:
        q = -q
    k_base = key + batch * stride_kb + head_k.to(tl.int64) * stride_kh
    v_base = value + batch * stride_vb + head_k.to(tl.int64) * stride_vh
    if PAGE == 0:
        k_base += key_begin.to(tl.int64) * stride_kt
        v_base += key_begin.to(tl.int64) * stride_vt
    mask_base = mask
    mask_row = tl.minimum(row, rows - 1).to(tl.int64) * stride_mq
    if MASK != 0:
        mask_base += batch * stride_mb
        if MASK_ROWS:
            mask_row += head.to(tl.int64) * stride_mh
        else:
            mask_base += (head_k * group).to(tl.int64) * stride_mh

    low = chunk * CHUNK
    high = tl.minimum(low + CHUNK, keys)
    all_high = high
    all_low = low
    if LEFT:
        low = tl.maximum(low, tl.maximum(shift - left, 0) // BLOCK_N * BLOCK_N)
        all_low = tl.cdiv(tl.maximum(rows - 1 + shift - left, 0), BLOCK_N) * BLOCK_N
    if RIGHT:
        high = tl.minimum(high, tl.maximum(rows + shift + right, 0))
        all_high = tl.minimum(all_high, tl.maximum(shift + right + 1, 0))
    all_high = all_high // BLOCK_N * BLOCK_N

    best = tl.full([BLOCK_M], float("-inf"), tl.float32)
    norm = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_DV], tl.float32)
    position = row + shift
    main = low
    if LEFT:
        main = tl.maximum(tl.minimum(all_low, high), low)
        acc, norm, best = sweep(
            acc, norm, best, q, k_base, v_base, mask_base, table,
            low, main, keys, position, left, right, scale,
            stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
            D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, True, LEFT, RIGHT,
            MASK, MASK_ROWS, PAGE, PRECISION,
        )  # fmt: skip
    acc, norm, best = sweep(
        acc, norm, best, q, k_base, v_base, mask_base, table,
        main, all_high, keys, position, left, right, scale,
        stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, False, LEFT, RIGHT,
        MASK, MASK_ROWS, PAGE, PRECISION,
    )  # fmt: skip
    acc, norm, best = sweep(
        acc, norm, best, q, k_base, v_base, mask_base, table,
        tl.maximum(all_high, main), high, keys, position, left, right, scale,
        stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_N, True, LEFT, RIGHT,
        MASK, MASK_ROWS, PAGE, PRECISION,
    )  # fmt: skip

    place = chunk.to(tl.int64) * total_rows + (first_token + row).to(tl.int64) * heads + head
    seen = present & (norm != 0.0)
    acc = acc / tl.where(norm == 0.0, 1.0, norm)[:, None]
    tl.store(
        part + place[:, None] * DV + feature_v[None, :],
        acc,
        mask=seen[:, None] & (feature_v < DV)[None, :],
    )
    log2_sum = tl.where(best == float("inf"), best, best + tl.log2(norm))
    tl.store(part_lse + place, tl.where(norm == 0.0, float("-inf"), log2_sum), mask=present)


@triton.jit(do_not_specialize=["chunks", "sequences", "heads", "tokens", "total_rows"])
def merge_kernel(
    part, part_lse, out, lse, cu_q, chunks, sequences, heads, tokens, total_rows,
    stride_ob, stride_ot, stride_oh, stride_lse,
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, ROWS: tl.constexpr, VARLEN: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    """Weigh the chunks of ROWS rows (token, head) by their log-sums and add them up.

    `tokens` is how many a batch holds, all of them where they are packed. Tokens of no sequence
    get 0.
    """
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    feature = tl.arange(0, BLOCK_DV)
    inside = row < total_rows
    real = inside
    token = row // heads
    head = row % heads
    if VARLEN:
        real = inside & (token >= tl.load(cu_q)) & (token < tl.load(cu_q + sequences))
    best = tl.full([ROWS], float("-inf"), tl.float32)
    norm = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, BLOCK_DV], tl.float32)
    for chunk in range(0, chunks):
        place = tl.cast(chunk, tl.int64) * total_rows + row
        log2_sum = tl.load(part_lse + place, mask=real, other=float("-inf"))
        seen = log2_sum != float("-inf")
        value = tl.load(
            part + place[:, None] * DV + feature[None, :],
            mask=seen[:, None] & (feature < DV)[None, :],
            other=0.0,
        )
        new_best = tl.maximum(best, log2_sum)
        safe = tl.where(new_best == float("-inf"), 0.0, new_best)
        shrink = tl.exp2(best - safe)
        weight = tl.exp2(log2_sum - safe)
        norm = norm * shrink + weight
        acc = acc * shrink[:, None] + value * weight[:, None]
        best = new_best
    acc = acc / tl.where(norm == 0.0, 1.0, norm)[:, None]
    out_row = out + (token // tokens).to(tl.int64) * stride_ob
    out_row += (token % tokens).to(tl.int64) * stride_ot + head.to(tl.int64) * stride_oh
    out_ptr = out_row[:, None] + feature[None, :]
    tl.store(out_ptr, acc.to(out.dtype.element_ty), mask=inside[:, None] & (feature < DV)[None, :])
    if LSE:
        total = log_sum(best, norm)
        tl.store(lse + head.to(tl.int64) * stride_lse + token, total, mask=inside)
