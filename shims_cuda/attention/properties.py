"""What the attention kernels promise: packed attention sequence by sequence, SDPA as eager."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from graftwork.plugins import Benchmark, Case, Property, Refusal, Tolerance
from graftwork.plugins.toolkit.packed_cases import (
    attend_packed,
    attend_packed_reference,
    packed_cases,
)

LENGTHS = (0, 1, 5, 33, 70, 130)
SIZES = (1, 16, 33)
SINGLE = Tolerance(relative=2e-5, absolute=1e-5)
HALF = Tolerance(relative=1e-2, absolute=2e-3)
BFLOAT16 = Tolerance(relative=2e-2, absolute=2e-2)  # weights are rounded to 8 bits, too


def properties() -> list[Property]:
    """Properties of both operators, refused inputs and benchmark sizes."""
    packed = functools.partial(packed_cases, lengths=LENGTHS, head_sizes=SIZES, used=True)
    return [
        Property(
            "packed-equals-sequence-by-sequence",
            st.one_of(packed([torch.float32]), packed([torch.float32], disputed=True)),
            SINGLE,
            reference=attend_packed_reference,
            reference_reason=_BY_SEQUENCE,
            road="direct",
            refused=[_ungrouped()],
            benchmarks=_benchmarks(),
        ),
        Property(
            "half-types-are-close",
            packed([torch.float16]),
            HALF,
            reference=attend_packed_reference,
            reference_reason=_BY_SEQUENCE,
            road="direct",
        ),
        Property(
            "bfloat16-is-close",
            packed([torch.bfloat16]),
            BFLOAT16,
            reference=attend_packed_reference,
            reference_reason=_BY_SEQUENCE,
            road="direct",
        ),
        Property(
            "scaled-dot-product-attention-equals-eager",
            dense_cases(),
            SINGLE,
            reference=attend_reference,
            reference_reason="eager's float32 kernel is inexact; attention in float64",
        ),
        Property(
            "scaled-dot-product-attention-in-bfloat16-is-close",
            dense_cases(torch.bfloat16),
            BFLOAT16,
            reference=attend_reference,
            reference_reason="eager rounds in another order; attention in float64",
        ),
    ]


_BY_SEQUENCE = "attention sequence by sequence in float64"


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> torch.Tensor:
    """The program: attention, then the view that model code puts behind it."""
    out = F.scaled_dot_product_attention(
        query, key, value, mask, is_causal=causal, scale=scale, enable_gqa=grouped
    )
    return out.transpose(1, 2).flatten(2)


def attend_reference(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None = None,
    *,
    causal: bool = False,
    scale: float | None = None,
    grouped: bool = False,
) -> torch.Tensor:
    """`attend` from its formula in float64; a row that sees no key gives 0."""
    q, k, v = (t.double() for t in (query, key, value))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    scores = q @ k.transpose(2, 3) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        seen = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, -torch.inf)
    if mask is not None:
        blocked = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores
        scores = blocked if mask.dtype == torch.bool else scores + mask
    weights = scores.softmax(-1).masked_fill((scores == -torch.inf).all(-1, True), 0.0)
    return (weights @ v).transpose(1, 2).flatten(2).to(query.dtype)


@st.composite
def dense_cases(draw: st.DrawFn, dtype: torch.dtype = torch.float32) -> Case:
    """Masks of either kind and any broadcast, causal, scales, groups, two head sizes."""
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    batch = draw(st.integers(1, 2))
    kv_heads, group = draw(st.sampled_from([(1, 1), (2, 1), (2, 3), (1, 4)]))
    heads, grouped = kv_heads * group, kv_heads > 1 and group > 1
    rows, keys = draw(st.sampled_from([1, 7, 70])), draw(st.sampled_from([1, 33, 80]))
    size, size_v = draw(st.sampled_from([(16, 16), (8, 24), (33, 5)]))
    kind = draw(st.sampled_from(["none", "causal", "bool", "float"]))
    inputs = [
        torch.randn(*shape, generator=generator).to(dtype)
        for shape in (
            (batch, heads, rows, size),
            (batch, kv_heads, keys, size),
            (batch, kv_heads, keys, size_v),
        )
    ]
    if kind in ("bool", "float"):
        full = (batch, heads, rows, keys)
        shape = [draw(st.sampled_from([1, extent])) for extent in full]
        shape = shape[draw(st.integers(0, 2)) :]
        noise = torch.randn(shape, generator=generator)
        inputs.append(noise > 0.3 if kind == "bool" else noise.to(dtype))
    settings = {
        "causal": kind == "causal",
        "scale": draw(st.sampled_from([None, 0.3])),
        "grouped": grouped,
    }
    return Case(attend, tuple(inputs), settings)


def _ungrouped() -> Refusal:
    query, key, offsets = torch.zeros(4, 3, 16), torch.zeros(4, 2, 16), torch.tensor([0, 4])
    case = Case(attend_packed, (query, key, key, offsets, offsets), {"max_q": 4, "max_k": 4})
    return Refusal("heads-that-do-not-divide", case, ValueError, "3")


def _benchmarks() -> list[Benchmark]:
    shapes = {
        "16x1024-h16-d64": ([1024] * 16, 64),
        "64x512-h16-d128": ([512] * 64, 128),
        "4x4096-h16-d128": ([4096] * 4, 128),
    }
    return [
        Benchmark(name, functools.partial(_packed, lengths, size))
        for name, (lengths, size) in shapes.items()
    ]


def _packed(lengths: Sequence[int], size: int, device: str) -> Case:
    offsets = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    shape = (sum(lengths), 16, size)
    tensors = [torch.randn(shape, device=device, dtype=torch.bfloat16) for _ in range(3)]
    constants = {"max_q": max(lengths), "max_k": max(lengths)}
    return Case(attend_packed, (*tensors, offsets, offsets), constants)
