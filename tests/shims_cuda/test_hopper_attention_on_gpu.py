"""On a Hopper GPU: what its attention kernel computes, in every form and not only those it is
taken for, against attention in float64; errors at most 1.5 times those of torch's kernels."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from graftwork.plugins.toolkit import gluon
from graftwork.plugins.toolkit.packed import VARLEN_ATTN, bind, reference
from graftwork.shims_cuda.attention.dense import dense_attention
from graftwork.shims_cuda.attention.packed import varlen_attention
from graftwork.shims_cuda.attention.tiles import Tiles

pytestmark = [
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() != (9, 0),
        reason="needs a Hopper GPU",
    ),
    pytest.mark.skipif(not gluon.available(), reason="Gluon of this Triton was not checked"),
]

HALVES = (torch.bfloat16, torch.float16)
# (causal, short): each is code of its own.
FORMS = {"full": (False, False), "causal": (True, False), "short-causal": (True, True)}
LENGTHS = (0, 1, 2, 17, 63, 64, 65, 127, 128, 129, 200, 257, 333, 600, 1100)


def tiles(size: int, sweep: int, programs: int = 132, short: bool = False) -> list[int]:
    stages = 2 if size == 128 else 3
    return Tiles(128, 128, 4, stages, sweep, programs=programs, short=int(short)).numbers()


def attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu_q: torch.Tensor,
    cu_k: torch.Tensor,
    causal: bool,
    scale: float | None = None,
    programs: int = 132,
    used: torch.Tensor | None = None,
    short: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    size, window = query.shape[-1], [-1, 0 if causal else -1]
    scale = size**-0.5 if scale is None else scale
    given = tiles(size, query.shape[1] if causal else 1, programs, short)
    rest = (key.shape[0], window, scale, True, "ieee", False, given)
    out, lse = varlen_attention(query, key, value, cu_q, cu_k, used, None, *rest)
    return out, lse


def offsets(lengths: list[int], before: int = 0) -> torch.Tensor:
    ends = itertools.accumulate(lengths, initial=before)
    return torch.tensor(list(ends), dtype=torch.int32, device="cuda")


def assert_close_enough(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    error, allowed = (ours.double() - exact).norm(), (theirs.double() - exact).norm()
    assert error <= 1.5 * allowed + 1e-6 * exact.norm()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [64, 128])
def test_packed_attention(size: int, form: str, dtype: torch.dtype, examples: int) -> None:
    """Grouped heads, empty sequences, other query than key lengths, NaN around the sequences."""
    draw = random.Random(f"{size} {form} {dtype}")
    causal, short = FORMS[form]
    torch.manual_seed(draw.randrange(1 << 30))
    for _ in range(5 * examples):
        heads, group = 4, draw.choice([1, 4])  # others would be kernels of their own to compile
        keys = [draw.choice(LENGTHS) for _ in range(draw.randint(1, 6))] + [5]
        rows = [n if draw.random() < 0.5 else draw.choice(LENGTHS) for n in keys]
        rows[-1] = 5  # torch's kernel stops at a batch without a query
        cu_q, cu_k = offsets(rows, 3), offsets(keys, 2)
        query = torch.randn(sum(rows) + 7, heads, size, device="cuda", dtype=dtype)
        shape = (sum(keys) + 7, heads // group, size)
        key, value = (torch.randn(shape, device="cuda", dtype=dtype) for _ in range(2))
        query *= draw.choice([1, 3])
        scale = draw.choice([None, 0.05, 0.5])
        clean = [t.clone() for t in (query, key, value)]
        for tensor, cu in ((query, cu_q), (key, cu_k), (value, cu_k)):
            tensor[: cu[0]] = tensor[cu[-1] :] = math.nan
        programs = draw.choice([3, 132, 500])
        out, lse = attend(query, key, value, cu_q, cu_k, causal, scale, programs, short=short)
        wide = [t.repeat_interleave(group, 1) for t in clean[1:]]
        longest = (max(rows), max(keys))
        settings = {"window_size": [-1, 0 if causal else -1], "scale": scale}
        doubles = [t.double() for t in (clean[0], *wide)]
        exact, exact_lse, *_ = reference(
            bind(VARLEN_ATTN, (*doubles, cu_q, cu_k, *longest), settings)
        )
        window = (-1, 0 if causal else -1)
        flash = varlen_attn(
            *(clean[0], *wide, cu_q, cu_k, *longest), window_size=window, scale=scale
        )
        inside = slice(int(cu_q[0]), int(cu_q[-1]))
        assert_close_enough(out[inside], flash[inside], exact[inside])
        torch.testing.assert_close(
            lse[:, inside].double(), exact_lse[:, inside].double(), rtol=1e-3, atol=1e-3
        )
        assert not out[: cu_q[0]].any() and not out[cu_q[-1] :].any()


@pytest.mark.parametrize("size", [64, 128])
def test_nan_stays_in_its_sequence(size: int) -> None:
    lengths = [70, 200, 1, 300]
    cu = offsets(lengths)
    clean = [torch.randn(571, 2, size, device="cuda", dtype=torch.float16) for _ in range(3)]
    for causal, short in FORMS.values():
        expected, _ = attend(*clean, cu, cu, causal, short=short)
        spoilt = [t.clone() for t in clean]
        for tensor in spoilt:
            tensor[100] = math.nan
        out, _ = attend(*spoilt, cu, cu, causal, short=short)
        for begin, end in ((0, 70), (270, 571)):
            assert torch.equal(out[begin:end], expected[begin:end])
        assert out[269].isnan().all()


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("form", FORMS)
def test_queries_of_zero_and_values_of_one_give_exactly_one(size: int, form: str) -> None:
    """For every number of keys: what lies past them is not there, whatever it holds."""
    causal, short = FORMS[form]
    lengths = list(range(1, 301))
    cu = offsets(lengths)
    query = torch.zeros(sum(lengths), 2, size, device="cuda", dtype=torch.bfloat16)
    key, value = torch.randn_like(query), torch.ones_like(query)
    out, _ = attend(query, key, value, cu, cu, causal, short=short)
    assert bool((out == 1).all())


def test_used_keys_and_offsets_past_the_buffers() -> None:
    query = torch.randn(300, 2, 128, device="cuda", dtype=torch.bfloat16)
    wild, tame = (
        torch.tensor(n, dtype=torch.int32, device="cuda") for n in ([-3, 140, 999], [0, 140, 300])
    )
    given = [attend(query, query, query, cu, cu, False)[0] for cu in (wild, tame)]
    assert torch.equal(*given)
    used = torch.tensor([50, 160], dtype=torch.int32, device="cuda")
    out, _ = attend(query, query, query, tame, tame, False, used=used)
    parts = [
        F.scaled_dot_product_attention(
            *(t.transpose(0, 1) for t in (query[a:b], query[a : a + n], query[a : a + n]))
        ).transpose(0, 1)
        for a, b, n in ((0, 140, 50), (140, 300, 160))
    ]
    torch.testing.assert_close(out, torch.cat(parts), rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("size", [64, 128])
def test_dense_attention(size: int, form: str, examples: int) -> None:
    """Also as slices of one projection, with tokens outside heads."""
    draw = random.Random(f"{size} {form}")
    causal, short = FORMS[form]
    torch.manual_seed(draw.randrange(1 << 30))
    for _ in range(2 * examples):
        batch, heads, group = draw.randint(1, 3), 4, draw.choice([1, 2])
        rows, keys = draw.choice(LENGTHS[1:]), draw.choice(LENGTHS[1:])
        if draw.random() < 0.5:
            rows = keys
            packed = torch.randn(batch, keys, 3, heads, size, device="cuda").half()
            query, key, value = (packed[:, :, n].transpose(1, 2) for n in range(3))
        else:
            query = torch.randn(batch, heads * group, rows, size, device="cuda").half()
            key, value = (
                torch.randn(batch, heads, keys, size, device="cuda").half() for _ in range(2)
            )
        sweep = query.shape[1] if causal else 1
        ours = dense_attention(
            *(query, key, value, None, causal, size**-0.5, "ieee", False),
            *(draw.random() < 0.5, tiles(size, sweep, short=short)),
        )
        grouped = query.shape[1] > key.shape[1]
        eager = F.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=grouped
        )
        wide = [t.repeat_interleave(query.shape[1] // heads, 1).double() for t in (key, value)]
        exact = F.scaled_dot_product_attention(query.double(), *wide, is_causal=causal)
        assert_close_enough(ours, eager, exact)
