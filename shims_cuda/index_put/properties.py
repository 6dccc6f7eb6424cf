"""What `index-put` promises: eager's values, the last write wins, strides kept, masks unread."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st

from graftwork.plugins import Benchmark, Case, Property, Refusal, Tolerance

from ..stages.arguments import DTYPES
from ..stages.drawing import (
    FLOATS,
    HALVES,
    INTEGERS,
    indices,
    layouts,
    seeds,
    values,
)

aten = torch.ops.aten


def put(x: torch.Tensor, v: torch.Tensor, *index: torch.Tensor, **settings: Any) -> torch.Tensor:
    """User code `x[..., i, j] = v` or `+= v`; `at` says which dims have an index."""
    out: torch.Tensor = aten.index_put(
        x, _places(index, settings["at"]), v, settings["accumulate"]
    )
    return out


def put_in_double(
    x: torch.Tensor, v: torch.Tensor, *index: torch.Tensor, **settings: Any
) -> torch.Tensor:
    """The same on the CPU, where half types add in float64 and round once.

    Eager goes along the memory of the values, and so in index order where they are contiguous.
    """
    wide = torch.float64 if x.dtype in HALVES else x.dtype
    x_there, index = x.cpu().to(wide), tuple(i.cpu() for i in index)
    v_there = v.cpu().to(wide)
    with suppress(RuntimeError, IndexError):  # what does not fit is for eager to refuse
        shape = pick(x_there, *index, at=settings["at"]).shape
        v_there = v_there.expand(shape).contiguous()
    out = put(x_there, v_there, *index, **settings)
    return out.to(x.device, x.dtype)


def pick(x: torch.Tensor, *index: torch.Tensor, at: Sequence[int]) -> torch.Tensor:
    """User code `x[..., mask]` or `x[mask, 3]`; `at` says which dims have an index."""
    out: torch.Tensor = aten.index(x, _places(index, at))
    return out


def select(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """User code: masked_select."""
    return torch.masked_select(x, mask)


def find(x: torch.Tensor) -> torch.Tensor:
    """User code: nonzero."""
    return torch.nonzero(x)


def fill(x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """User code `x[mask] = 2`."""
    x = x.clone()
    x[mask] = 2
    return x


def properties() -> Sequence[Property]:
    """Every property of the plugin."""
    common: Any = {
        "reference": put_in_double,
        "reference_reason": "CPU eager writes and adds in index order; half types add in float64",
        "road": "direct",
    }
    return [
        Property(
            "writes-and-exact-sums",
            st.one_of(puts(DTYPES, (False,)), puts((*INTEGERS, torch.bool), (True,))),
            refused=_refused(),
            **common,
        ),
        Property(
            "floats-add-in-index-order",
            puts(FLOATS, (True,)),
            Tolerance(relative=1e-5, absolute=1e-5),
            benchmarks=_benchmarks(),
            **common,
        ),
        Property(
            "halves-round-once",
            puts(HALVES, (True,)),
            Tolerance(relative=1e-2, absolute=1e-3),
            **common,
        ),
        Property("writes-under-a-mask", mask_puts(), Tolerance(relative=1e-2), **common),
        Property("mask-picks", picks(), road="direct", benchmarks=_pick_benchmarks()),
        Property(  # the interpreter adds -0.0 and -0.0 to 0.0, as numpy does
            "exported", st.builds(_exported, seeds, st.sampled_from(_PROGRAMS)), Tolerance()
        ),
    ]


@st.composite
def puts(
    draw: st.DrawFn, kinds: Sequence[torch.dtype], accumulate: Sequence[bool], largest: int = 4
) -> Case:
    """Integer indices on some dims, which broadcast, with values that broadcast."""
    rank = draw(st.integers(1, 4))
    shape = [draw(st.integers(0, largest)) for _ in range(rank)]
    at = sorted(draw(st.sets(st.integers(0, rank - 1), min_size=1)))
    together = [draw(st.integers(0, largest)) for _ in range(draw(st.integers(1, 2)))]
    if not all(shape[d] for d in at):
        together[0] = 0  # there is nothing to name
    seed = draw(seeds)
    index = []
    for number, d in enumerate(at):
        own = [draw(st.sampled_from((size, size, 1))) for size in together]
        own = own[draw(st.integers(0, len(own))) :] if number else together
        layout = draw(layouts)
        which = draw(st.sampled_from((torch.int64, torch.int32)))
        drawn = indices(own, shape[d], seed + number, wraps=True, dtype=which, layout=layout)
        index.append(drawn)
    dtype = draw(st.sampled_from(kinds))
    x = values(shape, dtype, seed + 8, draw(layouts))
    wanted = aten.index(x, _places(index, at)).shape
    own = [draw(st.sampled_from((size, size, 1))) for size in wanted]
    own = own[draw(st.sampled_from((0, 0, len(own)))) :]
    v = values(own, dtype, seed + 9, draw(layouts))
    settings = {"at": tuple(at), "accumulate": draw(st.sampled_from(accumulate))}
    return Case(put, (x, v, *index), settings)


@st.composite
def mask_puts(draw: st.DrawFn, largest: int = 5, kinds: Sequence[torch.dtype] = DTYPES) -> Case:
    """A mask over adjacent dims, with one value or one for each True."""
    x, index, at = draw(masked(largest, kinds))
    wanted = aten.index(x, _places(index, at)).shape
    own = [draw(st.sampled_from((size, size, 1))) for size in wanted]
    own = own[draw(st.sampled_from((0, 0, len(own)))) :]
    v = values(own, x.dtype, draw(seeds))
    return Case(put, (x, v, *index), {"at": at, "accumulate": draw(st.booleans())})


@st.composite
def masked(
    draw: st.DrawFn,
    largest: int = 5,
    kinds: Sequence[torch.dtype] = DTYPES,
    of: Sequence[torch.dtype] = (torch.bool,),
) -> tuple[torch.Tensor, list[torch.Tensor], tuple[int, ...]]:
    """A tensor; a mask over some of its adjacent dims, and maybe integers; where they go."""
    rank = draw(st.integers(1, 3))
    shape = [draw(st.integers(0, largest)) for _ in range(rank)]
    at = draw(st.integers(0, rank - 1))
    end = draw(st.integers(at + 1, rank))
    seed = draw(seeds)
    index = [values(shape[at:end], draw(st.sampled_from(of)), seed, draw(layouts))]
    places: tuple[int, ...] = (at,)
    if end < rank and shape[end] and draw(st.booleans()):
        kept = int(index[0].count_nonzero())
        sizes = draw(st.sampled_from(([], [1], [kept if kept > 1 else 1 + kept])))
        integers = indices(sizes, shape[end], seed + 2, wraps=True)
        index, places = [*index, integers], (at, at + 1)
    dtype = draw(st.sampled_from(kinds))
    return values(shape, dtype, seed + 1, draw(layouts)), index, places


@st.composite
def picks(draw: st.DrawFn, largest: int = 5, kinds: Sequence[torch.dtype] = DTYPES) -> Case:
    """`x[mask]`, also of bytes, masked_select with broadcasting, nonzero."""
    x, index, at = draw(masked(largest, kinds, (torch.bool, torch.uint8)))
    if draw(st.booleans()):
        return Case(pick, (x, *index), {"at": at})
    if draw(st.booleans()):
        return Case(find, (x,))
    spread = values(x.shape[-1:], torch.bool, draw(seeds))
    return Case(select, (x, spread))


_PROGRAMS = ("put", "add", "pick", "find", "fill")


def _exported(seed: int, program: str) -> Case:
    x = values((4, 3), torch.float32, seed)
    mask = values((4, 3), torch.bool, seed + 1)
    if program in ("put", "add"):
        index = torch.arange(seed, seed + 5).remainder(4) - 4
        if program == "put":  # CUDA eager keeps any one of several writes
            index = index[:4].clone()
        v = values((len(index), 3), torch.float32, seed + 2).round()
        settings = {"at": (0,), "accumulate": program == "add"}
        return Case(put, (x.round(), v, index), settings)
    if program == "pick":
        return Case(pick, (x, mask), {"at": (0,)})
    if program == "find":
        return Case(find, (x,))
    return Case(fill, (x, mask), fires=None)


def _places(index: Sequence[torch.Tensor], at: Sequence[int]) -> list[torch.Tensor | None]:
    places: list[torch.Tensor | None] = [None] * (max(at) + 1)
    for d, i in zip(at, index, strict=True):
        places[d] = i
    return places


def _refused() -> Sequence[Refusal]:
    x = torch.zeros(2, 3)

    def case(index: Any, v: Any = 1.0) -> Case:
        inputs = x, torch.as_tensor(v), torch.as_tensor(index)
        return Case(put, inputs, {"at": (0,), "accumulate": False})

    return [
        Refusal("index past the end", case([2]), IndexError, "index 2 is out of bounds"),
        Refusal("index before the start", case([-3]), IndexError, "index -3 is out of bounds"),
        Refusal("values too many", case([0, 1], torch.ones(3, 3)), RuntimeError, "size|shape"),
        Refusal("mask of another shape", case([True]), IndexError, "shape of the mask"),
        Refusal(
            "values for another count",
            case([True, False], torch.ones(2, 3)),
            RuntimeError,
            "shape mismatch",
        ),
    ]


def _rows(rows: int, device: str) -> Case:
    x, v = torch.randn(32000, 1024, device=device), torch.randn(16384, 1024, device=device)
    index = torch.randint(rows, (16384,), device=device)
    return Case(put, (x, v, index), {"at": (0,), "accumulate": True})


def _benchmarks() -> Sequence[Benchmark]:
    return [
        Benchmark("accumulate-f32-32000x1024-from-16384-rows", partial(_rows, 32000)),
        Benchmark("accumulate-f32-32000x1024-all-on-8-rows", partial(_rows, 8)),
    ]


def _masked(device: str) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4096, 4096, device=device)
    return x, torch.rand(4096, 4096, device=device) < 0.5


def _pick_benchmarks() -> Sequence[Benchmark]:
    return [
        Benchmark("masked-select-f32-4096x4096", lambda device: Case(select, _masked(device))),
        Benchmark("nonzero-bool-4096x4096", lambda device: Case(find, _masked(device)[1:])),
    ]
