# mypy: ignore-errors
"""Hopper attention, what a step is made of: two products under way, masks, softmax, the result."""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from .hopper_copies_kernels import ROWS


@gluon.jit
def ask_scores(
    q, k_shared, k_full, turns, at, there,
    HALF: gl.constexpr, STAGES: gl.constexpr, s_layout: gl.constexpr,
):  # fmt: skip
    """Ask for the scores of step `at`, which is there unless the last tile is done.

    The two halves ask for products in turn where those take long.
    """
    BLOCK_N: gl.constexpr = k_shared.shape[1]
    zero = gl.zeros([ROWS, BLOCK_N], gl.float32, s_layout)
    stage = at % STAGES
    mbarrier.wait(k_full.index(stage), (at // STAGES) & 1, pred=there)
    if q.shape[1] == 128:
        mbarrier.wait(turns.index(HALF), at & 1)
    fence_async_shared()
    keys = k_shared.index(stage).permute((1, 0))
    return warpgroup_mma(q, keys, zero, use_acc=False, is_async=True)


@gluon.jit
def ask(
    p, acc, q, k_shared, v_shared, k_full, k_empty, v_full, turns, at, there, later, added,
    HALF: gl.constexpr, STAGES: gl.constexpr, s_layout: gl.constexpr,
):  # fmt: skip
    """The scores of step `at`; the values of the step before, weighted by `p`, are under way.

    There is a step before if `at` is `later` than the first; `added` says whether `acc` counts.
    """
    score = ask_scores(q, k_shared, k_full, turns, at, there, HALF, STAGES, s_layout)
    old = gl.maximum(at - 1, 0)
    mbarrier.wait(v_full.index(old % STAGES), (old // STAGES) & 1, pred=later)
    fence_async_shared()
    values = v_shared.index(old % STAGES)
    acc = warpgroup_mma(p, values, acc, use_acc=added, is_async=True)
    if q.shape[1] == 128:
        mbarrier.arrive(turns.index(1 - HALF), count=1)
    score = warpgroup_mma_wait(1, [score])
    mbarrier.arrive(k_empty.index(at % STAGES), count=1, pred=there)
    return score, acc


@gluon.jit
def take(acc, v_empty, at, later, STAGES: gl.constexpr):
    """What `ask` left under way."""
    acc = warpgroup_mma_wait(0, [acc])
    old = gl.maximum(at - 1, 0)
    mbarrier.arrive(v_empty.index(old % STAGES), count=1, pred=later)
    return acc


@gluon.jit
def whole_tiles(
    tile, rows, keys, BLOCK_N: gl.constexpr, VARLEN: gl.constexpr, CAUSAL: gl.constexpr
):
    """How many tiles of keys all rows from `tile` on see whole."""
    if CAUSAL:
        first = tile + 1
        if VARLEN:
            first += keys - rows
        keys = gl.minimum(keys, gl.maximum(first, 0))
    return keys // BLOCK_N


@gluon.jit
def mask(score, start, tile, rows, keys, VARLEN: gl.constexpr, CAUSAL: gl.constexpr):
    """The scores of the keys from `start` on that a row sees; -inf for the others."""
    layout: gl.constexpr = score.type.layout
    end = gl.full([ROWS], 0, gl.int32, gl.SliceLayout(1, layout)) + keys
    if CAUSAL:
        row = tile + 1 + gl.arange(0, ROWS, gl.SliceLayout(1, layout))
        if VARLEN:
            row += keys - rows
        end = gl.minimum(end, row)
    BLOCK_N: gl.constexpr = score.shape[1]
    column = gl.arange(0, BLOCK_N, gl.SliceLayout(0, layout))
    return gl.where(column[None, :] < (end - start)[:, None], score, float("-inf"))


@gluon.jit
def weigh(score, norm, best, scale, MASKED: gl.constexpr):
    """One step of the running softmax, as `sweep_kernels.weigh`; MASKED scores may be -inf."""
    new_best = gl.maximum(best, gl.max(score, 1) * scale)
    safe = new_best
    if MASKED:
        safe = gl.where(new_best == float("-inf"), 0.0, new_best)
    weight = gl.exp2(score * scale - safe[:, None])
    shrink = gl.exp2(best - safe)
    norm = norm * shrink + gl.sum(weight, 1)
    return weight, shrink, norm, new_best


@gluon.jit
def log2(value):
    """Of a sum of weights, with an error of 2^-22."""
    return gl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [value], gl.float32, is_pure=True, pack=1
    )


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
        total = (best + log2(norm)) * 0.6931471805599453
        total = gl.where((norm == 0.0) | (best == float("inf")), float("inf"), total)
        row = tile + gl.arange(0, ROWS, gl.SliceLayout(1, s_layout))
        base = lse + head.to(gl.int64) * stride_lse + begin
        gl.store(base + row, total, mask=row < rows)
