# mypy: ignore-errors
"""Few query rows against many keys: chunks of keys side by side, then their weighted sum."""

import triton
import triton.language as tl

from .plan_kernels import keys_of, sequence_bounds
from .sweep_kernels import COUNTS, attend, log_sum, normalised, pages_of, window_of


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
    PRECISION: tl.constexpr, STRIDE_K: tl.constexpr, STRIDE_V: tl.constexpr,
):  # fmt: skip
    """Few query rows against CHUNK keys: the queries of all heads that share a key head.

    Writes the chunk's normalised result and its log2-sum-exp2 to row (chunk, token, head) of
    `part` and `part_lse`; a row that sees no key of the chunk gets -inf and no result. The chunks
    of a sequence do not depend on the rest of the batch.
    """
    scale = tl.cast(scale, tl.float32)
    # Known strides turn the addresses of a tile into one pointer and constants.
    if STRIDE_K != 0:
        stride_kt = STRIDE_K
    if STRIDE_V != 0:
        stride_vt = STRIDE_V
    chunk = tl.program_id(1)
    kv_heads = heads // group
    sequence = tl.program_id(0) // kv_heads
    head_k = tl.program_id(0) % kv_heads
    if sequence >= sequences:
        return
    if VARLEN:
        begin, end = sequence_bounds(
            tl.load(cu_q + sequence), tl.load(cu_q + sequence + 1), tokens_q
        )
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
    low = chunk * CHUNK
    tl.static_assert(CHUNK % BLOCK_N == 0, "chunks hold whole tiles")
    page = pages_of(table, low, tl.arange(0, BLOCK_N), keys, PAGE, BLOCK_N)
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

    acc, norm, best = attend(
        q, k_base, v_base, mask_base, table, page,
        low, tl.minimum(low + CHUNK, keys), keys, shift, rows - 1 + shift, row + shift,
        left, right, scale, stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, LEFT, RIGHT, MASK, MASK_ROWS, PAGE,
        PRECISION,
    )  # fmt: skip

    place = chunk.to(tl.int64) * total_rows + (first_token + row).to(tl.int64) * heads + head
    seen = present & (norm != 0.0)
    acc = normalised(acc, norm, query.dtype.element_ty)
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
    DV: tl.constexpr, BLOCK_DV: tl.constexpr, CHUNKS: tl.constexpr, VARLEN: tl.constexpr,
    LSE: tl.constexpr,
):  # fmt: skip
    """Weigh the chunks of one row (token, head) by their log-sums and add them up.

    CHUNKS at a time: their loads depend on nothing, since one after the other they would take
    longer than the chunks themselves. `tokens` is how many a batch holds, all of them where they
    are packed. Tokens of no sequence get 0.
    """
    row = tl.program_id(0)
    feature = tl.arange(0, BLOCK_DV)
    real = row < total_rows
    token = row // heads
    head = row % heads
    if VARLEN:
        real = real & (token >= tl.load(cu_q)) & (token < tl.load(cu_q + sequences))
    best = tl.full((), float("-inf"), tl.float32)
    norm = tl.zeros((), tl.float32)
    acc = tl.zeros([BLOCK_DV], tl.float32)
    for start in range(0, chunks, CHUNKS):
        chunk = start + tl.arange(0, CHUNKS)
        place = chunk.to(tl.int64) * total_rows + row
        there = (chunk < chunks) & (row < total_rows)
        log2_sum = tl.load(part_lse + place, mask=there, other=float("-inf"))
        value = tl.load(
            part + place[:, None] * DV + feature[None, :],
            mask=there[:, None] & (feature < DV)[None, :],
            other=0.0,
        )
        # Nothing was written where no key was seen, nor for tokens of no sequence.
        log2_sum = tl.where(real, log2_sum, float("-inf"))
        value = tl.where((log2_sum != float("-inf"))[:, None], value, 0.0)
        new_best = tl.maximum(best, tl.max(log2_sum, 0))
        safe = tl.where(new_best == float("-inf"), 0.0, new_best)
        shrink = tl.exp2(best - safe)
        weight = tl.exp2(log2_sum - safe)
        norm = norm * shrink + tl.sum(weight, 0)
        acc = acc * shrink + tl.sum(value * weight[:, None], 0)
        best = new_best
    acc = acc / tl.where(norm == 0.0, 1.0, norm)
    out_row = out + (token // tokens).to(tl.int64) * stride_ob
    out_row += (token % tokens).to(tl.int64) * stride_ot + head.to(tl.int64) * stride_oh
    held = (row < total_rows) & (feature < DV)
    tl.store(out_row + feature, acc.to(out.dtype.element_ty), mask=held)
    if LSE:
        total = log_sum(best, norm)
        tl.store(lse + head.to(tl.int64) * stride_lse + token, total, mask=row < total_rows)
