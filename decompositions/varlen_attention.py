"""`torch.nn.attention.varlen.varlen_attn` in plain ATen ops, for any device.

Attention over sequences packed into one tensor, whose lengths are known only at run time:

    varlen_attn(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, window_size=(-1, 0))

The call is one `torch_attn::_varlen_attn` node, for which neither the CPU nor ExecuTorch has a
kernel. Written here as masked attention over all packed tokens: a score per pair of tokens.
"""

from __future__ import annotations

import math

import torch

from graftwork.plugins.toolkit.varlen import VarlenCall


def check(call: VarlenCall) -> None:
    """Refuse what the portable form cannot say: paged or partly used keys, two-faced windows."""
    if call.block_table is not None:
        raise ValueError("varlen_attn with block_table (paged keys) needs the CUDA kernel form")
    if call.seqused_k is not None:
        raise ValueError("varlen_attn with seqused_k needs the CUDA kernel form")
    if call.cu_seq_k is None:
        raise ValueError("varlen_attn without cu_seq_k needs the CUDA kernel form")


def attention(call: VarlenCall) -> tuple[torch.Tensor, torch.Tensor]:
    """Masked attention over packed tokens: out (Tq, Hq, Dv) contiguous, lse (Hq, Tq) float32.

    Computed in float32, float64 for float64 inputs, and rounded once.
    """
    assert call.cu_seq_k is not None
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    tokens, heads, size = call.query.shape
    keys, kv_heads = call.key.shape[:2]
    groups = heads // kv_heads
    if isinstance(keys, int) and keys == 0:
        lse = torch.full((heads, tokens), math.inf, dtype=torch.float32, device=call.query.device)
        return call.query.new_zeros(tokens, heads, call.value.shape[-1]), lse

    query = (call.query.to(dtype) * call.scale).permute(1, 0, 2)
    scores = query.reshape(kv_heads, groups * tokens, size) @ call.key.to(dtype).permute(1, 2, 0)
    scores = scores.view(kv_heads, groups, tokens, keys)
    seen = _seen(call)

    scores = torch.where(seen, scores, -math.inf)
    # A row that sees no key has no largest score; any finite one does.
    largest = scores.amax(-1, keepdim=True)
    largest = torch.where(largest == -math.inf, 0.0, largest)
    # A weight that underflows must still carry the flags below, hence the floor, far under
    # the rounding of any sum.
    floor = 1e-30 if dtype == torch.float32 else 1e-300
    weights = torch.exp(scores - largest).clamp_min(floor)
    weights = torch.where(scores == -math.inf, 0.0, weights)
    total = weights.sum(-1, keepdim=True)

    value = call.value.to(dtype).permute(1, 0, 2)
    mixed = weights.view(kv_heads, groups * tokens, keys) @ _with_flags(value)
    mixed = mixed.view(heads, tokens, 3, call.value.shape[-1])
    plain, up, down = mixed.unbind(2)
    out = plain / torch.where(total == 0, 1.0, total).view(heads, tokens, 1)
    # inf - inf is NaN: a NaN value raises both flags.
    out = out + torch.where(up > 0, math.inf, 0.0) - torch.where(down > 0, math.inf, 0.0)
    out = out.to(call.query.dtype).permute(1, 0, 2).contiguous()

    lse = torch.where((total == 0) | (largest == math.inf), math.inf, largest + total.log())
    return out, lse.view(heads, tokens).to(torch.float32)


def _with_flags(value: torch.Tensor) -> torch.Tensor:
    """Values with the non-finite ones taken out, and beside them who was +inf, -inf or NaN.

    A weight of 0 times NaN is NaN, so the product itself may only see finite values; the flags
    go through the same product, where a weight of 0 leaves no trace. (heads, keys, 3 * Dv).
    """
    nan = value.isnan()
    finite = torch.where(nan | value.isinf(), 0.0, value)
    up = (nan | (value == math.inf)).to(value.dtype)
    down = (nan | (value == -math.inf)).to(value.dtype)
    return torch.cat([finite, up, down], -1)


def _seen(call: VarlenCall) -> torch.Tensor:
    """(Tq, Tk) bool: which key each query token may see."""
    assert call.cu_seq_k is not None
    sequence_q, left_q, inside_q = _place(call.query.shape[0], call.cu_seq_q)
    sequence_k, left_k, inside_k = _place(call.key.shape[0], call.cu_seq_k)
    seen = sequence_q[:, None] == sequence_k
    seen = seen & inside_q[:, None] & inside_k
    if call.left >= 0:
        seen = seen & (left_k <= left_q[:, None] + call.left)
    if call.right >= 0:
        seen = seen & (left_k >= left_q[:, None] - call.right)
    return seen


def _place(tokens: int, cu_seq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each token: its sequence, the tokens left to that sequence's end, and if it has one.

    Windows line up with the ends of the two sequences, so the distance to the end is all that
    they need: key j is at most `right` ahead of query i when left_k >= left_q - right.
    """
    cu_seq = cu_seq.to(torch.int64)
    token = torch.arange(tokens, device=cu_seq.device)
    sequence = (cu_seq[1:] <= token[:, None]).sum(-1)
    end = cu_seq[(sequence + 1).clamp_max(cu_seq.shape[0] - 1)]
    inside = (token >= cu_seq[0]) & (token < cu_seq[-1])
    return sequence, end - token, inside
