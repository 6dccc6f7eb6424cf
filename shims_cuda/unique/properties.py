"""What `unique` promises: the distinct elements in eager's order, where each is, how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from graftwork.plugins import Benchmark, Case, Property, Refusal, Tolerance

from ..stages.arguments import DTYPES
from ..stages.drawing import ELSEWHERE, layouts, on_cpu, seeds, values, with_special

WHOLE = {"consecutive": False, "return_inverse": True, "return_counts": True}
SAME = Tolerance()
"""Of two zeros either may stand for both."""


def distinct(x: torch.Tensor, consecutive: bool, **settings: Any) -> Any:
    """User code: `torch.unique` or `torch.unique_consecutive`."""
    find = torch.unique_consecutive if consecutive else torch.unique
    return told_by_value(find(x, **settings), **settings)


def told_by_value(result: Any, *, return_inverse: bool, dim: int | None = None, **_: Any) -> Any:
    """The result, an inverse as what stands where it points and how often it points where.

    Each NaN is an element of its own, in no order that eager keeps.
    """
    if not return_inverse:
        return result
    found, inverse, *counts = result
    there = found[inverse] if dim is None else found.movedim(dim, 0)[inverse]
    return found, there, inverse.reshape(-1).sort().values, *counts


def squared(x: torch.Tensor) -> torch.Tensor:
    """A program that works on, with a size that only the device knows."""
    found, inverse = torch.unique(x, return_inverse=True)
    out: torch.Tensor = (found * found)[inverse]
    return out


def properties() -> Sequence[Property]:
    """Every property of the plugin."""
    common: Any = {
        "tolerance": SAME,
        "reference": on_cpu(distinct),
        "reference_reason": ELSEWHERE,
        "road": "direct",
    }
    return [
        Property(
            "elements-equal-eager",
            elements(),
            **common,
            refused=[_refused("complex", torch.zeros(3, dtype=torch.complex64))],
            benchmarks=[_of_ids(2**20), _of_ids(2**24)],
        ),
        Property(
            "slices-equal-eager",
            slices(),
            **common,
            refused=[_refused("dim-out-of-range", torch.zeros(3, 2), dim=2)],
        ),
        Property("exported", _exported(), SAME),
    ]


@st.composite
def elements(draw: st.DrawFn, largest: int = 9, kinds: Sequence[torch.dtype] = DTYPES) -> Case:
    """Any rank, dtype and layout, few or many values, empty, floats with NaN and infinities."""
    shape = draw(st.lists(st.integers(0, largest), max_size=3))
    dtype, seed, scale = draw(st.sampled_from(kinds)), draw(seeds), draw(st.sampled_from((1, 30)))
    x = values(shape, dtype, seed, draw(layouts), scale)
    if dtype.is_floating_point:
        x = x.round()
        if draw(st.booleans()):
            x = with_special(x, seed)
    return Case(distinct, (x,), draw(_wanted()))


@st.composite
def slices(draw: st.DrawFn, largest: int = 5, kinds: Sequence[torch.dtype] = DTYPES) -> Case:
    """Rows, columns or planes. Eager has no order for those with a NaN, and crashes on none."""
    shape = draw(st.lists(st.integers(1, largest), min_size=1, max_size=3))
    dim = draw(st.integers(-len(shape), len(shape) - 1))
    shape[dim] = draw(st.integers(1, 2 * largest))
    dtype = draw(st.sampled_from(kinds))
    x = values(shape, dtype, draw(seeds), draw(layouts), 1)
    x = x.round() if dtype.is_floating_point else x
    return Case(distinct, (x,), draw(_wanted()) | {"dim": dim})


def _wanted() -> st.SearchStrategy[dict[str, Any]]:
    names = ("consecutive", "return_inverse", "return_counts")
    return st.fixed_dictionaries(dict.fromkeys(names, st.booleans()))


def voxels(x: torch.Tensor) -> torch.Tensor:
    """A program that asks for nothing but the slices."""
    out: torch.Tensor = torch.unique(x, dim=0).double().sum(1)
    return out


@st.composite
def _exported(draw: st.DrawFn) -> Case:
    """Sizes that vary, in a program that goes on with the result; slices alone."""
    seed = draw(seeds)
    if draw(st.booleans()):
        return Case(voxels, (values((9, 2), torch.int64, seed, scale=2),))
    first, second = (values((size,), torch.int64, seed, scale=3) for size in (7, 12))
    size = torch.export.Dim("size", min=1, max=64)
    return Case(squared, (first,), dynamic_shapes=(({0: size},),), more_inputs=((second,),))


def _refused(name: str, x: torch.Tensor, **settings: Any) -> Refusal:
    case = Case(distinct, (x,), WHOLE | settings)
    return Refusal(name, case, Exception, "complex|Complex|out of range")


def _of_ids(size: int) -> Benchmark:
    def make(device: str) -> Case:
        x = torch.randint(size // 16, (size,), device=device)
        return Case(distinct, (x,), WHOLE)

    return Benchmark(f"unique-int64-{size}-with-inverse-and-counts", make)
