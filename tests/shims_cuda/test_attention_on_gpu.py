"""On a GPU: the error against attention in float64, at most 1.5 times that of torch's kernels."""

from __future__ import annotations

import itertools
import math
import random

import pytest
import torch
import torch.nn.functional as F
from torch.nn.attention.varlen import varlen_attn

from graftwork.plugins.toolkit.packed import VARLEN_ATTN, bind, reference
from graftwork.shims_cuda.attention.dense import attend_dense
from graftwork.shims_cuda.attention.packed import attend_packed, varlen_attention
from graftwork.shims_cuda.attention.tiles import split_tiles, target_archs

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

HALVES = (torch.bfloat16, torch.float16)
WINDOWS = {"full": [(-1, -1)], "causal": [(-1, 0)], "window": [(0, 3), (40, 0), (100, 50)]}
LENGTHS = (0, 1, 2, 17, 63, 64, 65, 128, 200, 333, 600)


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device="cuda")


def assert_close_enough(ours: torch.Tensor, theirs: torch.Tensor, exact: torch.Tensor) -> None:
    error, allowed = (ours.double() - exact).norm(), (theirs.double() - exact).norm()
    assert error <= 1.5 * allowed + 1e-6 * exact.norm()


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("kind", WINDOWS)
@pytest.mark.parametrize("size", [40, 64, 128, 256])
def test_packed_attention(size: int, kind: str, dtype: torch.dtype, examples: int) -> None:
    draw = random.Random(f"{size} {kind} {dtype}")
    torch.manual_seed(draw.randrange(1 << 30))
    for _ in range(5 * examples):
        heads, group = draw.choice([4, 8]), draw.choice([1, 2, 4])
        lengths = [draw.choice(LENGTHS) for _ in range(draw.randint(1, 6))] + [5]
        cu, longest = offsets(lengths), max(lengths)
        query = torch.randn(sum(lengths), heads, size, device="cuda", dtype=dtype)
        key, value = (
            torch.randn(sum(lengths), heads // group, size, device="cuda", dtype=dtype)
            for _ in range(2)
        )
        query *= draw.choice([1, 3])
        window, scale = draw.choice(WINDOWS[kind]), draw.choice([None, 0.05, 0.5])
        wide = [t.repeat_interleave(group, 1) for t in (key, value)]
        call = (cu, cu, longest, longest)
        settings = {"window_size": list(window), "scale": scale}
        doubles = [t.double() for t in (query, *wide)]
        exact, *_ = reference(bind(VARLEN_ATTN, (*doubles, *call), settings))
        flash = varlen_attn(query, *wide, *call, window_size=window, scale=scale)
        ours, *_ = attend_packed(
            *(query, key, value, *call), **settings, archs=(), precision="ieee", flash2=True
        )
        assert_close_enough(ours, flash, exact)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_decoding_from_pages(dtype: torch.dtype, examples: int) -> None:
    draw = random.Random(str(dtype))
    torch.manual_seed(0)
    for _ in range(5 * examples):
        used = [draw.choice([1, 63, 64, 65, 700, 2000, 2560]) for _ in range(draw.randint(1, 6))]
        page, group = draw.choice([16, 24, 64, 80]), draw.choice([2, 8])
        check_decoding(used, 2560, page, 8 // group, group, dtype)


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("page", [0, 64, 128])
def test_decoding_with_two_programs_a_multiprocessor(page: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    if torch.cuda.get_device_properties().multi_processor_count == 132:
        tiles = split_tiles(4, 128, 2, "ieee", target_archs(()), page, 4 * 8, 8192)
        assert tiles is not None and tiles.warps == 4
    for used in ([8192] * 4, [8192, 5001, 77, 1], [0, 1023, 1024, 1025]):
        check_decoding(used, 8192, page, 8, 4, dtype)


def check_decoding(
    used: list[int], longest: int, page: int, kv_heads: int, group: int, dtype: torch.dtype
) -> None:
    """One query a sequence, and keys in pages, or without one after the other.

    Torch's kernel of this release may take no pages, so it gets the keys gathered.
    """
    pages = -(-longest // page) * len(used) if page else 0
    shape = (pages, page) if page else (sum(used),)
    key, value = (torch.randn(*shape, kv_heads, 128, device="cuda", dtype=dtype) for _ in range(2))
    table = torch.randperm(pages, device="cuda").view(len(used), -1).int()
    query = torch.randn(len(used), kv_heads * group, 128, device="cuda", dtype=dtype)
    cu, count = offsets([1] * len(used)), torch.tensor(used, dtype=torch.int32, device="cuda")
    gathered = [
        torch.cat([t[row.long()].flatten(0, 1)[:n] for row, n in zip(table, used, strict=True)])
        if page
        else t
        for t in (key, value)
    ]
    wide = [t.repeat_interleave(group, 1) for t in gathered]
    call = (cu, offsets(used), 1, longest)
    doubles = [t.double() for t in (query, *wide)]
    exact, *_ = reference(bind(VARLEN_ATTN, (*doubles, *call), {}))
    flash = varlen_attn(query, *wide, *call)
    if page:
        ours = decoded(query, key, value, cu, count, table)
    else:
        settings = {"archs": (), "precision": "ieee", "flash2": True}
        ours, *_ = attend_packed(query, key, value, *call, **settings, enable_gqa=True)
    assert_close_enough(ours, flash, exact)


def decoded(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cu: torch.Tensor,
    used: torch.Tensor,
    table: torch.Tensor,
) -> torch.Tensor:
    """The operator itself: torch's own may have no arguments for pages, which it would get."""
    group, pages, width = query.shape[1] // key.shape[2], table.shape[1], query.shape[2]
    itemsize, page = query.element_size(), key.shape[1]
    longest, pairs = pages * page, table.shape[0] * key.shape[2]
    tiles = split_tiles(group, width, itemsize, "ieee", target_archs(()), page, pairs, longest)
    assert tiles is not None
    window = [-1, -1]
    out, _ = varlen_attention(
        *(query, key, value, cu, None, used, table, longest, window, width**-0.5),
        *(True, "ieee", True, tiles.numbers()),
    )
    return out


@pytest.mark.parametrize("dtype", [*HALVES, torch.float32], ids=str)
@pytest.mark.parametrize("sizes", [(64, 32), (48, 24), (32, 64), (16, 64), (128, 32)], ids=str)
def test_values_of_another_width(sizes: tuple[int, int], dtype: torch.dtype) -> None:
    """With rows that no vector load takes, so that keys and values share memory in turn."""
    torch.manual_seed(0)
    for rows, keys in ((200, 33), (70, 80), (5, 300), (13, 1500)):
        query, key, value = (
            torch.randn(2, 2, count, size + 1, device="cuda", dtype=dtype)[..., :size]
            for count, size in ((rows, sizes[0]), (keys, sizes[0]), (keys, sizes[1]))
        )
        ours = attend_dense(query, key, value, archs=(), precision="ieee")
        # Eager's float32 kernel takes no such rows.
        whole = [t.contiguous() for t in (query, key, value)]
        exact = F.scaled_dot_product_attention(*(t.double() for t in whole))
        theirs = F.scaled_dot_product_attention(*whole)
        assert_close_enough(ours, theirs, exact)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["full", "causal", "bool", "float"])
@pytest.mark.parametrize("size", [64, 128])
def test_dense_attention(size: int, kind: str, dtype: torch.dtype, examples: int) -> None:
    draw = random.Random(f"{size} {kind}")
    torch.manual_seed(draw.randrange(1 << 30))
    for _ in range(5 * examples):
        keys = draw.choice([1, 33, 80, 256, 500, 1030])
        rows = keys if kind == "causal" else draw.choice([1, 5, 64, 130, 300, 777])
        shape = (draw.randint(1, 3), draw.choice([2, 4]))
        query = torch.randn(*shape, rows, size, device="cuda", dtype=dtype)
        key, value = (
            torch.randn(*shape, keys, size, device="cuda", dtype=dtype) for _ in range(2)
        )
        mask = None
        if kind == "bool":
            mask = torch.rand(shape[0], 1, rows, keys, device="cuda") > 0.3
            mask[..., 0] = True
        elif kind == "float":
            mask = torch.randn(1, 1, rows, keys, device="cuda", dtype=dtype)
        scores = query.double() @ key.double().transpose(2, 3) * size**-0.5
        if kind == "causal":
            scores += torch.full_like(scores, -math.inf).triu(1)
        if mask is not None:
            scores = (
                scores.masked_fill(~mask, -math.inf) if kind == "bool" else scores + mask.double()
            )
        exact = scores.softmax(-1) @ value.double()
        causal = kind == "causal"
        eager = F.scaled_dot_product_attention(query, key, value, mask, is_causal=causal)
        ours = attend_dense(query, key, value, mask, is_causal=causal, archs=(), precision="ieee")
        assert_close_enough(ours, eager, exact)


MAGNITUDES = {
    "huge values": (1.0, 1.0, 1e37),
    "small values": (1.0, 1.0, 1e-30),
    "tiny values": (1.0, 1.0, 1e-37),
    "huge queries": (1e37, 1e-37, 1.0),
    "huge keys": (1e-37, 1e37, 1.0),
    "large queries": (1e30, 1e-30, 1.0),
    "large keys": (1e-30, 1e30, 1.0),
}


@pytest.mark.parametrize("name", MAGNITUDES)
@pytest.mark.parametrize("size", [64, 128])
def test_float32_is_right_at_every_magnitude(size: int, name: str) -> None:
    torch.manual_seed(0)
    query, key, value = (
        torch.randn(2, 4, 1024, size, device="cuda") * factor for factor in MAGNITUDES[name]
    )
    exact = F.scaled_dot_product_attention(query.double(), key.double(), value.double())
    ours = attend_dense(query, key, value, archs=(), precision="ieee")
    assert (ours - exact).abs().max() < 5e-6 * exact.abs().max()
    assert (ours - exact).norm() < 1e-6 * exact.norm()


def test_scalar_products_are_added_up_tile_by_tile() -> None:
    """All on one another they are 6.5e-7 off, in a simulation; tile by tile 3.6e-7."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 4, 1024, 64, device="cuda") for _ in range(3))
    value *= 1e37  # too large to be cut into parts
    exact = F.scaled_dot_product_attention(query.double(), key.double(), value.double())
    ours = attend_dense(query, key, value, archs=(), precision="ieee")
    assert (ours - exact).norm() < 5e-7 * exact.norm()


def test_float32_infinity_and_nan_go_where_ieee_products_take_them() -> None:
    query, key, value = (torch.randn(1, 3, 700, 64, device="cuda") for _ in range(3))
    value[0, 0, 3, 0], value[0, 0, 4, 1] = math.inf, math.nan
    key[0, 1, 3, 0], query[0, 2, 5, 5] = math.inf, math.nan
    exact = F.scaled_dot_product_attention(*(x.double().cpu() for x in (query, key, value)))
    ours = attend_dense(query, key, value, archs=(), precision="ieee").cpu()
    torch.testing.assert_close(ours, exact.float(), equal_nan=True, rtol=2e-5, atol=1e-5)
