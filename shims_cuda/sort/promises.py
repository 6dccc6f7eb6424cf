"""What the sort plugin promises: its results are eager's, for any dtype, layout and size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from graftwork.plugins import EXACT, Benchmark, Case, Property, Refusal, Tolerance
from graftwork.shims_cuda.stages.drawing import ELSEWHERE, on_cpu

FLOATS = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)
DTYPES = (*FLOATS, *INTEGERS, torch.bool)
LAYOUTS = ("contiguous", "permuted", "sliced", "expanded")


def sort_stable(x: torch.Tensor, dim: int, descending: bool) -> Sequence[torch.Tensor]:
    """`torch.sort` with `stable=True`."""
    return torch.sort(x, dim=dim, descending=descending, stable=True)


def select_topk(
    x: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool
) -> Sequence[torch.Tensor]:
    """Top-k, so told that it does not matter which of several equal elements were taken.

    The values in order, what stands at the indices, and how many indices are distinct.
    """
    values, indices = torch.topk(x, k, dim, largest, sorted)
    there = x.gather(dim, indices)
    if not sorted:
        values, there = values.sort(dim).values, there.sort(dim).values
    taken = torch.zeros_like(x, dtype=torch.bool).scatter(dim, indices, True)
    return values.contiguous(), there.contiguous(), taken.sum()


def topk_case(x: torch.Tensor, k: int, dim: int, largest: bool, sorted: bool) -> Case:
    """A top-k; what it gave in any order is sorted, which are two more operators of ours."""
    settings = {"k": k, "dim": dim, "largest": largest, "sorted": sorted}
    return Case(select_topk, (x,), settings, fires=1 if sorted else 3)


def select_kth(x: torch.Tensor, k: int, dim: int, keepdim: bool) -> torch.Tensor:
    """The value that `kthvalue` finds, and the value at the index it finds."""
    value, index = torch.kthvalue(x, k, dim, keepdim)
    there = x.gather(dim, index if keepdim else index.unsqueeze(dim))
    return torch.stack([value, there if keepdim else there.squeeze(dim)])


def select_median(x: torch.Tensor, dim: int | None) -> torch.Tensor:
    """The lower median, of everything or along a dimension."""
    return torch.median(x) if dim is None else torch.median(x, dim).values


def argsort_and_msort(x: torch.Tensor, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The other names of sorting."""
    return torch.argsort(x, stable=True, dim=0, descending=descending), torch.msort(x)


def topk_values(x: torch.Tensor, k: int) -> torch.Tensor:
    """The largest, in order."""
    return torch.topk(x, k).values


def make(dtype: torch.dtype, shape: Sequence[int], kind: str, seed: int) -> torch.Tensor:
    """Random elements: all `distinct`-ish, or of a `few` values; floats with NaN, ±0, ±inf."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape), generator=generator) == 1
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        low, high = (limits.min, limits.max) if kind == "distinct" else (0, 3)
        return torch.randint(low, high, tuple(shape), generator=generator, dtype=dtype)
    x = torch.randn(tuple(shape), generator=generator, dtype=torch.float64)
    if kind == "few":
        x = x.round()
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([0.0, -0.0, inf, -inf, nan, -nan], dtype=torch.float64)
    pick = torch.randint(0, 24, tuple(shape), generator=generator)
    x = torch.where(pick < len(special), special[pick.clamp(max=len(special) - 1)], x)
    return x.to(dtype)


def lay_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The elements of `x` in memory of another order, with gaps, or one for many."""
    if x.dim() == 0 or layout == "contiguous":
        return x
    if layout == "permuted":
        return x.movedim(0, -1).contiguous().movedim(-1, 0)
    if layout == "sliced":
        return torch.stack([x, x], -1).flatten(-2)[..., ::2]
    return x[..., :1].expand(x.shape) if x.shape[-1] else x


@st.composite
def _tensors(
    draw: st.DrawFn,
    rank: tuple[int, int] = (0, 3),
    dtypes: Sequence[torch.dtype] = DTYPES,
    least: int = 0,
) -> tuple[torch.Tensor, int]:
    """A tensor and one of its dimensions."""
    sizes = st.one_of(st.integers(least, 5), st.integers(least, 70), st.just(129))
    shape = [draw(sizes) for _ in range(draw(st.integers(*rank)))]
    if len(shape) > 1:
        keep = draw(st.integers(0, len(shape) - 1))
        shape = [size if d == keep else min(size, 5) for d, size in enumerate(shape)]
    dim = draw(st.integers(-max(1, len(shape)), max(1, len(shape)) - 1))
    kind = draw(st.sampled_from(("distinct", "few")))
    x = make(draw(st.sampled_from(dtypes)), shape, kind, draw(st.integers(0, 2**20)))
    return lay_out(x, draw(st.sampled_from(LAYOUTS))), dim


@st.composite
def sorts(draw: st.DrawFn, dtypes: Sequence[torch.dtype] = DTYPES) -> Case:
    """Sorts along any dim of tensors in any layout."""
    x, dim = draw(_tensors(dtypes=dtypes))
    return Case(sort_stable, (x,), {"dim": dim, "descending": draw(st.booleans())})


@st.composite
def _plain_sorts(draw: st.DrawFn) -> Case:
    x = torch.randn(draw(st.integers(1, 4)), draw(st.integers(1, 200)))
    return Case(sort_stable, (x,), {"dim": 1, "descending": draw(st.booleans())})


@st.composite
def _plain_topks(draw: st.DrawFn) -> Case:
    x = torch.randn(draw(st.integers(1, 4)), draw(st.integers(1, 200)))
    return Case(topk_values, (x,), {"k": draw(st.integers(1, x.shape[1]))})


@st.composite
def _long_sorts(draw: st.DrawFn) -> Case:
    """Rows that a radix sort takes: those over 256 in the interpreter, over 8192 on a GPU."""
    dtype = draw(st.sampled_from((torch.float16, torch.int8, torch.bool)))
    long = draw(st.sampled_from((False,) * 29 + (True,)))
    size = draw(st.integers(8193, 9000) if long else st.integers(257, 700))
    x = make(dtype, (size,), draw(st.sampled_from(("distinct", "few"))), size)
    return Case(sort_stable, (x,), {"dim": 0, "descending": draw(st.booleans())})


@st.composite
def _other_sorts(draw: st.DrawFn) -> Case:
    x, _ = draw(_tensors(rank=(1, 3)))
    return Case(argsort_and_msort, (x,), {"descending": draw(st.booleans())}, fires=2)


@st.composite
def _topks(draw: st.DrawFn) -> Case:
    x, dim = draw(_tensors(rank=(1, 3), dtypes=(*FLOATS, *INTEGERS)))
    k, largest, sorted = (
        draw(st.integers(0, x.shape[dim])),
        draw(st.booleans()),
        draw(st.booleans()),
    )
    return topk_case(x, k, dim, largest, sorted)


@st.composite
def _kths(draw: st.DrawFn) -> Case:
    x, dim = draw(_tensors(rank=(1, 2), dtypes=(*FLOATS, *INTEGERS), least=1))
    k = draw(st.integers(1, x.shape[dim]))
    return Case(select_kth, (x,), {"k": k, "dim": dim, "keepdim": draw(st.booleans())})


@st.composite
def _medians(draw: st.DrawFn) -> Case:
    x, dim = draw(_tensors(rank=(1, 2), dtypes=(*FLOATS, *INTEGERS), least=1))
    return Case(select_median, (x,), {"dim": draw(st.sampled_from((dim, None)))})


@st.composite
def _dynamic_sorts(draw: st.DrawFn) -> Case:
    rows, n = draw(st.integers(2, 4)), draw(st.integers(2, 40))
    dtype = draw(st.sampled_from((torch.float32, torch.int64, torch.float16)))
    sizes = [(rows, n), (rows + 1, 2 * n), (rows, 50)]
    inputs = [(make(dtype, size, "few", n),) for size in sizes]
    rows_dim, n_dim = torch.export.Dim("rows", max=9), torch.export.Dim("n", max=100)
    return Case(
        sort_stable,
        inputs[0],
        {"dim": 1, "descending": draw(st.booleans())},
        dynamic_shapes={"inputs": (({0: rows_dim, 1: n_dim}),)},
        more_inputs=tuple(inputs[1:]),
    )


def _sort_of(dtype: torch.dtype, *shape: int) -> Benchmark:
    def make_case(device: str) -> Case:
        return Case(
            sort_stable, (_random(dtype, shape, device),), {"dim": -1, "descending": False}
        )

    return Benchmark(f"sort {dtype} {'x'.join(map(str, shape))}".replace("torch.", ""), make_case)


def _topk_of(k: int, dtype: torch.dtype, *shape: int) -> Benchmark:
    def make_case(device: str) -> Case:
        return Case(topk_values, (_random(dtype, shape, device),), {"k": k})

    name = f"topk {k} of {dtype} {'x'.join(map(str, shape))}"
    return Benchmark(name.replace("torch.", ""), make_case)


def _random(dtype: torch.dtype, shape: Sequence[int], device: str) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(0)
    x = torch.randn(tuple(shape), generator=generator, device=device)
    return x.to(dtype) if dtype.is_floating_point else (x * 2**20).to(dtype)


SORT_SHAPES = ((64, 2048), (4, 5000), (4096, 4096), (1, 2**20), (1, 2**24), (256, 65536))
VALUES = Tolerance()
"""Equal values are as good as each other: either zero, any NaN."""

_square = make(torch.float32, (3, 3), "distinct", 0)


def _refused(
    name: str, program: Callable[..., object], x: torch.Tensor, **settings: object
) -> Refusal:
    message = "out of range|along a dimension|complex"
    return Refusal(name, Case(program, (x,), settings), Exception, message)


def _equal(
    name: str,
    program: Callable[..., Any],
    cases: st.SearchStrategy[Case],
    tolerance: Tolerance,
    *refused: Refusal,
) -> Property:
    """With NaN of both signs among the numbers, so that the CPU is the reference."""
    return Property(
        name,
        cases,
        tolerance,
        reference=on_cpu(program),
        reference_reason=ELSEWHERE,
        road="direct",
        refused=refused,
    )


PROPERTIES = (
    Property(
        "numbers-sort-as-eager",
        _plain_sorts(),
        road="direct",
        benchmarks=[_sort_of(torch.float32, *shape) for shape in SORT_SHAPES],
    ),
    Property(
        "numbers-topk-as-eager",
        _plain_topks(),
        road="direct",
        benchmarks=[_topk_of(50, torch.float32, 128, 151936)],
    ),
    _equal(
        "sorts-equal-eager",
        sort_stable,
        sorts(),
        EXACT,
        _refused("dim-out-of-range", sort_stable, _square, dim=2, descending=False),
        _refused("complex", sort_stable, _square.to(torch.complex64), dim=0, descending=False),
    ),
    _equal("long-sorts-equal-eager", sort_stable, _long_sorts(), EXACT),
    _equal("argsort-and-msort-equal-eager", argsort_and_msort, _other_sorts(), VALUES),
    Property("exported-sorts-take-other-sizes", _dynamic_sorts()),
    _equal(
        "topk-finds-the-values-eager-finds",
        select_topk,
        _topks(),
        VALUES,
        _refused("k-above-size", select_topk, _square, k=4, dim=0, largest=True, sorted=True),
    ),
    _equal(
        "kthvalue-equals-eager",
        select_kth,
        _kths(),
        VALUES,
        _refused("k-of-zero", select_kth, _square, k=0, dim=0, keepdim=False),
    ),
    Property(
        "median-equals-eager",
        _medians(),
        VALUES,
        reference=lambda x, dim: on_cpu(select_median)(x.contiguous(), dim=dim),
        reference_reason=f"{ELSEWHERE}; CPU eager reads past the end of an expanded tensor",
        road="direct",
    ),
)
