"""`scaled_dot_product_attention` by kernel, in every argument form that exports."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch._ops import OpOverload

from graftwork.plugins import Declined
from graftwork.plugins.toolkit.kernels import is_traced, kernel_op
from graftwork.plugins.toolkit.symbolic import Size, known
from graftwork.plugins.torch_private import untraced

from .checks import check_operands, check_scale, rows_aligned, rows_near
from .choice import Call, choose
from .launch import Problem, run_forward, run_split
from .tiles import Tiles, target_archs

SDPA: OpOverload = torch.ops.aten.scaled_dot_product_attention.default


def attend_dense(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attn_mask: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
    archs: Sequence[str],
    precision: str,
) -> torch.Tensor:
    """The kernel for one call of `scaled_dot_product_attention`: (..., L, E) to (..., L, Ev).

    Raises:
        Declined: dropout, dtypes, head sizes or a scale that the kernel does not take.
    """
    if dropout_p != 0.0:
        raise Declined("the attention kernel has no dropout")
    check_scale(scale)
    batch = _batch(query, key, value, enable_gqa)
    four = [_four_dimensions(t, batch, keep) for t, keep in ((query, 0), (key, 1), (value, 1))]
    q, k, v = (rows_near(t, tokens=2) for t in four)
    check_operands(q, k, v)
    if k.shape[1] != v.shape[1] or q.shape[1] % k.shape[1] != 0:
        raise Declined(f"{q.shape[1]} query heads over {k.shape[1]} and {v.shape[1]} key heads")
    mask = None
    if attn_mask is not None:
        attn_mask.expand(*batch, query.shape[-2], key.shape[-2])  # refuses what does not fit
        mask = _mask_of_four(attn_mask, batch)
    group = q.shape[1] // k.shape[1]
    split, tiles = choose(
        Call(
            queries=q.shape[2],
            keys=k.shape[2],
            size=q.shape[-1],
            size_v=v.shape[-1],
            itemsize=q.element_size(),
            precision=precision,
            archs=target_archs(archs),
            pairs=q.shape[0] * k.shape[1],
            group=group,
            sweep=group if is_causal else 1,
            causal_heads=q.shape[1] if is_causal else 0,
            bare=mask is None,
            aligned=rows_aligned(q, k, v, tokens=2),
            positive=scale is None or scale > 0,
        )
    )
    out = dense_attention(
        q,
        k,
        v,
        mask,
        is_causal,
        float(q.shape[-1] ** -0.5 if scale is None else scale),
        precision,
        split,
        _heads_outside(query, key, value, attn_mask, is_causal, scale, enable_gqa),
        tiles.numbers(),
    )
    result: torch.Tensor = out
    return result if query.dim() == 4 else result.reshape(*batch, query.shape[-2], value.shape[-1])


def _batch(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, grouped: bool
) -> tuple[Size, ...]:
    """The leading dimensions of the result: broadcast ones, the query's heads where grouped."""
    leading = [tuple(t.shape[:-2]) for t in (query, key, value)]
    if grouped and query.dim() >= 3:
        outer = _broadcast([shape[:-1] for shape in leading])
        return (*outer, query.shape[-3])
    return _broadcast(leading)


def _broadcast(shapes: Sequence[tuple[Size, ...]]) -> tuple[Size, ...]:
    return tuple(torch.broadcast_shapes(*shapes))  # type: ignore[no-untyped-call]


def _four_dimensions(tensor: torch.Tensor, batch: tuple[Size, ...], keep: int) -> torch.Tensor:
    """(batch, heads, tokens, size); with `keep` the tensor's own number of heads stays."""
    outer, heads = batch[:-1], batch[-1:]
    if keep and tensor.dim() >= 3:
        heads = (tensor.shape[-3],)
    elif keep:
        heads = (1,) if heads else ()
    tensor = tensor.expand(*outer, *heads, *tensor.shape[-2:])
    while tensor.dim() < 4:
        tensor = tensor.unsqueeze(0)
    return tensor.flatten(0, -4) if tensor.dim() > 4 else tensor


def _mask_of_four(mask: torch.Tensor, batch: tuple[Size, ...]) -> torch.Tensor:
    """(batch, heads, queries, keys), each of them or 1: a compiled program would hold in full
    what is expanded here."""
    if len(batch) > 2 and mask.dim() > 3:
        mask = mask.expand(*batch[:-1], *mask.shape[-3:]).flatten(0, -4)
    while mask.dim() < 4:
        mask = mask.unsqueeze(0)
    return mask


def _heads_outside(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float | None,
    grouped: bool,
) -> bool:
    """Whether eager lays the result out heads outside tokens (contiguous) or tokens outside.

    Views behind the operator were exported for eager's layout, which depends on the kernel that
    eager picks; so ask it.
    """
    if not is_traced(query) or query.dim() != 4:
        return True
    with untraced():
        eager = SDPA(query, key, value, mask, 0.0, causal, scale=scale, enable_gqa=grouped)
    return known(eager.stride(1) >= eager.stride(2))


@kernel_op("graftwork::dense_attention")
def dense_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    causal: bool,
    scale: float,
    precision: str,
    split: bool,
    heads_outside: bool,
    tiles: Sequence[int],
) -> torch.Tensor:
    """softmax(scale q k^T + mask) v: query (B, Hq, L, D), key (B, Hkv, S, D), value (., Dv).

    Last dimensions contiguous; mask (B, Hq, L, S), any of them 1 for all, boolean (True takes
    part) or floating point, any strides. Causal lines up with the beginnings, as ATen has it: row
    i sees keys 0 to i. A row that sees no key gives 0. The result is contiguous, or with
    `heads_outside` unset as (B, L, Hq, Dv) is.
    """
    batch, heads, rows, _ = query.shape
    size_v = value.shape[-1]
    if heads_outside:
        out = query.new_empty(batch, heads, rows, size_v)
    else:
        out = query.new_empty(batch, rows, heads, size_v).transpose(1, 2)
    problem = Problem(
        query,
        key,
        value,
        _strides(query),
        _strides(key),
        _strides(value),
        batches=batch,
        heads=heads,
        kv_heads=key.shape[1],
        tokens_q=rows,
        tokens_k=key.shape[2],
        scale=scale,
        right=0 if causal else -1,
        precision=precision,
        mask=mask,
        strides_m=(0, 0, 0, 0) if mask is None else _mask_strides(mask),
    )
    if split:
        run_split(problem, out, _strides(out), None, Tiles(*tiles))
    else:
        run_forward(problem, out, _strides(out), None, Tiles(*tiles))
    return out


def _mask_strides(mask: torch.Tensor) -> list[Size]:
    sizes = zip(mask.shape, mask.stride(), strict=True)
    return [0 if known(size == 1) else stride for size, stride in sizes]


def _strides(tensor: torch.Tensor) -> tuple[Size, Size, Size]:
    return tensor.stride(0), tensor.stride(2), tensor.stride(1)
