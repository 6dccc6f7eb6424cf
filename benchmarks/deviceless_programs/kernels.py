"""Programs for each kernel plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .program import Program, one, program


@program
def scatter() -> Program:
    # Equal values for the same element: eager keeps any one.
    index = torch.randperm(64)[:50].repeat(6)
    values = torch.randn(50).repeat(6)
    unique = torch.arange(300) % 50

    def run(x: Tensor, i: Tensor, v: Tensor, n: Tensor, u: Tensor) -> tuple[Tensor, ...]:
        return x.scatter(0, i, v), n.scatter(0, i, u), x.scatter(0, i, 2.5)

    return one(run, (torch.randn(64), index, values, torch.arange(64), unique))


@program
def scatter_reduce() -> Program:
    index = torch.randint(0, 40, (30, 500))

    def run(x: Tensor, i: Tensor, v: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        reduced = tuple(
            x.scatter_reduce(1, i, v, kind, include_self=kind != "amin")
            for kind in ("sum", "mean", "amax", "amin")
        )
        return *reduced, n.scatter_add(1, i, (v * 100).long())

    return one(
        run, (torch.randn(30, 40), index, torch.randn(30, 500), torch.arange(1200).view(30, 40))
    )


@program
def sort() -> Program:
    def run(x: Tensor, n: Tensor) -> tuple[Tensor, ...]:
        values, order = torch.sort(x, dim=-1, descending=True, stable=True)
        top, where = torch.topk(x, 7)
        return values, order, top, where, n.sort(dim=0, stable=True).indices, x.median(-1).values

    return one(run, (torch.randn(6, 5000), torch.randint(0, 9, (300, 7))))


@program
def unique() -> Program:
    def run(n: Tensor, points: Tensor) -> tuple[Tensor, ...]:
        return *torch.unique(n, return_inverse=True, return_counts=True), torch.unique(
            points, dim=0
        )

    calls = [(torch.randint(-9, 9, (400,)), torch.randint(0, 3, (200, 2))) for _ in range(2)]
    return one(run, *calls, (torch.zeros(400, dtype=torch.int64), torch.arange(400).view(200, 2)))


@program
def index_put() -> Program:
    def run(x: Tensor, i: Tensor, v: Tensor, h: Tensor, mask: Tensor) -> tuple[Tensor, ...]:
        filled = x.clone()
        filled[mask] = 3.5
        return (
            x.index_put((i,), v, accumulate=True),
            h.index_put((i,), v.bfloat16(), accumulate=True),
            filled,
        )

    x = torch.randn(64, 8)
    index = torch.randint(-64, 64, (200,))
    return one(run, (x, index, torch.randn(200, 8), x.bfloat16(), x > 0))


@program
def attention() -> Program:
    def run(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        plain = F.scaled_dot_product_attention(q, k, v)
        biased = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        half = F.scaled_dot_product_attention(q.half(), k.half(), v.half())
        return plain, biased, half

    q, k, v = torch.randn(2, 4, 33, 48), torch.randn(2, 4, 80, 48), torch.randn(2, 4, 80, 24)
    return one(run, (q, k, v, torch.randn(2, 1, 33, 80)))


def _packed() -> tuple[Callable[..., Any], tuple[Tensor, ...]]:
    from torch.nn.attention.varlen import varlen_attn

    offsets = torch.tensor([0, 5, 5, 70, 96], dtype=torch.int32)

    def run(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> Tensor:
        return varlen_attn(q, k, v, offsets, offsets, 65, 65, window_size=(-1, 0))

    return run, (*(torch.randn(100, 4, 32, dtype=torch.float16) for _ in range(3)), offsets)


@program
def varlen_kernels() -> Program:
    run, inputs = _packed()
    return one(run, inputs)


@program
def varlen_portable() -> Program:
    run, inputs = _packed()
    return one(run, inputs, enable=("varlen-attention",), disable=("attention",))


@program
def hopper_attention() -> Program:
    """Calls that a Hopper GPU has a kernel of its own for."""
    from torch.nn.attention.varlen import varlen_attn

    offsets = torch.tensor([0, 5, 5, 270, 496], dtype=torch.int32)

    def run(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor) -> tuple[Tensor, ...]:
        short = varlen_attn(q, k, v, offsets, offsets, 265, 265, window_size=(-1, 0))
        long = varlen_attn(q, k, v, offsets, offsets, 1000, 1000, window_size=(-1, 0))
        dense = [t.view(2, 250, 4, 128).transpose(1, 2) for t in (q, k, v)]
        narrow = [t.reshape(2, 250, 8, 64).transpose(1, 2) for t in (q, k, v)]
        full = F.scaled_dot_product_attention(*dense)
        return short, long, full, F.scaled_dot_product_attention(*narrow, is_causal=True)

    return one(run, (*(torch.randn(500, 4, 128).half() for _ in range(3)), offsets))


@program
def float32_attention() -> Program:
    """Heads of every width in float32, whose operands are cut into bfloat16 numbers."""

    def run(*tensors: Tensor) -> tuple[Tensor, ...]:
        outputs = []
        for q, k, v in zip(*(tensors[i::3] for i in range(3)), strict=True):
            mask = q[..., :1] > k[..., :1].transpose(2, 3)
            outputs.append(F.scaled_dot_product_attention(q, k, v, is_causal=True))
            outputs.append(F.scaled_dot_product_attention(q * 2, k, v, mask | (k[0, 0, :, 0] > 0)))
        return tuple(outputs)

    sizes = [(16, 16), (64, 32), (128, 128)]
    shapes = [s for d, dv in sizes for s in ((70, d), (150, d), (150, dv))]
    return one(run, tuple(torch.randn(2, 3, *shape) for shape in shapes))
