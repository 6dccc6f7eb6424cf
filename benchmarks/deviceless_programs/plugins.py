"""A program for each other plugin."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .program import Program, one, program


@program
def masked_copy_to_where() -> Program:
    def run(x: Tensor, y: Tensor) -> Tensor:
        out = x.clone()
        mask = y > 0
        out[mask] = y[mask]
        return out

    return one(run, (torch.randn(30, 7), torch.randn(30, 7)))


@program
def strip_asserts() -> Program:
    class Head(nn.Module):
        def forward(self, mean: Tensor, scale: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            normal = torch.distributions.Normal(mean, scale, validate_args=True)
            return normal.log_prob(x), normal.entropy()

    return one(Head(), (torch.randn(50), torch.rand(50) + 0.1, torch.randn(50)))


def _resizes(x: Tensor) -> tuple[Tensor, ...]:
    return tuple(
        F.interpolate(x, size=size, mode=mode, antialias=True)
        for size, mode in (((14, 9), "bilinear"), ((7, 31), "bicubic"))
    )


@program
def resize() -> Program:
    return one(_resizes, (torch.rand(2, 3, 40, 30),))


@program
def antialiased_resize() -> Program:
    return one(_resizes, (torch.rand(2, 3, 40, 30),), disable=("resize",))


@program
def bucketize() -> Program:
    edges = torch.linspace(-2, 2, 17)
    return one(lambda x, e: torch.bucketize(x, e, right=True), (torch.randn(50, 7), edges))


@program
def conv1d_to_conv2d() -> Program:
    return one(
        nn.Sequential(nn.Conv1d(5, 12, 5, padding=2, groups=1), nn.ReLU()),
        (torch.randn(2, 5, 90),),
    )


@program
def transposed_convolution() -> Program:
    model = nn.Sequential(
        nn.ConvTranspose2d(8, 12, 4, stride=2, padding=1, groups=2),
        nn.ReLU(),
        nn.ConvTranspose2d(12, 6, 3, stride=2, output_padding=1),
    )
    return one(model, (torch.randn(2, 8, 9, 7),))


@program
def dilated_convolution() -> Program:
    model = nn.Sequential(
        nn.Conv2d(8, 12, 3, padding=2, dilation=2),
        nn.ReLU(),
        nn.Conv2d(12, 6, 3, stride=2, padding=6, dilation=(6, 3)),
    )
    return one(model, (torch.randn(2, 8, 21, 18),))


@program
def recurrent_cells() -> Program:
    class Step(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.lstm = nn.GRUCell(20, 32), nn.LSTMCell(32, 16)

        def forward(self, x: Tensor, h: Tensor, short: Tensor, long: Tensor) -> Any:
            h = self.gru(x, h)
            return h, *self.lstm(h, (short, long))

    return one(Step(), tuple(torch.randn(5, size) for size in (20, 32, 16, 16)))


@program
def constant_operands() -> Program:
    class FirstQueries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = nn.Linear(64, 48)

        def forward(self, x: Tensor) -> Tensor:
            return x + self.project(torch.zeros(40, 64, device=x.device))

    return one(FirstQueries(), (torch.randn(40, 48),))


@program
def unbacked_convolution() -> Program:
    """A patch embedding of the images that are not padding."""

    class Patches(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed = nn.Conv2d(3, 32, 8, 8)

        def forward(self, images: Tensor, mask: Tensor) -> Tensor:
            return self.embed(images[mask]).flatten(2).transpose(1, 2) * 2

    images = torch.randn(4, 3, 32, 32)
    calls = [(images, torch.arange(4) % step == 0) for step in (2, 1, 4)]
    return one(Patches(), *calls)


@program
def own_outputs() -> Program:
    def run(x: Tensor) -> tuple[Tensor, ...]:
        y = x * 2
        left, right = (x + 3).split(3, 1)
        return y[8:], y.t(), left, right

    return one(run, (torch.randn(16, 6),))


@program
def fixed_strides() -> Program:
    def run(x: Tensor) -> Tensor:
        y = x.sin().contiguous()
        y = torch.ops.aten.as_strided_copy(y, y.shape, y.stride())
        return y.flatten()[torch.arange(0, 2520, 7, device=x.device)] * 2

    return one(run, (torch.randn(2, 3, 14, 30),))


@program
def dynamic_launches() -> Program:
    """Kernels that are written in Triton, in a program of dynamic sizes."""
    rows = torch.export.Dim("rows", min=2, max=512)

    def run(x: Tensor, i: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        return x.scatter_reduce(0, i, v, "amax"), v.sort(dim=0, stable=True).values

    calls = [(torch.randn(64), torch.arange(n) % 64, torch.randn(n)) for n in (40, 2, 512, 129)]
    return one(run, *calls, shapes=((None, {0: rows}, {0: rows}),))


@program
def detach_copy() -> Program:
    return one(lambda x: x.detach() * 2 + 1, (torch.randn(40, 3),))


@program
def is_all_true() -> Program:
    def run(x: Tensor, mask: Tensor) -> Tensor:
        return torch.where(torch.all(mask), x, -x) * torch.ops.aten._is_all_true(mask)

    return one(run, (torch.randn(9), torch.ones(4, dtype=torch.bool)))


@program
def reshape_copy() -> Program:
    return one(lambda x: torch.ops.aten._reshape_copy(x.t(), [-1, 6]) + 1, (torch.randn(12, 5),))


@program
def one_element_counter() -> Program:
    class Counter(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x: Tensor) -> Tensor:
            self.count.add_(1)
            return x + self.count

    return one(Counter(), *[(torch.full((4,), float(n)),) for n in range(4)])
