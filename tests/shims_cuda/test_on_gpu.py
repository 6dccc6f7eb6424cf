"""On a GPU: the kernels against eager at depth, in captured graphs, and past 2^31 elements.

`pytest tests/shims_cuda/test_on_gpu.py --deep --numprocesses 15 -k "not past"` runs six hundred
examples of every dtype for every promise; the tests past 2^31 (`-k past`) take up to 60 GiB each,
one after the other. The CPU is the reference where CUDA eager keeps no order, refuses a dtype, or
sorts signed NaN elsewhere; CUDA eager itself where it is right.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import strategies as st
from triton.runtime.jit import JITFunction

from graftwork.plugins import Case, Property, Tolerance
from graftwork.plugins.checking import find_plugin
from graftwork.plugins.verification import verify_property
from graftwork.shims_cuda.index_put import (
    index_put,
    mask_offsets,
    mask_positions,
    mask_put,
    mask_values,
)
from graftwork.shims_cuda.index_put import properties as putting
from graftwork.shims_cuda.scatter import properties as scattering
from graftwork.shims_cuda.scatter import scatter_src, scatter_value
from graftwork.shims_cuda.scatter_reduce import properties as reducing
from graftwork.shims_cuda.scatter_reduce import scatter_reduce
from graftwork.shims_cuda.sort import block_kernels, operators, promises, radix_kernels
from graftwork.shims_cuda.stages import (
    atomic_sum,
    columns,
    extremum,
    fold,
    grouping,
    last_writer,
    marks,
    mask,
)
from graftwork.shims_cuda.stages.arguments import DTYPES
from graftwork.shims_cuda.stages.drawing import FLOATS, HALVES, INTEGERS, scatters, with_special

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")

PLUGINS = ("scatter", "scatter-reduce", "index-put", "sort")
BIG = 2**31 + 5


@pytest.fixture
def one_kernel_a_dtype() -> Iterator[None]:
    """Compile no kernel anew for sizes that are 1 or multiples of 16, nor for alignment."""
    modules = (atomic_sum, columns, extremum, fold, grouping, last_writer, marks, mask)
    modules += (block_kernels, radix_kernels)
    parameters = [
        parameter
        for module in modules
        for kernel in vars(module).values()
        if isinstance(kernel, JITFunction)
        for parameter in kernel.params
    ]
    before = [(p, p.do_not_specialize, p.do_not_specialize_on_alignment) for p in parameters]
    for p in parameters:
        p.do_not_specialize = p.do_not_specialize_on_alignment = not p.is_constexpr
    clear_kernels(modules)
    yield
    for p, specialize, align in before:
        p.do_not_specialize, p.do_not_specialize_on_alignment = specialize, align
    clear_kernels(modules)


def clear_kernels(modules: tuple[types.ModuleType, ...]) -> None:
    for module in modules:
        for kernel in vars(module).values():
            if isinstance(kernel, JITFunction):
                kernel.device_caches.clear()


def promises_of(plugin: str) -> dict[str, Property]:
    return {p.name: p for p in find_plugin(plugin).call("list_properties") if p.road == "direct"}


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


def topk_case(x: torch.Tensor, k: int, largest: bool) -> Case:
    settings = {"k": k, "dim": 1, "largest": largest, "sorted": True}
    return Case(promises.select_topk, (x,), settings)


def tall(dtype: torch.dtype) -> st.SearchStrategy[Any]:
    return scatters((dtype,), most=300, largest=16)


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
            topk_case, long_rows(dtype), st.sampled_from((1, 50, 1100)), st.just(True)
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


def assert_holds(plugin: str, promise: Property, examples: int, seed: int) -> None:
    result = verify_property(find_plugin(plugin), promise, examples, seed, "cuda")
    print(f"{plugin} {promise.name} {result.examples} examples in {result.seconds:.0f} s")
    assert result.passed, f"{result.message}\n{result.script}"


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


@pytest.mark.parametrize("plugin", PLUGINS)
def test_problems_as_drawn_everywhere(
    plugin: str, examples: int, one_kernel_a_dtype: None
) -> None:
    for promise in promises_of(plugin).values():
        assert_holds(plugin, replace(promise, refused=()), 5 * examples, 99)


@pytest.mark.parametrize("plugin", PLUGINS)
def test_kernels_compiled_for_their_sizes(plugin: str) -> None:
    for promise in promises_of(plugin).values():
        assert_holds(plugin, replace(promise, refused=()), 10, 7)


def captured() -> dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]]:
    x, src = torch.randn(50, 64, device="cuda"), torch.randn(300, 64, device="cuda")
    index = torch.randint(50, (300, 64), device="cuda")
    calls: dict[str, tuple[Callable[..., Any], tuple[torch.Tensor, ...]]] = {
        "scatter": (lambda x, i, v: scatter_src(x, 0, i, v), (x, index, src)),
        "scatter-value": (lambda x, i, v: scatter_value(x, 0, i, v[0, 0]), (x, index, src)),
        "put": (lambda x, i, v: index_put(x, [i], v, True, True), (x, index[:, 0], src)),
        "mask-put": (lambda x, v: mask_put(x, x > 0, 0, v[:, :1].flatten()), (x, src)),
        "nonzero": (
            lambda x: mask_positions(x > 0, mask_offsets(x > 0)[0], 700),
            (x.abs() * (torch.arange(3200, device="cuda").view(50, 64) < 700),),
        ),
        "sort": (lambda x: operators.sort(x, 0, True), (x,)),
        "long-sort": (lambda x: operators.sort(x, 0, False), (src.repeat(1, 8).flatten(),)),
        "topk": (lambda x: operators.topk(x, 9, 0, True), (src.flatten(),)),
    }
    for reduce in reducing.REDUCTIONS:
        calls[reduce] = (
            lambda x, i, v, r=reduce: scatter_reduce(x, 0, i, v, r, False, True),
            (x, index, src),
        )
    return calls


CAPTURED = ("scatter", "scatter-value", "put", "mask-put", "nonzero", "sort", "long-sort", "topk")


@pytest.mark.parametrize("name", [*CAPTURED, *reducing.REDUCTIONS])
def test_a_captured_graph_replays_on_other_values(name: str) -> None:
    call, inputs = captured()[name]
    call(*inputs)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call(*inputs)
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    for _ in range(3):
        for tensor in inputs:
            tensor.copy_(tensor.roll(1) if name == "nonzero" else tensor.flip(0))
        graph.replay()
        expected = call(*inputs)
        expected = expected if isinstance(expected, tuple) else (expected,)
        for ours, theirs in zip(outputs, expected, strict=True):
            assert torch.equal(ours, theirs)


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
    offsets, total = mask_offsets(mask)
    count = int(total)
    assert count == (BIG + 2) // 3
    assert torch.equal(mask_values(x, mask, offsets, count), x[::3])
    found = mask_positions(mask, offsets, count)[:, 0]
    assert torch.equal(found, torch.arange(0, BIG, 3, device="cuda"))
    del found, offsets
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
