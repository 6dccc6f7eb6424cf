# mypy: ignore-errors
"""The forward kernel: one program a tile of query rows of one head, all keys that it sees."""

import triton
import triton.language as tl

from .sweep_kernels import COUNTS, CUT, attend, log_sum, normalised, pages_of, strange, window_of


@triton.jit
def tile_of(rest, tiles, BLOCK_M: tl.constexpr, SWEEP: tl.constexpr):
    """Head and first row of what the program `rest` of a sequence with so many tiles works on.

    Heads go in groups of SWEEP; inside a group the tiles go from the last to the first (under a
    causal mask the last is the longest), all heads of the group for each.
    """
    group = rest // (tiles * SWEEP)
    rest = rest % (tiles * SWEEP)
    return group * SWEEP + rest % SWEEP, (tiles - 1 - rest // SWEEP) * BLOCK_M


@triton.jit(do_not_specialize=COUNTS)
def forward_kernel(
    query, key, value, out, lse, mask, plan, table, again,
    scale, heads, group, batches, tokens_q, tokens_k, left, right, max_k,
    stride_qb, stride_qt, stride_qh, stride_kb, stride_kt, stride_kh,
    stride_vb, stride_vt, stride_vh, stride_ob, stride_ot, stride_oh,
    stride_mb, stride_mh, stride_mq, stride_mk, stride_table, stride_lse,
    D: tl.constexpr, DV: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_DV: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, SWEEP: tl.constexpr, VARLEN: tl.constexpr,
    LEFT: tl.constexpr, RIGHT: tl.constexpr, FLASH2: tl.constexpr,
    PAGE: tl.constexpr, MASK: tl.constexpr, MASK_ROWS: tl.constexpr, LSE: tl.constexpr,
    NEGATE: tl.constexpr, PRECISION: tl.constexpr, STRIDE_K: tl.constexpr,
    STRIDE_V: tl.constexpr, AGAIN: tl.constexpr,
):  # fmt: skip
    """One tile of BLOCK_M query rows of one head of one sequence against all keys it may see.

    `again` says which programs are to run again with IEEE products: this launch writes it where
    PRECISION is CUT, and goes by it with AGAIN.
    """
    # A compiler may hand a float over in double precision.
    scale = tl.cast(scale, tl.float32)
    # Known strides turn the addresses of a tile into one pointer and constants.
    if STRIDE_K != 0:
        stride_kt = STRIDE_K
    if STRIDE_V != 0:
        stride_vt = STRIDE_V
    program = tl.program_id(0)
    # Before the check, so that its load and theirs are under way together; a record past the
    # last one is garbage that nothing uses.
    # The loads stand here, not in a helper: Inductor would take `plan` for written.
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
        all_tiles = tl.load(plan)
    else:
        tiles = tl.cdiv(tokens_q, BLOCK_M)
        sequence = program // (tiles * heads)
        rest = program % (tiles * heads)
        begin = sequence * 0
        rows = tokens_q
        key_begin = sequence * 0
        keys = tokens_k
        all_tiles = tiles * batches
    head, tile = tile_of(rest, tiles, BLOCK_M, SWEEP)
    if program >= all_tiles * heads:
        return
    if AGAIN:
        if tl.load(again + program) == 0:
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
    if PRECISION == CUT:
        q *= 131072.0
        scale *= 1.52587890625e-05
    k_base = key + batch * stride_kb + head_k.to(tl.int64) * stride_kh
    v_base = value + batch * stride_vb + head_k.to(tl.int64) * stride_vh
    if PAGE == 0:
        k_base += key_begin.to(tl.int64) * stride_kt
        v_base += key_begin.to(tl.int64) * stride_vt
    mask_base = mask
    mask_row = tl.minimum(row, rows - 1).to(tl.int64) * stride_mq
    if MASK != 0:
        mask_base += batch * stride_mb + head.to(tl.int64) * stride_mh

    page = pages_of(table, 0, tl.arange(0, BLOCK_N), keys, PAGE, BLOCK_N)
    acc, norm, best = attend(
        q, k_base, v_base, mask_base, table, page,
        0, keys, keys, tile + shift, tl.minimum(tile + BLOCK_M, rows) - 1 + shift, row + shift,
        left, right, scale, stride_kt, stride_kb, stride_vt, stride_vb, stride_mk, mask_row,
        D, DV, BLOCK_D, BLOCK_DV, BLOCK_M, BLOCK_N, LEFT, RIGHT, MASK, MASK_ROWS, PAGE,
        PRECISION,
    )  # fmt: skip

    if PRECISION == CUT:
        acc *= 1.52587890625e-05
        held = present[:, None] & (feature_v < DV)[None, :]
        tl.store(again + program, strange(acc, norm, held))
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
