"""`torch_attn::_varlen_attn` by kernel: packed sequences, paged and partly used keys."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from graftwork.plugins import Declined
from graftwork.plugins.toolkit.kernels import kernel_op
from graftwork.plugins.toolkit.packed import VARLEN_ATTN, bind

from .checks import check_operands, check_scale, rows_aligned, rows_contiguous, rows_near
from .choice import Call, choose
from .launch import Problem, run_forward, run_split
from .tiles import Tiles, target_archs


def attend_packed(
    *args: Any, archs: Sequence[str], precision: str, flash2: bool, **kwargs: Any
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The kernel for one call of `_varlen_attn`; same arguments, same three results.

    Raises:
        Declined: dtypes, head sizes or a scale that the kernel does not take.
    """
    call = bind(VARLEN_ATTN, args, kwargs)
    check_scale(call.scale)
    check_operands(call.query, call.key, call.value)
    if call.block_table is None and call.cu_seq_k is None:
        raise Declined("the attention kernel needs cu_seq_k, or block_table and seqused_k")
    if call.block_table is not None and call.seqused_k is None:
        raise Declined("block_table needs seqused_k")
    if call.block_table is not None and not isinstance(call.key.shape[1], int):
        raise Declined("the attention kernel takes pages of a fixed size")
    query, key, value = (rows_near(t, tokens=-3) for t in (call.query, call.key, call.value))
    offsets = [
        None if t is None else rows_contiguous(t)
        for t in (call.cu_seq_q, call.cu_seq_k, call.seqused_k, call.block_table)
    ]
    heads = query.shape[1]
    causal_heads, paged = heads if call.right == 0 else 0, call.block_table is not None
    split, tiles = choose(
        Call(
            queries=call.max_q,
            keys=call.max_k,
            size=query.shape[-1],
            size_v=value.shape[-1],
            itemsize=query.element_size(),
            precision=precision,
            archs=target_archs(archs),
            pairs=(call.cu_seq_q.shape[0] - 1) * key.shape[-2],
            group=heads // key.shape[-2],
            sweep=max(1, causal_heads),
            causal_heads=causal_heads,
            bare=call.left < 0 and call.right <= 0 and not paged,
            aligned=rows_aligned(query, key, value, tokens=0),
            positive=call.scale > 0,
            page=key.shape[1] if paged else 0,
        )
    )
    out, lse = varlen_attention(
        query,
        key,
        value,
        *offsets,
        call.max_k,
        [call.left, call.right],
        float(call.scale),
        flash2,
        precision,
        split,
        tiles.numbers(),
    )
    return out, lse, torch.zeros(2, dtype=torch.uint64, device=out.device)


@kernel_op("graftwork::varlen_attention")
def varlen_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor | None,
    seqused_k: torch.Tensor | None,
    block_table: torch.Tensor | None,
    max_k: int,
    window: Sequence[int],
    scale: float,
    flash2: bool,
    precision: str,
    split: bool,
    tiles: Sequence[int],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Packed attention: out (Tq, Hq, Dv) contiguous, log-sum-exp (Hq, Tq) float32.

    query (Tq, Hq, D), key (Tk, Hkv, D), value (Tk, Hkv, Dv), or pages (pages, page size, Hkv, .)
    found through `block_table` (N, pages per sequence); offsets (N + 1,); last dimensions
    contiguous, those of offsets too. Row i of a sequence sees key j when
    i - left <= j - (len_k - len_q) <= i + right, a negative bound being none. Tokens of no
    sequence get 0 and +inf. With `split`, which needs all queries of a sequence in one tile, the
    keys are worked on in chunks side by side.
    """
    paged = block_table is not None
    pages = 0 if block_table is None else block_table.shape[1]
    problem = Problem(
        query,
        key,
        value,
        (0, query.stride(0), query.stride(1)),
        (key.stride(0) if paged else 0, key.stride(-3), key.stride(-2)),
        (value.stride(0) if paged else 0, value.stride(-3), value.stride(-2)),
        batches=cu_seq_q.shape[0] - 1,
        heads=query.shape[1],
        kv_heads=key.shape[-2],
        tokens_q=query.shape[0],
        tokens_k=pages * key.shape[1] if paged else key.shape[0],
        scale=scale,
        left=window[0],
        right=window[1],
        max_k=max_k,
        flash2=flash2,
        precision=precision,
        cu_q=cu_seq_q,
        cu_k=cu_seq_k,
        used=seqused_k,
        table=block_table,
    )
    out = query.new_empty(query.shape[0], query.shape[1], value.shape[-1])
    lse = query.new_empty(query.shape[1], query.shape[0], dtype=torch.float32)
    strides = (0, out.stride(0), out.stride(1))
    if split:
        run_split(problem, out, strides, lse, Tiles(*tiles))
    else:
        run_forward(problem, out, strides, lse, Tiles(*tiles))
    return out, lse
