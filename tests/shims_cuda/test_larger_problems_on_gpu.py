"""On a GPU: problems larger than the properties draw, dtype by dtype.

`pytest tests/shims_cuda/test_larger_problems_on_gpu.py --deep --numprocesses 15` runs six hundred
examples of every dtype. The CPU is the reference where CUDA eager keeps no order, refuses a dtype,
or sorts signed NaN elsewhere; CUDA eager itself where it is right.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from promises_on_gpu import assert_holds, promises_of

from graftwork.plugins import Case, Tolerance
from graftwork.shims_cuda.index_put import properties as putting
from graftwork.shims_cuda.scatter import properties as scattering
from graftwork.shims_cuda.scatter_reduce import properties as reducing
from graftwork.shims_cuda.sort import promises
from graftwork.shims_cuda.stages.arguments import DTYPES
from graftwork.shims_cuda.stages.drawing import FLOATS, HALVES, INTEGERS, scatters, with_special
from graftwork.shims_cuda.unique import properties as distinct

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")


def reduced_case(drawn: Any, reduce: str, include_self: bool, deterministic: bool = True) -> Case:
    base, dim, index, src = drawn
    settings = {"dim": dim, "reduce": reduce, "include_self": include_self}
    options = {"deterministic": deterministic}
    return Case(reducing.reduced, (base, index, src), settings, options=options)


def special_case(drawn: Any, reduce: str, include_self: bool) -> Case:
    base, dim, index, src = drawn
    drawn = with_special(base, 5), dim, index, with_special(src, 6)
    return reduced_case(drawn, reduce, include_self)


def in_double(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, **how: Any) -> torch.Tensor:
    """Where half types add up in float64; a mean rounds its sum before it divides."""
    out = reducing.on_cpu(x.double(), index, src.double(), **how)
    return out.to(x.dtype)


@st.composite
def long_rows(draw: st.DrawFn, dtype: torch.dtype) -> torch.Tensor:
    shape = draw(st.integers(1, 3)), draw(st.integers(8193, 100_000))
    return promises.make(dtype, shape, draw(st.sampled_from(("distinct", "few"))), shape[1])


def sort_case(x: torch.Tensor, descending: bool) -> Case:
    return Case(promises.sort_stable, (x,), {"dim": 1, "descending": descending})


def tall(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    return scatters((dtype,), most=300, largest=16)


def few(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    """Up to 64 entries for hundreds of rows."""
    return scatters((dtype,), most=64, largest=6).map(repeat_rows)


def repeat_rows(drawn: Any) -> Any:
    base, dim, index, src = drawn
    return torch.cat([base] * 520, dim) if base.dim() else base, dim, index, src


def put_case(drawn: Any) -> Case:
    base, dim, index, src = drawn
    return Case(scattering.put, (base, index, src), {"dim": dim})


def put_value_case(drawn: Any) -> Case:
    base, dim, index, _ = drawn
    return Case(scattering.put_value, (base, index), {"dim": dim, "value": 1})


FLAGS = st.booleans()
EXTREMES = st.sampled_from(("amax", "amin"))
SUMS = st.sampled_from(("sum", "mean"))
EVERY = st.sampled_from(reducing.REDUCTIONS)
LOOSE = Tolerance(relative=1e-4, absolute=1e-3)
HALVED = Tolerance(relative=2e-2, absolute=2e-2)
CUDA: dict[str, Any] = {"reference": None, "reference_reason": ""}

# name: plugin, promise, dtypes, cases of a dtype, what changes in the promise
LARGER: dict[str, tuple[str, str, Any, Callable[[torch.dtype], Any], dict[str, Any]]] = {
    "scatter": (
        "scatter",
        "last-write-wins",
        DTYPES,
        lambda dtype: tall(dtype).map(put_case),
        {},
    ),
    "scatter of few": (
        "scatter",
        "last-write-wins",
        DTYPES,
        lambda dtype: few(dtype).map(put_case),
        {},
    ),
    "scatter-value, CUDA eager": (
        "scatter",
        "one-value-everywhere",
        DTYPES,
        lambda dtype: tall(dtype).map(put_value_case),
        CUDA,
    ),
    "integers": (
        "scatter-reduce",
        "integers-exact",
        INTEGERS,
        lambda dtype: st.builds(reduced_case, tall(dtype), EVERY, FLAGS, FLAGS),
        {},
    ),
    "integer sums, CUDA eager": (
        "scatter-reduce",
        "integers-exact",
        INTEGERS,
        lambda dtype: st.builds(reduced_case, tall(dtype), st.just("sum"), FLAGS, FLAGS),
        CUDA,
    ),
    "extremes": (
        "scatter-reduce",
        "extremes-propagate-nan",
        FLOATS + HALVES,
        lambda dtype: st.builds(special_case, tall(dtype), EXTREMES, FLAGS),
        {},
    ),
    "extremes, CUDA eager": (
        "scatter-reduce",
        "extremes-propagate-nan",
        FLOATS + HALVES,
        lambda dtype: st.builds(special_case, tall(dtype), EXTREMES, FLAGS),
        CUDA,
    ),
    "sums": (
        "scatter-reduce",
        "floats-in-index-order",
        FLOATS,
        lambda dtype: st.builds(reduced_case, tall(dtype), SUMS, FLAGS, FLAGS),
        {"tolerance": LOOSE},
    ),
    "products": (
        "scatter-reduce",
        "floats-in-index-order",
        FLOATS,
        lambda dtype: st.builds(
            reduced_case, scatters((dtype,), largest=60), st.just("prod"), FLAGS
        ),
        {"tolerance": LOOSE},
    ),
    "half sums": (
        "scatter-reduce",
        "halves-round-once",
        HALVES,
        lambda dtype: st.builds(reduced_case, tall(dtype), SUMS, FLAGS, FLAGS),
        {"tolerance": HALVED, "reference": in_double},
    ),
    "index-put": (
        "index-put",
        "writes-and-exact-sums",
        DTYPES,
        lambda dtype: putting.puts(
            (dtype,), (False,) if dtype.is_floating_point else (False, True), 10
        ),
        {},
    ),
    "index-put sums": (
        "index-put",
        "floats-add-in-index-order",
        FLOATS,
        lambda dtype: putting.puts((dtype,), (True,), 10),
        {"tolerance": LOOSE},
    ),
    "index-put half sums": (
        "index-put",
        "halves-round-once",
        HALVES,
        lambda dtype: putting.puts((dtype,), (True,), 10),
        {"tolerance": HALVED},
    ),
    "mask puts": (
        "index-put",
        "writes-under-a-mask",
        DTYPES,
        lambda dtype: putting.mask_puts(24, (dtype,)),
        {},
    ),
    "mask picks, CUDA eager": (
        "index-put",
        "mask-picks",
        DTYPES,
        lambda dtype: putting.picks(24, (dtype,)),
        {},
    ),
    "distinct elements": (
        "unique",
        "elements-equal-eager",
        DTYPES,
        lambda dtype: distinct.elements(40, (dtype,)),
        {},
    ),
    "distinct slices": (
        "unique",
        "slices-equal-eager",
        DTYPES,
        lambda dtype: distinct.slices(8, (dtype,)),
        {},
    ),
    "long sorts": (
        "sort",
        "long-sorts-equal-eager",
        promises.DTYPES,
        lambda dtype: st.builds(sort_case, long_rows(dtype), FLAGS),
        {},
    ),
    "long topks": (
        "sort",
        "topk-finds-the-values-eager-finds",
        promises.DTYPES[:-1],
        lambda dtype: st.builds(
            promises.topk_case,
            long_rows(dtype),
            st.sampled_from((1, 50, 1100)),
            st.just(1),
            FLAGS,
            FLAGS,
        ),
        {},
    ),
    "short sorts": (
        "sort",
        "sorts-equal-eager",
        promises.DTYPES,
        lambda dtype: promises.sorts((dtype,)),
        {},
    ),
}


@pytest.mark.parametrize(
    ("name", "dtype"),
    [(name, dtype) for name, (_, _, dtypes, *_) in LARGER.items() for dtype in dtypes],
    ids=str,
)
def test_larger_problems(
    name: str, dtype: torch.dtype, examples: int, one_kernel_a_dtype: None
) -> None:
    plugin, promised, _, cases, change = LARGER[name]
    promise = promises_of(plugin)[promised]
    promise = replace(promise, cases=cases(dtype), refused=(), **change)
    assert_holds(plugin, promise, examples if name.startswith("long") else 3 * examples, 3)
