# mypy: ignore-errors
"""The forward kernel for Hopper GPUs in Gluon: loads, products and softmax in warps of their own.

A program goes through (head, tile of 128 query rows) after (head, tile): one warp deals them out,
four copy tiles to shared memory, and twice four attend, 64 rows each. Those keep two products
under way: the scores of a tile of keys, the first of which are asked for while the last rows are
not yet done, and the weighted values of the tile of keys before. Tiles of keys go from the last
to the first, so that all but the first are whole and, where a causal mask's edge does not cross
two, seen by every row.

Who waits for whom is said by barriers in shared memory: `full` after a tile was copied, `empty`
after the products that read it. Names are those of `sweep_kernels`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, warpgroup_mma_wait

from .hopper_copies_kernels import BLOCK_M, ROWS, copy_all, deal, hear
from .hopper_steps_kernels import ask, ask_scores, finish, mask, take, weigh, whole_tiles

COUNTS = ["heads", "group", "batches", "tokens_q", "tokens_k", "stride_lse"]


@gluon.jit
def attend_tiles(
    out, lse, told, told_full, told_empty, q_shared, k_shared, v_shared,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, scale,
    stride_ob, stride_ot, stride_oh, stride_lse,
    HALF: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    VARLEN: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """Attend, tile after tile."""
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    dtype: gl.constexpr = v_shared.dtype
    no_best = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
    no_norm = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, s_layout))

    # The first scores of the first tile.
    at = gl.program_id(0) * 0
    turn = 0
    steps, head, tile, sequence, begin, rows, _, keys = hear(told, told_full, told_empty, turn)
    tile += HALF * ROWS
    there = steps > 0
    mbarrier.wait(q_full.index(HALF), 0, pred=there)
    score = ask_scores(
        q_shared.index(HALF), k_shared, k_full, turns, at, there, HALF, STAGES, s_layout
    )
    if D == 128:
        mbarrier.arrive(turns.index(1 - HALF), count=1)
    score = warpgroup_mma_wait(0, [score])
    mbarrier.arrive(k_empty.index(0), count=1, pred=there)
    whole = whole_tiles(tile, rows, keys, BLOCK_N, VARLEN, CAUSAL)
    if steps > whole:
        score = mask(score, (steps - 1) * BLOCK_N, tile, rows, keys, VARLEN, CAUSAL)
    weight, _, norm, best = weigh(score, no_norm, no_best, scale, True)
    p = gl.convert_layout(weight.to(dtype), p_layout)
    acc = gl.zeros([ROWS, D], gl.float32, o_layout)

    while steps > 0:
        slot = turn % 2 * 2 + HALF
        for back in range(1, steps):
            at += 1
            score, acc = ask(
                p, acc, q_shared.index(slot), k_shared, v_shared, k_full, k_empty, v_full, turns,
                at, True, True, back > 1, HALF, STAGES, s_layout,
            )  # fmt: skip
            if CAUSAL:
                left = steps - 1 - back
                if left >= whole:
                    score = mask(score, left * BLOCK_N, tile, rows, keys, VARLEN, CAUSAL)
            weight, shrink, norm, best = weigh(score, norm, best, scale, CAUSAL)
            acc = take(acc, v_empty, at, True, STAGES)
            acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
            p = gl.convert_layout(weight.to(dtype), p_layout)
        mbarrier.arrive(q_empty.index(slot), count=1)

        # The last values of this tile, the first scores of the next; past the last one its
        # scores are garbage that nothing uses.
        at += 1
        turn += 1
        several = steps > 1
        steps, next_head, next_tile, next_sequence, next_begin, next_rows, _, keys = hear(
            told, told_full, told_empty, turn
        )
        next_tile += HALF * ROWS
        there = steps > 0
        slot = turn % 2 * 2 + HALF
        mbarrier.wait(q_full.index(slot), (turn // 2) & 1, pred=there)
        score, acc = ask(
            p, acc, q_shared.index(slot), k_shared, v_shared, k_full, k_empty, v_full, turns,
            at, there, True, several, HALF, STAGES, s_layout,
        )  # fmt: skip
        whole = whole_tiles(next_tile, next_rows, keys, BLOCK_N, VARLEN, CAUSAL)
        if steps > whole:
            score = mask(score, (steps - 1) * BLOCK_N, next_tile, next_rows, keys, VARLEN, CAUSAL)
        weight, _, next_norm, next_best = weigh(score, no_norm, no_best, scale, True)
        acc = take(acc, v_empty, at, True, STAGES)
        p = gl.convert_layout(weight.to(dtype), p_layout)
        finish(
            out, lse, acc, norm, best, begin, tile, rows, head, sequence,
            stride_ob, stride_ot, stride_oh, stride_lse, D, LSE, s_layout, o_layout,
        )  # fmt: skip
        norm = next_norm
        best = next_best
        head = next_head
        tile = next_tile
        sequence = next_sequence
        begin = next_begin
        rows = next_rows


@gluon.jit
def attend_in_one_loop(
    out, lse, told, told_full, told_empty, q_shared, k_shared, v_shared,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, scale,
    stride_ob, stride_ot, stride_oh, stride_lse,
    HALF: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    VARLEN: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr,
):  # fmt: skip
    """`attend_tiles` for tiles of few steps, where fetching code takes as long as running it.

    A step is that of a new tile where none is left of the last. The first has no values to take,
    the last no scores to ask for; what they give is not used.
    """
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    dtype: gl.constexpr = v_shared.dtype
    no_best = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
    no_norm = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, s_layout))
    p = gl.zeros([ROWS, BLOCK_N], dtype, p_layout)
    acc = gl.zeros([ROWS, D], gl.float32, o_layout)
    norm = no_norm
    best = no_best

    head = gl.program_id(0) * 0
    tile = head
    sequence = head
    begin = head
    rows = head
    keys = head
    whole = head
    left = head  # steps of this tile
    added = left > 0  # whether values of this tile were added up
    at = head
    turn = 0
    while left >= 0:
        new = left == 0
        next_head = head
        next_tile = tile
        next_sequence = sequence
        next_begin = begin
        next_rows = rows
        if new:
            mbarrier.arrive(q_empty.index((turn + 1) % 2 * 2 + HALF), count=1, pred=turn > 0)
            left, next_head, next_tile, next_sequence, next_begin, next_rows, _, keys = hear(
                told, told_full, told_empty, turn
            )
            next_tile += HALF * ROWS
            whole = whole_tiles(next_tile, next_rows, keys, BLOCK_N, VARLEN, CAUSAL)
            slot = turn % 2 * 2 + HALF
            mbarrier.wait(q_full.index(slot), (turn // 2) & 1, pred=left > 0)
            turn += 1
        there = left > 0
        left -= 1
        score, acc = ask(
            p, acc, q_shared.index((turn + 1) % 2 * 2 + HALF), k_shared, v_shared,
            k_full, k_empty, v_full, turns, at, there, at > 0, added, HALF, STAGES, s_layout,
        )  # fmt: skip
        if left >= whole:
            score = mask(score, left * BLOCK_N, next_tile, next_rows, keys, VARLEN, CAUSAL)
        weight, shrink, next_norm, next_best = weigh(
            score, gl.where(new, no_norm, norm), gl.where(new, no_best, best), scale, True
        )
        acc = take(acc, v_empty, at, at > 0, STAGES)
        if new:
            finish(
                out, lse, acc, norm, best, begin, tile, rows, head, sequence,
                stride_ob, stride_ot, stride_oh, stride_lse, D, LSE, s_layout, o_layout,
            )  # fmt: skip
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
        p = gl.convert_layout(weight.to(dtype), p_layout)
        norm = next_norm
        best = next_best
        head = next_head
        tile = next_tile
        sequence = next_sequence
        begin = next_begin
        rows = next_rows
        added = new == 0
        at += 1


@gluon.jit
def barriers(COUNT: gl.constexpr, arrivals: gl.constexpr):
    """So many barriers in shared memory, each open after so many arrivals."""
    made = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(COUNT):
        mbarrier.init(made.index(at), count=arrivals)
    return made


@gluon.jit(do_not_specialize=COUNTS)
def hopper_kernel(
    query, key, value, out, lse, plan,
    scale, heads, group, batches, tokens_q, tokens_k,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh,
    stride_ob, stride_ot, stride_oh, stride_lse,
    D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr, SWEEP: gl.constexpr,
    VARLEN: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr, SHORT: gl.constexpr,
    STRIDE_Q: gl.constexpr, STRIDE_K: gl.constexpr, STRIDE_V: gl.constexpr,
):  # fmt: skip
    """Attention of half types, all keys or causal ones, in tiles of 128 rows.

    Values have the keys' head size, 64 or 128; rows begin at 16 bytes. SHORT says that tiles of
    rows see few tiles of keys. `plan` is that of `plan_kernel`, or without VARLEN zeros.
    """
    dtype: gl.constexpr = query.dtype.element_ty
    scale = gl.cast(scale, gl.float32)
    heads = gl.cast(heads, gl.int32)
    group = gl.cast(group, gl.int32)
    tokens_q = gl.cast(tokens_q, gl.int32)
    tokens_k = gl.cast(tokens_k, gl.int32)
    if VARLEN:
        total = gl.load(plan) * heads
    else:
        total = (tokens_q + BLOCK_M - 1) // BLOCK_M * heads * gl.cast(batches, gl.int32)

    rows: gl.constexpr = gl.NVMMASharedLayout.get_default_for([ROWS, D], dtype)
    keys: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    q_shared = gl.allocate_shared_memory(dtype, [4, ROWS, D], rows)
    k_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], keys)
    v_shared = gl.allocate_shared_memory(dtype, [STAGES, BLOCK_N, D], keys)
    plain: gl.constexpr = gl.SwizzledSharedLayout(1, 1, 1, [0])
    told = gl.allocate_shared_memory(gl.int32, [8], plain)
    # Every thread that copies arrives when its copies did, of other warps one for all.
    told_full = barriers(1, 1).index(0)
    told_empty = barriers(1, 3).index(0)
    q_full = barriers(4, 128)
    q_empty = barriers(4, 1)
    k_full = barriers(STAGES, 128)
    k_empty = barriers(STAGES, 2)
    v_full = barriers(STAGES, 128)
    v_empty = barriers(STAGES, 2)
    turns = barriers(2, 1)
    mbarrier.arrive(turns.index(0), count=1)

    gl.warp_specialize(
        [
            (attend_in_one_loop if SHORT else attend_tiles, (
                out, lse, told, told_full, told_empty, q_shared, k_shared, v_shared,
                q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, scale,
                stride_ob, stride_ot, stride_oh, stride_lse,
                0, D, BLOCK_N, STAGES, VARLEN, CAUSAL, LSE,
            )),
            (attend_in_one_loop if SHORT else attend_tiles, (
                out, lse, told, told_full, told_empty, q_shared, k_shared, v_shared,
                q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, scale,
                stride_ob, stride_ot, stride_oh, stride_lse,
                1, D, BLOCK_N, STAGES, VARLEN, CAUSAL, LSE,
            )),
            (copy_all, (
                query, key, value, told, told_full, told_empty,
                q_shared, k_shared, v_shared, q_full, q_empty, k_full, k_empty, v_full, v_empty,
                group, stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh,
                STRIDE_Q, STRIDE_K, STRIDE_V, D, BLOCK_N, STAGES,
            )),
            (deal, (
                plan, told, told_full, told_empty, heads, tokens_q, tokens_k, total,
                BLOCK_N, SWEEP, VARLEN, CAUSAL,
            )),
        ],
        [4, 4, 1],
        [224, 40, 24],
    )  # fmt: skip
