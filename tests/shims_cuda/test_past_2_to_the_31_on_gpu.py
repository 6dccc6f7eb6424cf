"""On a GPU: kernels past 2^31 elements. Each test takes up to 60 GiB, one after the other."""

from __future__ import annotations

import pytest
import torch

from graftwork.shims_cuda.index_put.operators import (
    index_put,
    mask_counts,
    mask_positions,
    mask_put,
    mask_values,
)
from graftwork.shims_cuda.scatter import scatter_src, scatter_value
from graftwork.shims_cuda.scatter_reduce import scatter_reduce
from graftwork.shims_cuda.sort import operators

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

BIG = 2**31 + 5


def count_up(count: int, modulus: int, dtype: torch.dtype) -> torch.Tensor:
    """`arange(count) % modulus`, without a large temporary."""
    return torch.arange(modulus, device="cuda", dtype=dtype).repeat(count // modulus + 1)[:count]


def test_scatter_past_2_to_the_31() -> None:
    src = count_up(BIG, 251, torch.uint8)
    index = torch.arange(BIG - 1, -1, -1, device="cuda")
    assert torch.equal(scatter_src(torch.zeros_like(src), 0, index, src), src.flip(0))
    out = scatter_value(torch.zeros_like(src), 0, index[:-2], src[7])
    assert out[0] == out[1] == 0
    assert bool((out[2:] == 7).all())


@pytest.mark.parametrize("reduce", ["sum", "amax", "mean"])
def test_reductions_past_2_to_the_31(reduce: str) -> None:
    base = count_up(BIG, 101, torch.int8)
    index = torch.randperm(2**20, device="cuda")[:5000] * 2048
    index[:3] = torch.tensor([0, BIG - 1, 2**31], device="cuda")
    src = torch.randint(-20, 20, (5000,), device="cuda", dtype=torch.int8)
    out = scatter_reduce(base, 0, index, src, reduce, True, True)
    old = base[index].int()
    ways = {"sum": old + src, "amax": old.maximum(src.int()), "mean": (old + src) // 2}
    assert torch.equal(out[index], ways[reduce].to(torch.int8))
    out[index] = base[index]
    assert torch.equal(out, base)


def test_float_sums_past_2_to_the_31() -> None:
    columns = 2**28
    base = count_up(9 * columns, 97, torch.bfloat16).view(9, columns)
    first = torch.randint(9, (1, columns), device="cuda")
    index = torch.cat([first, (first + 1) % 9])
    src = count_up(2 * columns, 89, torch.bfloat16).view(2, columns)
    out = scatter_reduce(base, 0, index, src, "sum", True, True)
    assert torch.equal(out, base.scatter_add(0, index, src))


def test_rows_past_2_to_the_31() -> None:
    count = 2**21 + 3
    index = torch.arange(count, device="cuda") % 8
    values = (torch.arange(count, device="cuda") // 8 % 3).to(torch.bfloat16)
    x = torch.zeros(8, 1024, dtype=torch.bfloat16, device="cuda")
    out = index_put(x, [index], values[:, None].expand(count, 1024).contiguous(), True, True)
    sums = torch.zeros(8, dtype=torch.float64, device="cuda").index_add(0, index, values.double())
    assert torch.equal(out, sums.to(torch.bfloat16)[:, None].expand(8, 1024))


def test_masks_past_2_to_the_31() -> None:
    x = count_up(BIG, 251, torch.uint8)
    mask = count_up(BIG, 3, torch.uint8) == 0
    counts, total = mask_counts(mask)
    count = int(total)
    assert count == (BIG + 2) // 3
    assert torch.equal(mask_values(x, mask, counts, count), x[::3])
    found = mask_positions(mask, counts, count)[:, 0]
    assert torch.equal(found, torch.arange(0, BIG, 3, device="cuda"))
    del found, counts
    put = mask_put(x, mask, 0, x[:count])
    assert torch.equal(put[::3], x[:count])
    assert torch.equal(put[1::3], x[1::3])
    some = torch.tensor([-1, 0, 2**31], device="cuda")
    out = index_put(x, [some], torch.full((3,), 255, device="cuda", dtype=x.dtype), False, True)
    assert bool((out[some] == 255).all())
    out[some] = x[some]
    assert torch.equal(out, x)


def assert_stably_sorted(x: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> None:
    """Values ascend, are where the indices say, and equal ones come by index: a permutation."""
    for row in range(x.shape[0]):
        v, i = values[row], indices[row]
        assert torch.equal(x[row][i], v)
        rises = v[1:] > v[:-1]
        assert bool((rises | ((v[1:] == v[:-1]) & (i[1:] > i[:-1]))).all())


def test_long_rows_past_2_to_the_31() -> None:
    x = torch.randint(0, 256, (3, 2**30 - 7), device="cuda", dtype=torch.uint8)
    assert_stably_sorted(x, *operators.sort(x, 1, False))
    values, indices = operators.topk(x, 50, 1, True)
    assert torch.equal(values, torch.topk(x, 50).values)
    assert torch.equal(x.gather(1, indices), values)


def test_many_rows_past_2_to_the_31() -> None:
    x = torch.randint(-99, 99, (2**25 + 1, 65), device="cuda", dtype=torch.int16)
    values, indices = operators.sort(x, 1, True)
    for rows in (slice(0, 1000), slice(-(2**20), None)):
        expected = torch.sort(x[rows], dim=1, descending=True, stable=True)
        assert torch.equal(values[rows], expected.values)
        assert torch.equal(indices[rows], expected.indices)
