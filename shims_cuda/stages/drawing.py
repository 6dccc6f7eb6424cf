"""Random tensors of every dtype and layout, for the properties of these families."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st
from torch.utils import _pytree as pytree

from .arguments import DTYPES

FLOATS = (torch.float64, torch.float32)
HALVES = (torch.float16, torch.bfloat16)
INTEGERS = (torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8)
LAYOUTS = ("contiguous", "transposed", "sliced", "shifted")

ELSEWHERE = "CUDA eager and CPU eager disagree on where a NaN with a sign goes (torch 2.11)"

dtypes = st.sampled_from(DTYPES)
layouts = st.sampled_from(LAYOUTS)
seeds = st.integers(0, 2**20)


def values(
    shape: Sequence[int], dtype: torch.dtype, seed: int, layout: str = "contiguous", scale: int = 9
) -> torch.Tensor:
    """Small random values, of either sign where the dtype has one; some floats are -0.0."""
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        drawn = torch.randint(0, 2, tuple(shape), generator=generator)
    elif dtype.is_floating_point:
        drawn = torch.randn(tuple(shape), generator=generator, dtype=torch.float64) * scale
        drawn = torch.where(drawn.abs() < scale / 20, -0.0, drawn)
    else:
        drawn = torch.randint(-scale, scale + 1, tuple(shape), generator=generator)
    return laid_out(drawn.to(dtype), layout)


def with_special(x: torch.Tensor, seed: int) -> torch.Tensor:
    """About a third of the elements of a float tensor become NaN or an infinity."""
    generator = torch.Generator().manual_seed(seed + 1)
    inf = float("inf")
    kinds = torch.tensor([float("nan"), inf, -inf], dtype=x.dtype)
    kind = torch.randint(0, 9, x.shape, generator=generator)
    return torch.where(kind < 3, kinds[kind.clamp(max=2)], x)


def indices(
    shape: Sequence[int],
    size: int,
    seed: int,
    *,
    wraps: bool = False,
    dtype: torch.dtype = torch.int64,
    layout: str = "contiguous",
) -> torch.Tensor:
    """Random indices below `size`, with repetitions; negative ones too where they wrap."""
    generator = torch.Generator().manual_seed(seed)
    low = -size if wraps else 0
    drawn = torch.randint(low, max(size, low + 1), tuple(shape), generator=generator)
    return laid_out(drawn.to(dtype), layout)


def laid_out(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The same values: dims transposed in memory, every second of a larger one, or offset."""
    if layout == "transposed" and x.dim() > 1:
        return x.transpose(0, -1).contiguous().transpose(0, -1)
    if layout == "sliced" and x.dim() > 0:
        return torch.stack([x, torch.ones_like(x)], -1)[..., 0]
    if layout == "shifted" and x.dim() > 0:
        return torch.cat([x[:1], x])[x[:1].shape[0] :]
    return x


@st.composite
def scatters(
    draw: st.DrawFn, kinds: Sequence[torch.dtype], most: int = 7, largest: int = 4
) -> tuple[torch.Tensor, int, torch.Tensor, torch.Tensor]:
    """`self, dim, index, src` of a scatter: any rank up to 3, dim, strides, empty, expanded.

    At most `most` values along `dim`; the other sizes, and the number of rows, up to `largest`.
    """
    rank = draw(st.integers(0, 3))
    shape = [draw(st.integers(0, largest)) for _ in range(rank)]
    dim = draw(st.integers(-rank, rank - 1)) if rank else 0
    taken = [draw(st.sampled_from((size, size, draw(st.integers(0, size))))) for size in shape]
    if rank:
        taken[dim] = draw(st.integers(0, most if shape[dim] else 0))
    spare = [size + draw(st.sampled_from((0, 0, 1))) for size in taken]
    dtype = draw(st.sampled_from(kinds))
    seed = draw(seeds)
    size = shape[dim] if rank else 1
    which = draw(st.sampled_from((torch.int64, torch.int32)))
    index = indices(taken, size, seed, dtype=which, layout=draw(layouts))
    for d in range(rank):
        if d != dim % rank and taken[d] and draw(st.booleans()):
            index = index.narrow(d, 0, 1).expand(taken)
    scale = 2 if most < 7 else 9
    base = values(shape, dtype, seed + 1, draw(layouts), scale)
    src = values(spare, dtype, seed + 2, draw(layouts), scale)
    return base, dim, index, src


def on_cpu(program: Callable[..., Any]) -> Callable[..., Any]:
    """The program run on the CPU, its outputs brought back."""

    def reference(*inputs: torch.Tensor, **settings: Any) -> Any:
        outputs = program(*(x.cpu() for x in inputs), **settings)
        return pytree.tree_map(lambda x: x.to(inputs[0].device), outputs)

    return reference
