"""`torch.nn.attention.varlen.varlen_attn` in plain ATen operators, for any device.

Attention over sequences packed into one tensor, whose lengths are known only at run time:

    varlen_attn(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, window_size=(-1, 0))

The call is one `torch_attn::_varlen_attn` node, for which neither the CPU nor ExecuTorch has a
kernel. Here it becomes masked attention over all packed tokens, with a score per pair of tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch._ops import OpOverload

from graftwork.plugins import Case, PluginInfo, Property, Refusal, Tolerance, hookimpl
from graftwork.plugins.errors import NotLowerableError
from graftwork.plugins.toolkit.packed import VARLEN_ATTN, Int, PackedAttention, bind, reference_of
from graftwork.plugins.toolkit.packed_cases import (
    attend_packed,
    attend_packed_reference,
    packed_cases,
    takes,
)
from graftwork.plugins.torch_private import statically_known_true


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="varlen_attn as masked attention over the packed tokens")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The one operator behind `varlen_attn`."""
    return {VARLEN_ATTN: varlen_attention}


def varlen_attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`torch_attn::_varlen_attn`: out (Tq, Hq, Dv), log-sum-exp (Hq, Tq) float32, RNG state.

    The result is contiguous. A window lines up with the ends of the two sequences: key j counts
    for query i when i - left <= j - (len_k - len_q) <= i + right. A row without keys, and a token
    of no sequence, gives 0 and a log-sum-exp of +inf. A NaN reaches only rows that attend to it.

    Raises:
        NotLowerableError: `seqused_k` or `block_table` is given; or the window is another than
            (left, 0) and max_q may exceed max_k + 1, where flash attention 2 and 3 disagree.
    """
    call = bind(VARLEN_ATTN, args, kwargs)
    _check(call)
    out, lse = _attend(call)
    return out, lse, torch.zeros(2, dtype=torch.uint64, device=out.device)


def _check(call: PackedAttention) -> None:
    for name in ("block_table", "seqused_k"):
        if getattr(call, name) is not None:
            raise NotLowerableError(
                f"varlen_attn with {name} has no portable form; "
                f"enable the plugin 'attention' and lower for a GPU"
            )
    if call.cu_seq_k is None:
        raise NotLowerableError("varlen_attn without cu_seq_k has no portable form")
    one_sided = call.right == 0 or (call.left < 0 and call.right < 0)
    if not one_sided and not statically_known_true(call.max_q <= call.max_k + 1):
        raise NotLowerableError(
            f"varlen_attn with window ({call.left}, {call.right}), max_q={call.max_q} and "
            f"max_k={call.max_k}: flash attention 2 and 3 disagree on this window for a query "
            f"sequence longer than max_k + 1, and max_q <= max_k + 1 is not known at export"
        )


def _attend(call: PackedAttention) -> tuple[torch.Tensor, torch.Tensor]:
    """Computed in float32 (float64 for float64 inputs) and rounded once."""
    dtype = torch.promote_types(call.query.dtype, torch.float32)
    tokens, heads, size = call.query.shape
    keys, kv_heads, size_v = call.value.shape
    groups = heads // kv_heads
    if statically_known_true(keys == 0):
        lse = call.query.new_full((heads, tokens), math.inf, dtype=torch.float32)
        return call.query.new_zeros(tokens, heads, size_v), lse

    query = (call.query.to(dtype) * call.scale).permute(1, 0, 2)
    scores = query.reshape(kv_heads, groups * tokens, size) @ call.key.to(dtype).permute(1, 2, 0)
    scores = torch.where(_seen(call), scores.view(kv_heads, groups, tokens, keys), -math.inf)
    # A row that sees no key has no largest score; any finite one does.
    largest = scores.amax(-1, keepdim=True)
    largest = torch.where(largest == -math.inf, 0.0, largest)
    weights = torch.exp(scores - largest)
    total = weights.sum(-1, keepdim=True)

    value = call.value.to(dtype).permute(1, 0, 2)
    finite = torch.where(value.isfinite(), value, 0.0)
    plain = (weights.view(kv_heads, groups * tokens, keys) @ finite).view(heads, tokens, size_v)
    out = plain / torch.where(total == 0, 1.0, total).view(heads, tokens, 1)
    # A weight may underflow, so the flags go through a product of their own.
    reached = (scores != -math.inf).to(dtype).view(kv_heads, groups * tokens, keys)
    up, down = (reached @ _flags(value)).view(heads, tokens, 2, size_v).unbind(2)
    # inf - inf is NaN: a NaN value raises both flags.
    out = out + torch.where(up > 0, math.inf, 0.0) - torch.where(down > 0, math.inf, 0.0)

    lse = torch.where((total == 0) | (largest == math.inf), math.inf, largest + total.log())
    out = out.to(call.query.dtype).permute(1, 0, 2).contiguous()
    return out, lse.view(heads, tokens).to(torch.float32)


def _flags(value: torch.Tensor) -> torch.Tensor:
    """Which values are +inf or NaN, and beside them which are -inf or NaN: 1, else 0.

    (heads, keys, Dv) to (heads, keys, 2 * Dv). A weight of 0 times NaN is NaN, so a product may
    only see finite values; the flags go through another, where a 0 leaves no trace.
    """
    nan = value.isnan()
    flags = torch.cat([nan | (value == math.inf), nan | (value == -math.inf)], -1)
    return flags.to(value.dtype)


def _seen(call: PackedAttention) -> torch.Tensor:
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


def _place(tokens: Int, cu_seq: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """For each token: its sequence, the tokens left to that sequence's end, and if it has one.

    The distance to the end is all a window needs: key j is at most `right` ahead of query i when
    left_k >= left_q - right.
    """
    cu_seq = cu_seq.to(torch.int64)
    token = torch.arange(tokens, device=cu_seq.device)  # type: ignore[arg-type]  # takes SymInt
    sequence = (cu_seq[1:] <= token[:, None]).sum(-1)
    # Tokens past the last sequence take the last end.
    end = torch.cat([cu_seq[1:], cu_seq[-1:]])[sequence]
    inside = (token >= cu_seq[0]) & (token < cu_seq[-1])
    return sequence, end - token, inside


@hookimpl
def list_references() -> Mapping[OpOverload, Callable[..., object]]:
    """What stands in for eager where it has no kernel: attention sequence by sequence."""
    return {VARLEN_ATTN: reference_of}


@hookimpl
def list_properties() -> Sequence[Property]:
    """Packed attention equals attention sequence by sequence, whatever else the buffers hold."""
    single, half = (torch.float32, torch.float64), (torch.float16, torch.bfloat16)
    return [
        Property(
            "packed-equals-sequence-by-sequence",
            packed_cases(single, special=True, dynamic=True),
            Tolerance(relative=2e-5, absolute=1e-5),
            reference=attend_packed_reference,
            reference_reason=_NO_KERNEL,
            refused=_refusals(),
        ),
        Property(
            "half-types-round-once",
            packed_cases(half),
            Tolerance(relative=1e-2, absolute=1e-4),
            reference=attend_packed_reference,
            reference_reason=_NO_KERNEL,
        ),
    ]


_NO_KERNEL = "varlen_attn has no CPU kernel; attention sequence by sequence in its place"


def _refusals() -> list[Refusal]:
    packed = torch.zeros(6, 1, 4)
    offsets, used = torch.tensor([0, 6]), torch.tensor([3])
    plain = (packed, packed, packed, offsets, offsets)
    pages = packed.view(3, 2, 1, 4)
    table = torch.tensor([[0, 1]], dtype=torch.int32)
    longer = {"window": (4, 2), "max_q": 6, "max_k": 4}
    found = [
        Refusal(
            "window-on-which-flash-attention-versions-disagree",
            Case(attend_packed, plain, longer),
            NotLowerableError,
            r"window \(4, 2\), max_q=6 and max_k=4",
        )
    ]
    if takes("seqused_k"):
        case = Case(attend_packed, (*plain, used))
        found.append(Refusal("partly-used-keys", case, NotLowerableError, "seqused_k"))
    if takes("block_table"):
        case = Case(attend_packed, (packed, pages, pages, offsets, offsets, used, table))
        found.append(Refusal("paged-keys", case, NotLowerableError, "block_table"))
    return found
