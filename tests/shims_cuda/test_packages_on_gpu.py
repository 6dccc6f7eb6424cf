"""On a GPU: every kernel plugin compiled into an AOTInductor package, which equals ATen.

`lower` itself compares what torch's loader runs with eager; other sizes follow, by our runner.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils import _pytree as pytree

import graftwork

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

Inputs = tuple[torch.Tensor, ...]
COUNT = torch.export.Dim("count", min=0, max=100_000)
SOME = torch.export.Dim("some", min=16, max=100_000)
ANY = torch.export.Dim.DYNAMIC


class Program(torch.nn.Module):
    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: torch.Tensor) -> Any:
        return self.function(*inputs)


def rows(count: int) -> Inputs:
    """A base, an index that names each of its rows at most once, and as many whole numbers."""
    base = torch.randn(2 * count + 16, 64, device="cuda").round()  # a dim of ANY size is never 0
    index = torch.rand(2 * count + 16, 64, device="cuda").argsort(0)[:count]
    return base, index, torch.randn(count, 64, device="cuda").round()


def sums(count: int) -> Inputs:
    """As `rows`, but many on a row, whose sums are exact in any order."""
    base, index, src = rows(count)
    return base, index % 11, src


def numbers(count: int) -> Inputs:
    """Distinct numbers, in rows that a program of its own sorts and in one that takes many."""
    x = torch.randperm(64 * count, device="cuda").float()
    return x.view(64, count), x


def heads(count: int, size: int = 64) -> Inputs:
    query, key, value = (
        torch.randn(2, 4, count, size, device="cuda", dtype=torch.float16) for _ in range(3)
    )
    return query, key, value


def image(count: int) -> Inputs:
    return (torch.rand(2, 3, count, 200, device="cuda"),)


MANY: Any = ({0: ANY}, {0: COUNT}, {0: COUNT})
# name: plugin, program, its inputs by a size, which of their dimensions are dynamic
PROGRAMS: dict[str, tuple[str, Callable[..., Any], Callable[[int], Inputs], Any]] = {
    "scatter": (
        "scatter",
        lambda base, index, src: base.scatter(0, index, src),
        rows,
        MANY,
    ),
    "sums": (
        "scatter-reduce",
        lambda base, index, src: base.scatter_add(0, index, src),
        sums,
        MANY,
    ),
    "extremes": (
        "scatter-reduce",
        lambda base, index, src: base.scatter_reduce(0, index, src, "amax", include_self=False),
        sums,
        MANY,
    ),
    "accumulating": (
        "index-put",
        lambda base, index, src: base.index_put((index[:, 0],), src, accumulate=True),
        sums,
        MANY,
    ),
    "filling": (
        "index-put",
        lambda base, src: torch.where(base > 0, base, 0).index_put((base > 0,), src.sum()),
        lambda count: sums(count)[::2],
        ({0: ANY}, {0: COUNT}),
    ),
    "picking": (
        "index-put",
        lambda src: (src[src > 1], torch.nonzero(src < 0)),
        lambda count: sums(count)[2:],
        ({0: COUNT},),
    ),
    "sorting": (
        "sort",
        lambda x: torch.sort(x, dim=1, descending=True, stable=True),
        lambda count: numbers(count)[:1],
        ({1: SOME},),
    ),
    "long-sorting": (
        "sort",
        lambda long: torch.sort(long, stable=True),
        lambda count: numbers(count)[1:],
        ({0: ANY},),
    ),
    "topk": (
        "sort",
        lambda long: torch.topk(long, 9).values,
        lambda count: numbers(count)[1:],
        ({0: ANY},),
    ),
    "unique": (
        "unique",
        lambda index: torch.unique(index, return_inverse=True, return_counts=True),
        lambda count: sums(count)[1:2],
        ({0: COUNT},),
    ),
    "attention": (
        "attention",
        lambda query, key, value: F.scaled_dot_product_attention(query, key, value),
        heads,
        ({2: SOME}, {2: SOME}, {2: SOME}),
    ),
    "attention-in-gluon": (  # on a Hopper GPU
        "attention",
        lambda query, key, value: F.scaled_dot_product_attention(query, key, value),
        lambda count: heads(count, 128),
        ({2: SOME}, {2: SOME}, {2: SOME}),
    ),
    "resize": (
        "resize",
        lambda x: F.interpolate(x, size=(57, 61), mode="bilinear", antialias=True),
        image,
        ({2: SOME},),
    ),
}


@pytest.mark.parametrize("sizes", ["static", "dynamic"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_package_equals_eager(name: str, sizes: str, tmp_path: Path) -> None:
    plugin, function, draw, dynamic = PROGRAMS[name]
    program, inputs = Program(function), draw(300)
    lowered = graftwork.lower(
        program,
        inputs,
        target="aoti",
        settings={"device": "cuda"},
        directory=tmp_path,
        dynamic_shapes={"inputs": dynamic} if sizes == "dynamic" else None,
    )
    fired = {entry.id: entry.fired for entry in lowered.report.plugins}
    assert fired[plugin] > 0, lowered.report.plugins
    package = graftwork.load(lowered.artifact)
    counts = [300, 517] if sizes == "dynamic" else [300]
    if sizes == "dynamic" and COUNT in dynamic[-1].values():
        counts.append(0)  # tensors without memory, which no kernel may touch
    for given in map(draw, counts):
        ours, eager = pytree.tree_leaves(package(*given)), pytree.tree_leaves(program(*given))
        for out, expected in zip(ours, eager, strict=True):
            tolerance = 0.0 if plugin not in ("attention", "resize") else 2e-3
            torch.testing.assert_close(out, expected, rtol=tolerance, atol=tolerance)
