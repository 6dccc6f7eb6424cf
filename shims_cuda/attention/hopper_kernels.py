# mypy: ignore-errors
"""The forward kernel for Hopper GPUs in Gluon: loads, products and softmax in warps of their own.

A program goes through (head, tile of 128 query rows) after (head, tile): one warp deals them out,
four copy tiles to shared memory, and twice four attend, 64 rows each. Those keep two products
under way: the scores of the next tile of keys, which is that of the next rows at the end, and the
weighted values of this one. Tiles of keys go from the last to the first, so that all but the
first are whole and, where a causal mask's edge does not cross two, seen by every row.

Who waits for whom is said by barriers in shared memory: `full` after a tile was copied, `empty`
after the products that read it. Names are those of `sweep_kernels`.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

ROWS = gl.constexpr(64)  # of a group of four warps, of which there are two
BLOCK_M = gl.constexpr(128)
AHEAD = gl.constexpr(4)  # tiles dealt out in advance
COUNTS = ["heads", "group", "batches", "tokens_q", "tokens_k", "stride_lse"]


@gluon.jit
def deal(
    plan, told, told_full, told_empty, heads, tokens_q, tokens_k, total,
    BLOCK_N: gl.constexpr, SWEEP: gl.constexpr, VARLEN: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Take the next tile until there is none, and tell the other warps; 0 steps say the end.

    plan[1] counts the tiles taken: how long one takes depends on what else the GPU does.
    """
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    place = gl.arange(0, 8, layout)
    item = gl.program_id(0)
    turn = 0
    while item < total:
        if VARLEN:
            record = plan + 8 + 8 * (item // heads)
            first = gl.load(record)
            tiles = gl.maximum(gl.load(record + 1), 1)
            begin = gl.load(record + 2)
            rows = gl.load(record + 3)
            key_begin = gl.load(record + 4)
            keys = gl.load(record + 5)
            sequence = item * 0
            rest = item - first * heads
            shift = keys - rows
        else:
            tiles = (tokens_q + BLOCK_M - 1) // BLOCK_M
            begin = item * 0
            rows = tokens_q
            key_begin = item * 0
            keys = tokens_k
            sequence = item // (tiles * heads)
            rest = item % (tiles * heads)
            shift = item * 0
        head = rest // (tiles * SWEEP) * SWEEP + rest % SWEEP
        tile = (tiles - 1 - rest % (tiles * SWEEP) // SWEEP) * BLOCK_M
        high = keys
        if CAUSAL:
            high = gl.minimum(keys, gl.maximum(gl.minimum(tile + BLOCK_M, rows) + shift, 0))
        # A tile that sees no key goes over one of zeros, all masked.
        steps = gl.maximum((high + BLOCK_N - 1) // BLOCK_N, 1)
        value = gl.where(place == 0, steps, gl.where(place == 1, head, keys))
        value = gl.where(place == 2, tile, gl.where(place == 3, sequence, value))
        value = gl.where(place == 4, begin, gl.where(place == 5, rows, value))
        value = gl.where(place == 6, key_begin, value)
        mbarrier.wait(told_empty.index(turn % AHEAD), ((turn // AHEAD) & 1) ^ 1)
        told.index(turn % AHEAD).store(value)
        mbarrier.arrive(told_full.index(turn % AHEAD), count=1)
        turn += 1
        item = gl.num_programs(0) + gl.atomic_add(plan + 1, 1, sem="relaxed")
    mbarrier.wait(told_empty.index(turn % AHEAD), ((turn // AHEAD) & 1) ^ 1)
    told.index(turn % AHEAD).store(place * 0)
    mbarrier.arrive(told_full.index(turn % AHEAD), count=1)


@gluon.jit
def hear(told, told_full, told_empty, turn):
    """What the dealing warp tells in this turn: eight numbers."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    place = gl.arange(0, 8, layout)
    mbarrier.wait(told_full.index(turn % AHEAD), (turn // AHEAD) & 1)
    value = told.index(turn % AHEAD).load(layout)
    mbarrier.arrive(told_empty.index(turn % AHEAD), count=1)
    # Every thread holds all eight, so a sum costs nothing.
    steps = gl.sum(gl.where(place == 0, value, 0), 0)
    head = gl.sum(gl.where(place == 1, value, 0), 0)
    tile = gl.sum(gl.where(place == 2, value, 0), 0)
    sequence = gl.sum(gl.where(place == 3, value, 0), 0)
    begin = gl.sum(gl.where(place == 4, value, 0), 0)
    rows = gl.sum(gl.where(place == 5, value, 0), 0)
    key_begin = gl.sum(gl.where(place == 6, value, 0), 0)
    keys = gl.sum(gl.where(place == 7, value, 0), 0)
    return steps, head, tile, sequence, begin, rows, key_begin, keys


@gluon.jit
def copy_tile(
    shared, base, inside, full, STRIDE: gl.constexpr, COUNT: gl.constexpr, SIZE: gl.constexpr
):
    """Copy COUNT rows that lie STRIDE apart, zeros for those from `inside` on; then `full`.

    Of three dimensions, so that what differs between two rows of a thread is a constant.
    """
    lanes: gl.constexpr = SIZE // 8
    high: gl.constexpr = 128 // lanes
    turns: gl.constexpr = COUNT // high
    layout: gl.constexpr = gl.BlockedLayout(
        [turns, 1, 8], [1, 32 // lanes, lanes], [1, 4, 1], [2, 1, 0]
    )
    flat: gl.constexpr = gl.SliceLayout(0, layout)
    row = gl.arange(0, high, gl.SliceLayout(1, flat))
    feature = gl.arange(0, SIZE, gl.SliceLayout(0, flat))
    turn = gl.arange(0, turns, gl.SliceLayout(1, gl.SliceLayout(2, layout)))
    place = (base + (row[:, None] * STRIDE + feature[None, :]))[None, :, :]
    place = place + turn[:, None, None] * (high * STRIDE)
    target = shared.reshape((turns, high, SIZE))
    if inside < COUNT:
        inner = gl.arange(0, high, gl.SliceLayout(0, gl.SliceLayout(2, layout)))
        seen = inner[None, :, None] < inside - turn[:, None, None] * high
        async_copy.async_copy_global_to_shared(target, place, mask=seen)
    else:
        async_copy.async_copy_global_to_shared(target, place)
    async_copy.mbarrier_arrive(full, increment_count=False)


@gluon.jit
def copy_all(
    query, key, value, told, told_full, told_empty,
    q_shared, k_shared, v_shared, q_full, q_empty, k_full, k_empty, v_full, v_empty, group,
    stride_qb, stride_qh, stride_kb, stride_kh, stride_vb, stride_vh,
    STRIDE_Q: gl.constexpr, STRIDE_K: gl.constexpr, STRIDE_V: gl.constexpr, D: gl.constexpr,
    BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Copy the queries, keys and values of every tile, as far ahead as there is room.

    Values one step after their keys, which are needed a step earlier.
    """
    step = 0
    turn = 0
    v_at = gl.program_id(0).to(gl.int64) * 0
    v_inside = 0
    steps, head, tile, sequence, begin, rows, key_begin, keys = hear(
        told, told_full, told_empty, turn
    )
    while steps > 0:
        q_at = sequence.to(gl.int64) * stride_qb + head.to(gl.int64) * stride_qh
        q_at += (begin + tile).to(gl.int64) * STRIDE_Q
        head_k = (head // group).to(gl.int64)
        k_first = sequence.to(gl.int64) * stride_kb + head_k * stride_kh
        v_first = sequence.to(gl.int64) * stride_vb + head_k * stride_vh
        for half in range(2):
            slot = turn % 2 * 2 + half
            mbarrier.wait(q_empty.index(slot), ((turn // 2) & 1) ^ 1)
            copy_tile(
                q_shared.index(slot), gl.multiple_of(query + (q_at + half * ROWS * STRIDE_Q), 16),
                rows - tile - half * ROWS, q_full.index(slot), STRIDE_Q, ROWS, D,
            )  # fmt: skip
        for back in range(0, steps):
            start = (steps - 1 - back) * BLOCK_N
            stage = step % STAGES
            mbarrier.wait(k_empty.index(stage), ((step // STAGES) & 1) ^ 1)
            k_at = k_first + (key_begin + start).to(gl.int64) * STRIDE_K
            copy_tile(
                k_shared.index(stage), gl.multiple_of(key + k_at, 16), keys - start,
                k_full.index(stage), STRIDE_K, BLOCK_N, D,
            )  # fmt: skip
            if step > 0:
                stage = (step - 1) % STAGES
                mbarrier.wait(v_empty.index(stage), (((step - 1) // STAGES) & 1) ^ 1)
                copy_tile(
                    v_shared.index(stage), gl.multiple_of(value + v_at, 16), v_inside,
                    v_full.index(stage), STRIDE_V, BLOCK_N, D,
                )  # fmt: skip
            v_at = v_first + (key_begin + start).to(gl.int64) * STRIDE_V
            v_inside = keys - start
            step += 1
        turn += 1
        steps, head, tile, sequence, begin, rows, key_begin, keys = hear(
            told, told_full, told_empty, turn
        )
    if step > 0:
        stage = (step - 1) % STAGES
        mbarrier.wait(v_empty.index(stage), (((step - 1) // STAGES) & 1) ^ 1)
        copy_tile(
            v_shared.index(stage), gl.multiple_of(value + v_at, 16), v_inside,
            v_full.index(stage), STRIDE_V, BLOCK_N, D,
        )  # fmt: skip


@gluon.jit
def mask(score, end, BLOCK_N: gl.constexpr, layout: gl.constexpr):
    """The scores of a tile's keys before `end`, a number for each row; -inf for the others."""
    column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
    return gl.where(column[None, :] < end[:, None], score, float("-inf"))


@gluon.jit
def weigh(score, norm, best, scale):
    """One step of the running softmax, as `sweep_kernels.weigh`."""
    new_best = gl.maximum(best, gl.max(score, 1) * scale)
    safe = gl.where(new_best == float("-inf"), 0.0, new_best)
    weight = gl.exp2(score * scale - safe[:, None])
    shrink = gl.exp2(best - safe)
    norm = norm * shrink + gl.sum(weight, 1)
    return weight, shrink, norm, new_best


@gluon.constexpr_function
def written_layout(size):
    """16 bytes a thread and 64 a row, in the rows that a warp has of a product."""
    registers = [[0, 1], [0, 2], [0, 4], [8, 0]]
    column = 32
    while column < size:
        registers.append([0, column])
        column *= 2
    lanes = [[0, 8], [0, 16], [1, 0], [2, 0], [4, 0]]
    return gl.DistributedLinearLayout(registers, lanes, [[16, 0], [32, 0]], [], [64, size])


@gluon.jit
def finish(
    out, lse, acc, norm, best, begin, tile, rows, head, sequence,
    stride_ob, stride_ot, stride_oh, stride_lse,
    D: gl.constexpr, LSE: gl.constexpr, s_layout: gl.constexpr, o_layout: gl.constexpr,
):  # fmt: skip
    """Write 64 rows of the result and their log-sums."""
    layout: gl.constexpr = written_layout(D)
    inverse = 1.0 / gl.where(norm == 0.0, 1.0, norm)
    acc = acc * gl.convert_layout(inverse, gl.SliceLayout(1, o_layout))[:, None]
    row = gl.arange(0, ROWS, gl.SliceLayout(1, layout))
    feature = gl.arange(0, D, gl.SliceLayout(0, layout))
    base = out + sequence.to(gl.int64) * stride_ob + head.to(gl.int64) * stride_oh
    base += (begin + tile).to(gl.int64) * stride_ot
    gl.store(
        base + (row[:, None] * stride_ot + feature[None, :]),
        gl.convert_layout(acc.to(out.dtype.element_ty), layout),
        mask=(tile + row < rows)[:, None],
    )
    if LSE:
        total = (best + gl.log2(norm)) * 0.6931471805599453
        total = gl.where((norm == 0.0) | (best == float("inf")), float("inf"), total)
        row = tile + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
        base = lse + head.to(gl.int64) * stride_lse + begin
        gl.store(base + row, total, mask=row < rows)


@gluon.jit
def end_of(tile, rows, keys, VARLEN: gl.constexpr, CAUSAL: gl.constexpr, layout: gl.constexpr):
    """How many keys each row from `tile` on sees."""
    end = gl.full([ROWS], 0, gl.int32, gl.SliceLayout(1, layout)) + keys
    if CAUSAL:
        row = tile + 1 + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        if VARLEN:
            row += keys - rows
        end = gl.minimum(end, row)
    return end


@gluon.jit
def attend(
    out, lse, told, told_full, told_empty, q_shared, k_shared, v_shared,
    q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, scale,
    stride_ob, stride_ot, stride_oh, stride_lse,
    HALF: gl.constexpr, D: gl.constexpr, BLOCK_N: gl.constexpr, STAGES: gl.constexpr,
    VARLEN: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr, TURNS: gl.constexpr,
):  # fmt: skip
    """Attend with one half of the rows of every tile.

    One loop for all, since code is fetched slower than it is executed. A step asks for the scores
    of the next keys, which may be those of the next tile of rows, and for the values of the last
    ones. Its first round has no last ones, its last round no next ones; what those give is not
    used.
    """
    s_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])
    o_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    p_layout: gl.constexpr = gl.DotOperandLayout(0, o_layout, 2)
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    no_best = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, s_layout))
    no_norm = gl.zeros([ROWS], gl.float32, gl.SliceLayout(1, s_layout))

    p = gl.convert_layout(zero.to(v_shared.dtype), p_layout)
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
    step = 0
    turn = 0
    left = head  # steps of this tile
    added = left > 0  # whether values of this tile were added up
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
            # Tiles of keys that every row sees.
            if CAUSAL:
                whole = next_tile + 1
                if VARLEN:
                    whole += keys - next_rows
                whole = gl.maximum(whole, 0) // BLOCK_N
            slot = turn % 2 * 2 + HALF
            mbarrier.wait(q_full.index(slot), (turn // 2) & 1, pred=left > 0)
            turn += 1
        there = left > 0
        left -= 1
        stage = step % STAGES
        mbarrier.wait(k_full.index(stage), (step // STAGES) & 1, pred=there)
        if TURNS:
            mbarrier.wait(turns.index(HALF), step & 1)
        fence_async_shared()
        q = q_shared.index((turn + 1) % 2 * 2 + HALF)
        k = k_shared.index(stage).permute((1, 0))
        score = warpgroup_mma(q, k, zero, use_acc=False, is_async=True)
        old = gl.maximum(step - 1, 0)
        mbarrier.wait(v_full.index(old % STAGES), (old // STAGES) & 1, pred=step > 0)
        fence_async_shared()
        acc = warpgroup_mma(p, v_shared.index(old % STAGES), acc, use_acc=added, is_async=True)
        if TURNS:
            mbarrier.arrive(turns.index(1 - HALF), count=1)
        score = warpgroup_mma_wait(1, [score])
        mbarrier.arrive(k_empty.index(stage), count=1, pred=there)
        if CAUSAL:
            partly = new | (left >= whole)
        else:
            partly = new & (keys < (left + 1) * BLOCK_N)
        if partly:
            end = end_of(next_tile, next_rows, keys, VARLEN, CAUSAL, s_layout)
            score = mask(score, end - left * BLOCK_N, BLOCK_N, s_layout)
        weight, shrink, next_norm, next_best = weigh(
            score, gl.where(new, no_norm, norm), gl.where(new, no_best, best), scale
        )
        acc = warpgroup_mma_wait(0, [acc])
        mbarrier.arrive(v_empty.index(old % STAGES), count=1, pred=step > 0)
        if new:
            finish(
                out, lse, acc, norm, best, begin, tile, rows, head, sequence,
                stride_ob, stride_ot, stride_oh, stride_lse, D, LSE, s_layout, o_layout,
            )  # fmt: skip
        acc = acc * gl.convert_layout(shrink, gl.SliceLayout(1, o_layout))[:, None]
        p = gl.convert_layout(weight.to(v_shared.dtype), p_layout)
        norm = next_norm
        best = next_best
        head = next_head
        tile = next_tile
        sequence = next_sequence
        begin = next_begin
        rows = next_rows
        added = new == 0
        step += 1


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
    VARLEN: gl.constexpr, CAUSAL: gl.constexpr, LSE: gl.constexpr, TURNS: gl.constexpr,
    STRIDE_Q: gl.constexpr, STRIDE_K: gl.constexpr, STRIDE_V: gl.constexpr,
):  # fmt: skip
    """Attention of half types, all keys or causal ones, in tiles of 128 rows.

    Values have the keys' head size, 64 or 128; rows begin at 16 bytes. With TURNS the two halves
    ask for products in turn. `plan` is that of `plan_kernel`, or without VARLEN zeros.
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
    told = gl.allocate_shared_memory(gl.int32, [AHEAD, 8], plain)
    # Every thread that copies arrives when its copies did, of other warps one for all.
    told_full = barriers(AHEAD, 1)
    told_empty = barriers(AHEAD, 3)
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
            (attend, (
                out, lse, told, told_full, told_empty, q_shared, k_shared, v_shared,
                q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, scale,
                stride_ob, stride_ot, stride_oh, stride_lse,
                0, D, BLOCK_N, STAGES, VARLEN, CAUSAL, LSE, TURNS,
            )),
            (attend, (
                out, lse, told, told_full, told_empty, q_shared, k_shared, v_shared,
                q_full, q_empty, k_full, k_empty, v_full, v_empty, turns, scale,
                stride_ob, stride_ot, stride_oh, stride_lse,
                1, D, BLOCK_N, STAGES, VARLEN, CAUSAL, LSE, TURNS,
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
