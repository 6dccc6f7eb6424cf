# mypy: ignore-errors
"""Hopper attention, the warps that feed: one deals tiles out, four copy them to shared memory."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.ampere import async_copy
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

ROWS = gl.constexpr(64)  # of a group of four warps, of which there are two
BLOCK_M = gl.constexpr(128)


@gluon.jit
def deal(
    plan, told, told_full, told_empty, heads, tokens_q, tokens_k, total,
    BLOCK_N: gl.constexpr, SWEEP: gl.constexpr, VARLEN: gl.constexpr, CAUSAL: gl.constexpr,
):  # fmt: skip
    """Take the next tile until there is none, and tell the other warps; 0 steps say the end.

    plan[1] counts the tiles taken: how long one takes depends on what else the GPU does. The
    next is taken once all warps know of the last; a program that took more ahead of time would
    sit on them at the end, when others have nothing to do.
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
        tell(value, told, told_full, told_empty, turn)
        turn += 1
        item = gl.num_programs(0) + gl.atomic_add(plan + 1, 1, sem="relaxed")
    tell(place * 0, told, told_full, told_empty, turn)


@gluon.jit
def tell(value, told, told_full, told_empty, turn):
    """Eight numbers to all other warps, when they know the last."""
    mbarrier.wait(told_empty, (turn & 1) ^ 1)
    told.store(value)
    mbarrier.arrive(told_full, count=1)


@gluon.jit
def hear(told, told_full, told_empty, turn):
    """What the dealing warp tells in this turn: eight numbers."""
    layout: gl.constexpr = gl.BlockedLayout([8], [32], [4], [0])
    place = gl.arange(0, 8, layout)
    mbarrier.wait(told_full, turn & 1)
    value = told.load(layout)
    mbarrier.arrive(told_empty, count=1)
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
            copy_tile(
                gl.multiple_of(query + (q_at + half * ROWS * STRIDE_Q), 16),
                rows - tile - half * ROWS, q_shared, q_full, q_empty,
                turn % 2 * 2 + half, turn // 2, STRIDE_Q, ROWS, D,
            )  # fmt: skip
        for back in range(0, steps):
            start = (steps - 1 - back) * BLOCK_N
            k_at = k_first + (key_begin + start).to(gl.int64) * STRIDE_K
            copy_tile(
                gl.multiple_of(key + k_at, 16), keys - start, k_shared, k_full, k_empty,
                step % STAGES, step // STAGES, STRIDE_K, BLOCK_N, D,
            )  # fmt: skip
            if step > 0:
                copy_tile(
                    gl.multiple_of(value + v_at, 16), v_inside, v_shared, v_full, v_empty,
                    (step - 1) % STAGES, (step - 1) // STAGES, STRIDE_V, BLOCK_N, D,
                )  # fmt: skip
            v_at = v_first + (key_begin + start).to(gl.int64) * STRIDE_V
            v_inside = keys - start
            step += 1
        turn += 1
        steps, head, tile, sequence, begin, rows, key_begin, keys = hear(
            told, told_full, told_empty, turn
        )
    if step > 0:
        copy_tile(
            gl.multiple_of(value + v_at, 16), v_inside, v_shared, v_full, v_empty,
            (step - 1) % STAGES, (step - 1) // STAGES, STRIDE_V, BLOCK_N, D,
        )  # fmt: skip


@gluon.jit
def copy_tile(
    base, inside, shared, full, empty, slot, use,
    STRIDE: gl.constexpr, COUNT: gl.constexpr, SIZE: gl.constexpr,
):  # fmt: skip
    """Copy COUNT rows that lie STRIDE apart to a slot once it is empty, for the use-th time.

    Zeros for those from `inside` on. Of three dimensions, so that what differs between two rows
    of a thread is a constant.
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
    mbarrier.wait(empty.index(slot), (use & 1) ^ 1)
    target = shared.index(slot).reshape((turns, high, SIZE))
    if inside < COUNT:
        inner = gl.arange(0, high, gl.SliceLayout(0, gl.SliceLayout(2, layout)))
        seen = inner[None, :, None] < inside - turn[:, None, None] * high
        async_copy.async_copy_global_to_shared(target, place, mask=seen)
    else:
        async_copy.async_copy_global_to_shared(target, place)
    async_copy.mbarrier_arrive(full.index(slot), increment_count=False)
