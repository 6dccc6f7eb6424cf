"""The PTX in which tiles are sorted and counted on NVIDIA GPUs, run on the CPU line by line."""

from __future__ import annotations

from typing import Any

import numpy as np
import ptx
import pytest
import torch
import triton.language as tl
from triton.runtime.interpreter import TensorHandle

from graftwork.plugins.toolkit import kernels
from graftwork.shims_cuda.sort import radix_kernels, rows, warp_ranks
from graftwork.shims_cuda.sort.promises import make

THREADS = 32 * warp_ranks.WARPS
DIGITS = {
    "random": lambda random, size: random.integers(0, 256, size),
    "few": lambda random, size: random.integers(0, 3, size) * 127,
    "one": lambda random, size: np.full(size, 200),
    "falling": lambda random, size: 255 - np.arange(size) * 256 // size,
}


def run(text: str, items: int, what: np.ndarray, places: np.ndarray) -> np.ndarray:
    """The results by place, with element `i * THREADS + t` in thread t's i-th register."""
    given = [*what.reshape(items, THREADS), *places.reshape(items, THREADS)]
    results = ptx.run(text, [words.astype(np.uint32) for words in given], items)
    out = np.empty(items * THREADS, np.int64)
    out[places] = np.concatenate(results)
    return out


@pytest.mark.parametrize("kind", DIGITS)
@pytest.mark.parametrize("items", [1, 8])
def test_a_tile_is_ordered_by_digit_then_place(kind: str, items: int) -> None:
    random = np.random.default_rng(1)
    size = items * THREADS
    digits = DIGITS[kind](random, size)
    places = random.permutation(size)  # a thread may hold any elements
    words = run(warp_ranks.order(items), items, digits[places] << 16 | places, places)
    expected = np.argsort(digits, kind="stable")
    assert (words & 0xFFFF == expected).all()
    assert (words >> 16 == digits[expected]).all()


@pytest.mark.parametrize("kind", DIGITS)
@pytest.mark.parametrize("items", [1, 8])
def test_digits_are_counted_and_added_up(kind: str, items: int) -> None:
    random = np.random.default_rng(2)
    size = items * THREADS
    digits = DIGITS[kind](random, size)
    digits[random.permutation(size)[:37]] = 300  # past the end of a row: any from 256 up
    places = random.permutation(size)
    found = run(warp_ranks.count(items), items, digits[places], places)
    counts = np.bincount(digits, minlength=301)[:256]
    assert (found[:256] & 0xFFFF == counts).all()
    assert (found[:256] >> 16 == np.cumsum(counts) - counts).all()
    assert (found[256:] == 0).all()


def test_the_operands_are_results_then_both_arguments() -> None:
    assert warp_ranks.constraints(2) == "=&r,=&r,r,r,r,r"


@pytest.mark.parametrize("text", [warp_ranks.order(2), warp_ranks.count(2)])
def test_the_text_survives_between_any_quotes(text: str) -> None:
    """Inductor writes a kernel's constants into a Python string of its own."""
    assert not set(text) & set("\n\\'\"")


def interpret(text: Any, what: tl.tensor, place: tl.tensor) -> tl.tensor:
    """`radix_kernels._in_ptx`, in Triton's interpreter."""
    items = radix_kernels.ITEMS.value
    found = run(text.value, items, what.handle.data, place.handle.data)[place.handle.data]
    return tl.tensor(TensorHandle(found.astype(np.int32), tl.int32), what.type)


@pytest.mark.parametrize("descending", [False, True])
@pytest.mark.parametrize("dtype", [torch.bool, torch.int8, torch.bfloat16, torch.float32], ids=str)
def test_long_rows_sorted_in_ptx_equal_eager(
    dtype: torch.dtype, descending: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "is_interpreted", lambda tensor: False)
    monkeypatch.setattr(rows, "takes_ptx", lambda device: True)
    monkeypatch.setattr(rows, "CHUNKS", 2)  # so a chunk has several tiles
    monkeypatch.setattr(radix_kernels, "_in_ptx", interpret)
    x = make(dtype, (2, 3 * 2048 + 5), "few", 3)
    values, indices = torch.sort(x, dim=1, descending=descending, stable=True)
    found = rows.radix_rows(x, descending)
    assert torch.equal(found[1], indices)
    assert found[0].view(torch.uint8).equal(values.view(torch.uint8))  # NaN and -0.0 too
