"""What `scatter-reduce` promises: eager's values, NaN propagated, halves rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st

from graftwork.plugins import Benchmark, Case, Property, Refusal, Tolerance

from ..stages.drawing import FLOATS, HALVES, INTEGERS, scatters, seeds, values, with_special

REDUCTIONS = ("sum", "prod", "mean", "amax", "amin")


def reduced(
    x: torch.Tensor,
    index: torch.Tensor,
    src: torch.Tensor,
    *,
    dim: int,
    reduce: str,
    include_self: bool = True,
) -> torch.Tensor:
    """User code: any reduction."""
    return x.scatter_reduce(dim, index, src, reduce, include_self=include_self)


def added(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int) -> torch.Tensor:
    """User code: scatter_add."""
    return x.scatter_add(dim, index, src)


def added_in_place(
    x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int
) -> torch.Tensor:
    """User code: scatter_add_ on a tensor of its own."""
    return x.clone().scatter_add_(dim, index, src)


def on_cpu(
    x: torch.Tensor,
    index: torch.Tensor,
    src: torch.Tensor,
    *,
    dim: int,
    reduce: str = "sum",
    include_self: bool = True,
) -> torch.Tensor:
    """CPU eager."""
    out = x.cpu().scatter_reduce(dim, index.cpu(), src.cpu(), reduce, include_self=include_self)
    return out.to(x.device)


CPU_REASON = "CPU eager adds in index order; CUDA eager has no fixed order and no int8 product"


def properties() -> Sequence[Property]:
    """Every property of the plugin."""
    reductions = st.sampled_from(REDUCTIONS)
    deterministic = st.sampled_from((True, True, False))

    def build(drawn: Any, reduce: str, include_self: bool, fixed: bool) -> Case:
        base, dim, index, src = drawn
        settings = {"dim": dim, "reduce": reduce, "include_self": include_self}
        return Case(reduced, (base, index, src), settings, options={"deterministic": fixed})

    def special(drawn: Any, reduce: str, include_self: bool, seed: int) -> Case:
        base, dim, index, src = drawn
        drawn = with_special(base, seed), dim, index, with_special(src, seed + 1)
        return build(drawn, reduce, include_self, True)

    common: Any = {"reference": on_cpu, "reference_reason": CPU_REASON, "road": "direct"}
    return [
        Property(
            "integers-exact",
            st.builds(build, scatters(INTEGERS), reductions, st.booleans(), deterministic),
            refused=_refused(),
            **common,
        ),
        Property(
            "extremes-propagate-nan",
            st.builds(
                special,
                scatters(FLOATS + HALVES),
                st.sampled_from(("amax", "amin")),
                st.booleans(),
                seeds,
            ),
            Tolerance(),
            benchmarks=_extreme_benchmarks(),
            **common,
        ),
        Property(
            "floats-in-index-order",
            st.builds(build, scatters(FLOATS), reductions, st.booleans(), deterministic),
            Tolerance(relative=1e-5, absolute=1e-5),
            benchmarks=_float_benchmarks(),
            **common,
        ),
        Property(
            "halves-round-once",
            st.builds(build, scatters(HALVES, most=5), reductions, st.booleans(), deterministic),
            Tolerance(relative=2e-2, absolute=2e-2),
            **common,
        ),
        Property(
            "bool-sums-are-or",
            scatters((torch.bool,)).map(lambda d: Case(added, (d[0], d[2], d[3]), {"dim": d[1]})),
            **common,
        ),
        Property(
            "exported-with-dynamic-sizes",
            st.builds(_dynamic, seeds, st.booleans()),
            Tolerance(relative=1e-5, absolute=1e-5),
        ),
    ]


def _dynamic(seed: int, in_place: bool) -> Case:
    program = added_in_place if in_place else added
    rows = torch.export.Dim("rows", min=1, max=1024)

    def inputs(count: int) -> tuple[torch.Tensor, ...]:
        index = torch.arange(count * 3).add(seed).remainder(4).view(count, 3)
        src = values((count, 3), torch.float32, seed + count)
        return values((4, 3), torch.float32, seed), index, src

    dynamic: Any = {"inputs": ({}, {0: rows}, {0: rows})}
    return Case(program, inputs(5), {"dim": 0}, dynamic_shapes=dynamic, more_inputs=(inputs(2),))


def _refused() -> Sequence[Refusal]:
    x, src = torch.zeros(2, 3), torch.ones(2, 3)

    def case(index: Any, source: torch.Tensor = src, reduce: str = "sum") -> Case:
        settings = {"dim": 0, "reduce": reduce}
        return Case(reduced, (x, torch.as_tensor(index), source), settings)

    return [
        Refusal("index past the end", case([[2, 0, 0]]), RuntimeError, "index 2 is out of bounds"),
        Refusal("negative index", case([[-1, 0, 0]]), RuntimeError, "index -1 is out of bounds"),
        Refusal("another dtype", case([[0]], src.double()), RuntimeError, "dtype to be equal"),
        Refusal("unknown reduction", case([[0]], reduce="max"), RuntimeError, "must be either"),
        Refusal("another rank", case([0, 1]), RuntimeError, "same number of dimensions"),
    ]


def _elements(reduce: str, dtype: torch.dtype, rows: int, device: str) -> Case:
    base, src = torch.randn(512, 1024, device=device), torch.randn(4096, 1024, device=device)
    index = torch.randint(rows, (4096, 1024), device=device)
    return Case(reduced, (base.to(dtype), index, src.to(dtype)), {"dim": 0, "reduce": reduce})


def _benchmark(reduce: str, kind: str, rows: int = 512) -> Benchmark:
    dtype = {"f32": torch.float32, "bf16": torch.bfloat16}[kind]
    name = f"{reduce}-{kind}-512x1024-from-4096x1024" + ("" if rows == 512 else f"-on-{rows}-rows")
    return Benchmark(name, partial(_elements, reduce, dtype, rows))


def _extreme_benchmarks() -> Sequence[Benchmark]:
    pairs = [(reduce, kind) for reduce in ("amax", "amin") for kind in ("f32", "bf16")]
    return [*(_benchmark(*pair) for pair in pairs), _benchmark("amax", "f32", 4)]


def _float_benchmarks() -> Sequence[Benchmark]:
    pairs = [("prod", "f32"), ("mean", "f32"), ("sum", "f32"), ("sum", "bf16")]
    return [_benchmark(*pair) for pair in pairs]
