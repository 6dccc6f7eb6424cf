"""What the pass promises: masked copies equal eager bit for bit, and others stay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from hypothesis import strategies as st

from graftwork.plugins import EXACT, Benchmark, Case, Property, Refusal, Tolerance

Program = Callable[..., torch.Tensor]

LAYOUTS = ("contiguous", "channels_last", "transposed", "sliced", "expanded")
DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
)


def copy(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`out[mask] = src[mask]`."""
    out = x.clone()
    out[mask] = src[mask]
    return out


def copy_selected(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The same through `masked_select`, which wants a mask of the full shape."""
    out = x.clone()
    out[mask] = torch.masked_select(src, mask)
    return out


def scatter_picks(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`masked_scatter` of the mask's own picks; the mask may cover leading dims only."""
    wide = mask.reshape(*mask.shape, *(1,) * (x.dim() - mask.dim()))
    for _ in range(x.dim() - mask.dim()):
        wide = mask.unsqueeze(-1) if wide.dim() == mask.dim() + 1 else wide
    return x.masked_scatter(wide.expand_as(x), src[mask])


def copy_in_branch(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """A masked copy inside a `torch.cond` branch."""
    return torch.cond(mask.any(), copy, lambda x, src, mask: x.clone(), (x, src, mask))


def scale(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`x[mask] *= 2`."""
    out = x.clone()
    out[mask] *= 2
    return out


def affine(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """`out[mask] = src[mask] * 0.5 + x[mask] - last row`, a chain with an operand beside it."""
    out = x.clone()
    out[mask] = src[mask] * 0.5 + x[mask] - 1
    return out


def recomputed(x: torch.Tensor, src: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """The mask computed anew for the pick and for the put."""
    out = x.clone()
    out[mask.logical_not()] = src[mask.logical_not()] + 1
    return out
