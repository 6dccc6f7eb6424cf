"""What `scatter` promises: the last write in index order, bit for bit, and ATen's refusals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from hypothesis import strategies as st

from graftwork.plugins import Benchmark, Case, Property, Refusal

from ..stages.arguments import DTYPES
from ..stages.drawing import scatters, seeds, values


def put(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int) -> torch.Tensor:
    """User code: values from a tensor."""
    return x.scatter(dim, index, src)


def put_in_place(
    x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int
) -> torch.Tensor:
    """User code: the in-place form, on a tensor of its own."""
    return x.clone().scatter_(dim, index, src)


def put_value(x: torch.Tensor, index: torch.Tensor, *, dim: int, value: float) -> torch.Tensor:
    """User code: one value everywhere."""
    return x.scatter(dim, index, value)


def on_cpu(x: torch.Tensor, index: torch.Tensor, src: torch.Tensor, *, dim: int) -> torch.Tensor:
    """The last write in index order, as CPU eager does it."""
    return x.cpu().scatter(dim, index.cpu(), src.cpu()).to(x.device)


CPU_REASON = "CUDA eager keeps any one of several writes"


def properties() -> Sequence[Property]:
    """Every property of the plugin."""
    drawn = scatters(DTYPES)
    return [
        Property(
            "last-write-wins",
            drawn.map(lambda d: Case(put, (d[0], d[2], d[3]), {"dim": d[1]})),
            reference=on_cpu,
            reference_reason=CPU_REASON,
            road="direct",
            refused=_refused(),
            benchmarks=_benchmarks(),
        ),
        Property(
            "one-value-everywhere",
            st.builds(
                lambda d, v: Case(put_value, (d[0], d[2]), {"dim": d[1], "value": v}),
                drawn,
                st.sampled_from((0, 1, 3)),
            ),
            road="direct",
        ),
        Property(
            "exported-with-dynamic-sizes",
            st.builds(_dynamic, seeds, st.booleans()),
            reference=on_cpu,
            reference_reason=CPU_REASON,
        ),
    ]


def _dynamic(seed: int, in_place: bool) -> Case:
    """Rows chosen by an expanded index, any number of them."""
    program = put_in_place if in_place else put
    inputs = [_rows(seed + n, 4, n) for n in (5, 3)]
    rows = torch.export.Dim("rows", min=1, max=1024)
    dynamic: Any = {"inputs": ({}, {0: rows}, {0: rows})}
    return Case(
        program,
        inputs[0],
        {"dim": 0},
        dynamic_shapes=dynamic,
        more_inputs=(inputs[1],),
    )


def _rows(seed: int, size: int, count: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    index = torch.arange(count).add(seed).remainder(size).view(count, 1).repeat(1, 3)
    return (
        values((size, 3), torch.float32, seed),
        index,
        values((count, 3), torch.float32, seed + 1),
    )


def _refused() -> Sequence[Refusal]:
    x, src = torch.zeros(2, 3), torch.ones(2, 3)

    def case(index: Any, source: torch.Tensor = src) -> Case:
        return Case(put, (x, torch.as_tensor(index), source), {"dim": 0})

    return [
        Refusal("index past the end", case([[2, 0, 0]]), RuntimeError, "index 2 is out of bounds"),
        Refusal("negative index", case([[-1, 0, 0]]), RuntimeError, "index -1 is out of bounds"),
        Refusal("another dtype", case([[0]], src.double()), RuntimeError, "dtype to be equal"),
        Refusal("float index", case([[0.0]]), RuntimeError, "int32/int64 for index"),
        Refusal("another rank", case([0, 1]), RuntimeError, "same number of dimensions"),
        Refusal(
            "index wider than self", case([[0] * 4], torch.ones(1, 4)), RuntimeError, "no larger"
        ),
    ]


def _elements(dtype: torch.dtype, device: str) -> Case:
    base, src = torch.randn(512, 1024, device=device), torch.randn(4096, 1024, device=device)
    index = torch.randint(512, (4096, 1024), device=device)
    return Case(put, (base.mul(9).to(dtype), index, src.mul(9).to(dtype)), {"dim": 0})


def _experts(device: str) -> Case:
    src = torch.randn(32768, 1024, device=device, dtype=torch.bfloat16)
    index = torch.randperm(32768, device=device)[:, None].expand(32768, 1024)
    return Case(put, (torch.zeros_like(src), index, src), {"dim": 0})


def _benchmarks() -> Sequence[Benchmark]:
    sizes = "512x1024-from-4096x1024"
    kinds = {"f32": torch.float32, "bf16": torch.bfloat16, "int64": torch.int64}
    return [
        *(Benchmark(f"{k}-{sizes}", partial(_elements, dtype)) for k, dtype in kinds.items()),
        Benchmark("expert-rows-bf16-32768x1024", _experts),
    ]
