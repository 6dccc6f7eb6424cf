"""Sizes off the beaten track, family by family: powers of two and odd ones, few and many columns.

`SWEEPS` maps a plugin's id to a function that gives names and makers of cases.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain, product
from typing import Any

import torch

from graftwork.plugins import Case
from graftwork.shims_cuda.index_put.properties import find, select
from graftwork.shims_cuda.index_put.properties import put as index_put
from graftwork.shims_cuda.scatter.properties import put
from graftwork.shims_cuda.scatter_reduce.properties import reduced
from graftwork.shims_cuda.sort.promises import sort_stable, topk_values

Sizes = Iterator[tuple[str, Callable[[str], Case]]]
ROWS_FROM = ((64, 65536), (1000, 1000), (8192, 65536), (65536, 8192), (65536, 63))
COLUMNS = (1, 3, 64, 257, 1024)


def inputs(
    rows: int, count: int, columns: int, expanded: bool, device: str
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    base, src = (torch.randn(n, columns, device=device) for n in (rows, count))
    index = torch.randint(rows, (count, 1 if expanded else columns), device=device)
    return base, index.expand(count, columns), src


def scatter(rows: int, count: int, columns: int, expanded: bool, device: str) -> Case:
    return Case(put, inputs(rows, count, columns, expanded, device), {"dim": 0})


def last_dim(rows: int, count: int, columns: int, expanded: bool, device: str) -> Case:
    base, index, src = inputs(rows, count, columns, False, device)
    moved = tuple(t.t().contiguous() for t in (base, index, src))
    return Case(put, moved, {"dim": 1})


def scatter_reduce(
    reduce: str, rows: int, count: int, columns: int, expanded: bool, device: str
) -> Case:
    given = inputs(rows, count, columns, expanded, device)
    return Case(reduced, given, {"dim": 0, "reduce": reduce})


def accumulate(rows: int, count: int, columns: int, expanded: bool, device: str) -> Case:
    base, index, src = inputs(rows, count, columns, True, device)
    settings = {"at": (0,), "accumulate": True}
    return Case(index_put, (base, src, index[:, 0].contiguous()), settings)


def shapes() -> Iterator[tuple[int, int, int]]:
    """Rows, count and columns, up to 2^26 elements."""
    for (rows, count), columns in product(ROWS_FROM, COLUMNS):
        yield rows, count, columns


def named(makers: dict[str, Callable[..., Case]], kinds: tuple[bool, ...]) -> Sizes:
    for (rows, count, columns), expanded in product(shapes(), kinds):
        for name, make in makers.items():
            kind = "rows" if expanded else "elements"
            label = f"{name} {rows}x{columns} from {count}, {kind}"
            yield label, partial(make, rows, count, columns, expanded)


def picks() -> Sizes:
    for size, dense in product((1000, 4097**2, 2**26), (0.01, 0.5, 0.99)):

        def make(device: str, size: int = size, dense: float = dense) -> Case:
            x = torch.randn(size, device=device)
            return Case(select, (x, torch.rand(size, device=device) < dense))

        yield f"masked_select {size} of which {dense}", make

        def make_find(device: str, size: int = size, dense: float = dense) -> Case:
            return Case(find, (torch.rand(size, device=device) < dense,))

        yield f"nonzero {size} of which {dense}", make_find


SORTED = (
    *((1, n) for n in (63, 1000, 8192, 8193, 10_000, 100_003, 2**18, 2**20 + 1, 2**22, 2**24 + 1)),
    *((rows, n) for rows in (3, 64, 1000) for n in (7, 257, 1024, 8192, 10_001, 65_537)),
    *((2**20, 8), (2**16, 63), (4097, 4097), (30, 2**19 + 3)),
)


def sorts() -> Sizes:
    for rows, n in SORTED:
        for dtype in (torch.float32, torch.bfloat16, torch.int64)[: 1 if n % 2 else 3]:

            def make(device: str, shape: Any = (rows, n), dtype: torch.dtype = dtype) -> Case:
                x = (torch.randn(shape, device=device) * 2**20).to(dtype)
                return Case(sort_stable, (x,), {"dim": 1, "descending": False})

            yield f"sort {dtype} {rows}x{n}", make

        def make_topk(device: str, shape: Any = (rows, n)) -> Case:
            return Case(topk_values, (torch.randn(shape, device=device),), {"k": 50})

        if n > 8192:
            yield f"topk 50 of {rows}x{n}", make_topk


SWEEPS: dict[str, Callable[[], Sizes]] = {
    "scatter": lambda: chain(
        named({"scatter": scatter}, (False, True)),
        (item for item in named({"scatter dim 1": last_dim}, (False,)) if "x64 " in item[0]),
    ),
    "scatter-reduce": lambda: chain(
        named({"sum": partial(scatter_reduce, "sum")}, (False, True)),
        named({"amax": partial(scatter_reduce, "amax")}, (False,)),
    ),
    "index-put": lambda: chain(named({"accumulate": accumulate}, (True,)), picks()),
    "sort": sorts,
}
