"""The arguments of `torch.nn.attention.varlen.varlen_attn`, its window rule and its reference.

User code calls `varlen_attn(q, k, v, cu_seq_q, cu_seq_k, max_q, max_k, ...)`; the exported
program holds one `torch_attn::_varlen_attn` node. That node's argument list differs from release
to release, so it is read by name.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.attention.varlen
from torch._ops import OpOverload

from .symbolic import known

VARLEN_ATTN: OpOverload = torch.ops.torch_attn._varlen_attn.default

Int = int | torch.SymInt


@dataclasses.dataclass(frozen=True)
class PackedAttention:
    """One call of `_varlen_attn`, its defaults filled in.

    query (Tq, Hq, D); key and value (Tk, Hkv, D), or (pages, page size, Hkv, D) where
    `block_table` (N, pages per sequence) maps each sequence to its pages; `cu_seq_q` and
    `cu_seq_k` (N + 1,) integer offsets; `seqused_k` (N,) how many keys of each sequence count.
    `left` and `right` bound the window, negative for no bound; causal means right = 0.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    cu_seq_q: torch.Tensor
    cu_seq_k: torch.Tensor | None
    max_q: Int
    max_k: Int
    left: int
    right: int
    scale: float
    seqused_k: torch.Tensor | None
    block_table: torch.Tensor | None


def bind(op: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> PackedAttention:
    """Read a call of `op`, which is `VARLEN_ATTN`, by the names of its schema.

    Raises ValueError for a window that is not a pair, for tensors whose shapes are known not to
    fit one another, for query heads that are no multiple of the key heads, and for an argument of
    a release that this function does not know.
    """
    given: dict[str, Any] = {}
    for position, argument in enumerate(op._schema.arguments):
        if position < len(args):
            given[argument.name] = args[position]
        elif argument.name in kwargs:
            given[argument.name] = kwargs[argument.name]
        elif argument.has_default_value():
            given[argument.name] = argument.default_value
    unknown = [n for n, v in given.items() if n not in _KNOWN and v is not None]
    if unknown:
        raise ValueError(f"varlen_attn with {', '.join(unknown)} is not supported")
    _check_shapes(given)
    query, key = given["query"], given["key"]
    window = list(given.get("window_size") or (-1, -1))
    if len(window) != 2:
        raise ValueError(f"window_size of varlen_attn must be a pair, got {window}")
    if query.shape[1] % key.shape[-2] != 0:
        raise ValueError(
            f"varlen_attn needs query heads that are a multiple of the key heads, "
            f"got {query.shape[1]} and {key.shape[-2]}"
        )
    scale = given.get("scale")
    return PackedAttention(
        query=query,
        key=key,
        value=given["value"],
        cu_seq_q=given["cu_seq_q"],
        cu_seq_k=given["cu_seq_k"],
        max_q=given["max_q"],
        max_k=given["max_k"],
        left=max(window[0], -1),
        right=0 if given.get("is_causal") else max(window[1], -1),
        scale=query.shape[-1] ** -0.5 if scale is None else scale,
        seqused_k=given.get("seqused_k"),
        block_table=given.get("block_table"),
    )


def _check_shapes(given: Mapping[str, Any]) -> None:
    """Refuse the first tensor that is known not to fit: a kernel would read past its end."""
    query, key, offsets = given["query"], given["key"], given["cu_seq_q"].numel()
    anything: list[Int | None] = [None] * (2 if given.get("block_table") is None else 3)
    wanted: dict[str, list[Int | None]] = {
        "query": [None, None, None],
        "key": [*anything, query.shape[-1]],
        "value": [*key.shape[:-1], None],
        "cu_seq_q": [None],
        "cu_seq_k": [offsets],
        "seqused_k": [offsets - 1],
        "block_table": [offsets - 1, None],
    }
    for name, sizes in wanted.items():
        tensor = given.get(name)
        if tensor is None:
            continue
        pairs = zip(tensor.shape, sizes, strict=False)
        if tensor.dim() != len(sizes) or any(
            size is not None and known(found != size) for found, size in pairs
        ):
            expected = ", ".join("any" if size is None else str(size) for size in sizes)
            raise ValueError(
                f"varlen_attn needs {name} of shape ({expected}) beside the other tensors, "
                f"got {tuple(tensor.shape)}"
            )


_KNOWN = frozenset(
    [
        *("query", "key", "value", "cu_seq_q", "cu_seq_k", "max_q", "max_k", "is_causal"),
        *("scale", "window_size", "enable_gqa", "seqused_k", "block_table", "num_splits"),
    ]
)


def flash2_window(left: int, right: int, max_k: int) -> tuple[int, int]:
    """The window (left, right) as flash attention 2 reads it; -1 for no bound.

    Version 2 drops a bound of at least max_k, and once one side is bounded it takes max_k for
    the other. The second rule shows where a query sequence is longer than max_k + 1: there an
    unbounded right side hides keys from the first rows.
    """
    left = -1 if left >= max_k else left
    right = -1 if right >= max_k else right
    if left < 0 <= right:
        left = max_k
    elif right < 0 <= left:
        right = max_k
    return left, right


def reference(call: PackedAttention) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Attention sequence by sequence in float64, on the host; the three results of the op.

    out[i] = sum_j softmax_j(scale q_i k_j) v_j over the keys that the window of row i holds,
    lined up with the end of the sequence. Only those keys count, so a NaN elsewhere is never
    seen, and a score of -inf counts as no key. A row with no key, and a token of no sequence,
    gives 0 and a log-sum-exp of +inf, as flash attention 2 writes for a row with no key.
    """
    query, key, value = (t.double() for t in (call.query, call.key, call.value))
    tokens, heads, _ = query.shape
    out = query.new_zeros(tokens, heads, value.shape[-1])
    lse = query.new_full((heads, tokens), math.inf)
    starts = call.cu_seq_q.tolist()
    for n, (begin, end) in enumerate(itertools.pairwise(starts)):
        if end > begin:
            k, v = _sequence_keys(call, key, value, n)
            q = query[begin:end]
            out[begin:end], lse[:, begin:end] = _attend(q, k, v, call)
    state = torch.zeros(2, dtype=torch.uint64, device=query.device)
    return out.to(call.query.dtype), lse.float(), state


def reference_of(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """`reference` of a call of `VARLEN_ATTN`, by that operator's own signature."""
    return reference(bind(VARLEN_ATTN, args, kwargs))


def _sequence_keys(
    call: PackedAttention, key: torch.Tensor, value: torch.Tensor, n: int
) -> tuple[torch.Tensor, torch.Tensor]:
    used = None if call.seqused_k is None else int(call.seqused_k[n])
    if call.block_table is not None:
        assert used is not None, "block_table needs seqused_k"
        pages = call.block_table[n][: -(-used // key.shape[1])].long()
        return key[pages].flatten(0, 1)[:used], value[pages].flatten(0, 1)[:used]
    assert call.cu_seq_k is not None, "packed keys need cu_seq_k"
    begin, end = (int(c) for c in call.cu_seq_k[n : n + 2])
    end = end if used is None else begin + used
    return key[begin:end], value[begin:end]


def _attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, call: PackedAttention
) -> tuple[torch.Tensor, torch.Tensor]:
    groups = q.shape[1] // k.shape[1]
    k, v = (t.repeat_interleave(groups, 1).transpose(0, 1) for t in (k, v))
    rows = torch.arange(len(q), device=q.device)[:, None] + k.shape[1] - len(q)
    columns = torch.arange(k.shape[1], device=q.device)
    left, right = flash2_window(call.left, call.right, int(call.max_k))
    seen = torch.ones(len(q), k.shape[1], dtype=torch.bool, device=q.device)
    if left >= 0:
        seen &= columns >= rows - left
    if right >= 0:
        seen &= columns <= rows + right
    scores = q.transpose(0, 1) @ k.transpose(1, 2) * call.scale
    scores = scores.masked_fill(~seen, -math.inf)
    seen = scores != -math.inf
    lse = scores.logsumexp(-1)
    weights = torch.where(seen, scores.softmax(-1), 0.0)
    out = weights @ torch.where(v.isfinite(), v, 0.0)
    for bad, mark in (
        (v.isnan(), math.nan),
        (v == math.inf, math.inf),
        (v == -math.inf, -math.inf),
    ):
        if bad.any():
            reached = (seen.double() @ bad.double()) > 0
            out = out + torch.where(reached, mark, 0.0)
    empty = ~seen.any(-1)
    out = out.masked_fill(empty[..., None], 0.0)
    return out.transpose(0, 1), lse.masked_fill(empty, math.inf)
