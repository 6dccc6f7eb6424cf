"""Examples of `varlen_attn` for the properties of every plugin that implements it."""

from __future__ import annotations

import inspect
import math
from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch.nn.attention.varlen import AuxRequest, varlen_attn

from graftwork.plugins.properties import Case

from .packed import VARLEN_ATTN, bind, reference

_PARAMETERS = inspect.signature(varlen_attn).parameters
_GROUPED: dict[str, Any] = {"enable_gqa": True} if "enable_gqa" in _PARAMETERS else {}
WINDOWS = ((-1, -1), (-1, 0), (0, 0), (2, 0), (2, 2), (-1, 3), (3, -1), (40, 1))


def takes(name: str) -> bool:
    """Whether this torch's `varlen_attn` has the argument."""
    return name in _PARAMETERS


def attend_packed(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_seq_q: torch.Tensor,
    cu_seq_k: torch.Tensor,
    seqused_k: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    *,
    max_q: int | None = None,
    max_k: int | None = None,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The program: attention, its heads flattened, and the log-sum-exp.

    Without `max_q` and `max_k` the token counts, which are sizes, stand in for them.
    """
    optional = {"seqused_k": seqused_k, "block_table": block_table}
    given: dict[str, Any] = {name: t for name, t in optional.items() if t is not None}
    out, lse = varlen_attn(
        query,
        key,
        value,
        cu_seq_q,
        cu_seq_k,
        query.shape[0] if max_q is None else max_q,
        key.shape[0] if max_k is None else max_k,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=window,
        **_GROUPED,
        **given,
    )
    return out.flatten(1), lse


def attend_packed_reference(
    *inputs: torch.Tensor,
    max_q: int | None = None,
    max_k: int | None = None,
    window: tuple[int, int] = (-1, -1),
    scale: float | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """`attend_packed`, sequence by sequence in float64."""
    query, key, value, cu_seq_q, cu_seq_k, *optional = inputs
    arguments = dict(zip(("seqused_k", "block_table"), optional, strict=False))
    max_q = query.shape[0] if max_q is None else max_q
    max_k = key.shape[0] if max_k is None else max_k
    call = bind(
        VARLEN_ATTN,
        (query, key, value, cu_seq_q, cu_seq_k, max_q, max_k),
        {"scale": scale, "window_size": window, **arguments},
    )
    out, lse, _ = reference(call)
    return out.flatten(1), lse


@st.composite
def packed_cases(
    draw: st.DrawFn,
    dtypes: Sequence[torch.dtype],
    *,
    lengths: Sequence[int] = (0, 1, 2, 5, 9),
    head_sizes: Sequence[int] = (1, 5, 16),
    special: bool = False,
    dynamic: bool = False,
    disputed: bool = False,
    used: bool = False,
) -> Case:
    """Ragged batches in buffers with NaN padding; every window, grouped heads, any scale.

    With `special`, NaN and infinities stand inside the sequences too. With `dynamic`, token and
    sequence counts are symbolic and a second batch goes through the same program. Windows that
    flash attention 2 and 3 read differently come only with `disputed`, `seqused_k` and paged keys
    only with `used`, and so do offsets that are a column of a table, or one number expanded.
    """
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    dtype = draw(st.sampled_from(dtypes))
    kv_heads, groups = draw(st.sampled_from([(1, 1), (2, 1), (1, 3), (2, 2)]))
    size = draw(st.sampled_from(head_sizes))
    many = st.lists(
        st.tuples(st.sampled_from(lengths), st.sampled_from(lengths)), min_size=1, max_size=4
    )

    def batch(pairs: list[tuple[int, int]]) -> tuple[torch.Tensor, ...]:
        cu_q, tokens_q = _offsets([q for q, _ in pairs], draw(st.integers(0, 2)))
        cu_k, tokens_k = _offsets([k for _, k in pairs], draw(st.integers(0, 2)))
        shapes = (tokens_q, kv_heads * groups), (tokens_k, kv_heads), (tokens_k, kv_heads)
        packed = [torch.randn(*shape, size, generator=generator).to(dtype) for shape in shapes]
        for tensor, cu in zip(packed, (cu_q, cu_k, cu_k), strict=True):
            if special and tensor.numel():
                tensor.view(-1)[int(torch.randint(tensor.numel(), (), generator=generator))] = (
                    draw(st.sampled_from([math.nan, math.inf, -math.inf]))
                )
            tensor[: int(cu[0])] = math.nan
            tensor[int(cu[-1]) :] = math.nan
        return *packed, cu_q, cu_k

    first = batch(draw(many))
    more = (batch(draw(many)),) if dynamic else ()
    longest = max(lengths)
    settings = {
        "window": draw(st.sampled_from(WINDOWS)),
        "scale": draw(st.sampled_from([None, 0.3, -0.2])),
        "max_q": longest,
        "max_k": longest + draw(st.sampled_from([0, 7])),
    }
    if disputed:
        settings["max_k"] = max(1, int(first[4].diff().max()))
    if used and takes("seqused_k"):
        first += (_used(draw, first[4]),)
        if takes("block_table") and draw(st.booleans()):
            first = _paged(first, draw(st.sampled_from([4, 16])), generator)
    if used:
        first = (*first[:3], *(_laid_out(draw, offsets) for offsets in first[3:]))
    shapes: Any = None
    if dynamic:
        names = ("queries", "keys", "offsets")
        queries, keys, offsets = ({0: torch.export.Dim(name, max=4096)} for name in names)
        # The program is exported as one that takes all its tensors as `*inputs`.
        shapes = ((queries, keys, keys, offsets, offsets),)
    return Case(attend_packed, first, settings, dynamic_shapes=shapes, more_inputs=more)


def _offsets(lengths: Sequence[int], padding: int) -> tuple[torch.Tensor, int]:
    """Offsets of packed sequences with `padding` tokens before, and at least 2 in all with it."""
    ends = torch.tensor([padding, *lengths]).cumsum(0)
    return ends.to(torch.int32), int(ends[-1]) + padding + 2


def _laid_out(draw: st.DrawFn, offsets: torch.Tensor) -> torch.Tensor:
    """The same numbers, contiguous or every other one in memory, a page table also by columns."""
    if draw(st.booleans()):
        return offsets
    if offsets.dim() == 2 and draw(st.booleans()):
        return offsets.t().contiguous().t()
    if offsets.dim() == 1 and bool((offsets == offsets[0]).all()):
        return offsets[:1].clone().expand(len(offsets))
    return torch.stack([offsets, offsets + 100], -1)[..., 0]


def _used(draw: st.DrawFn, cu_seq_k: torch.Tensor) -> torch.Tensor:
    lengths = cu_seq_k.diff().tolist()
    if draw(st.booleans()):
        return torch.tensor([min(lengths)] * len(lengths), dtype=torch.int32)
    return torch.tensor([draw(st.integers(0, n)) for n in lengths], dtype=torch.int32)


def _paged(
    inputs: tuple[torch.Tensor, ...], page: int, generator: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """The same keys in pages in no order, NaN where a page holds no token of a sequence."""
    query, key, value, cu_seq_q, cu_seq_k, used = inputs
    lengths = cu_seq_k.diff().tolist()
    width = max(1, -(-max(lengths) // page))
    order = torch.randperm(len(lengths) * width + 1, generator=generator)
    table = order[: len(lengths) * width].view(-1, width).to(torch.int32)
    pools = [t.new_full((len(order), page, *t.shape[1:]), math.nan) for t in (key, value)]
    for pool, packed in zip(pools, (key, value), strict=True):
        for n, begin in enumerate(cu_seq_k[:-1].tolist()):
            for j in range(lengths[n]):
                pool[table[n, j // page], j % page] = packed[begin + j]
    return query, *pools, cu_seq_q, cu_seq_k, used, table
