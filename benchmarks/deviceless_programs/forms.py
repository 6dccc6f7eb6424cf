"""The example, and what a runtime has to keep straight."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import Tensor, nn

from .program import Program, one, program

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))


@program
def policy() -> Program:
    import robot_policy

    first = robot_policy.example_inputs()
    both = (first[0].flip(0), first[1], torch.ones_like(first[2]), first[3] + 1, -first[4])
    return one(robot_policy.RobotPolicy(), first, both, timed=True)


class Memory(nn.Module):
    """A ring of rows, written at a place that moves, and a counter."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("rows", torch.zeros(8, 16))
        self.register_buffer("count", torch.zeros(1))

    def forward(self, row: Tensor, place: Tensor) -> tuple[Tensor, Tensor]:
        self.count.add_(1)
        self.rows.index_copy_(0, place, row)
        return self.rows.sum(0) * 2, self.count * 10


@program
def written_buffer() -> Program:
    calls = [(torch.randn(1, 16), torch.tensor([step * 3 % 8])) for step in range(5)]
    return one(Memory(), *calls)


@program
def dynamic_shapes() -> Program:
    rows = torch.export.Dim("rows", min=2, max=512)
    model = nn.Sequential(nn.Linear(65, 33), nn.GELU(), nn.LayerNorm(33))
    calls = [(torch.randn(n, 65),) for n in (40, 2, 512, 129)]
    return one(model, *calls, shapes=({0: rows},))


@program
def two_methods() -> Program:
    trunk = nn.Linear(32, 64)
    encode = nn.Sequential(trunk, nn.ReLU())
    step = nn.Sequential(trunk, nn.Tanh(), nn.Linear(64, 8))
    x = torch.randn(4, 32)
    methods = {"encode": (encode, (x,), None), "step": (step, (x,), None)}
    return Program(methods, [("encode", (x,)), ("step", (x + 1,)), ("encode", (x * 2,))])


class Branches(nn.Module):
    """A branch on a buffer and one on a computed value."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("flag", torch.tensor([True]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.cond(self.flag, lambda y: y + 1, lambda y: y * 2, (x,))
        return torch.cond(x.sum() > 0, lambda y: y.sin(), lambda y: y.cos(), (y,))


@program
def branches() -> Program:
    return one(Branches(), (torch.ones(9),), (-torch.ones(9),))


@program
def host_reads() -> Program:
    """Sizes and numbers that the host reads before it goes on."""

    def run(x: Tensor, n: Tensor, t: Tensor) -> tuple[Tensor, ...]:
        count = n.item()
        torch._check(count >= 1)
        torch._check(count <= 16)
        return x[x > 0] * 2, torch.nonzero(x), torch.zeros(count, device=x.device) + t.item()

    calls = [
        (torch.randn(16, 4), torch.tensor(rows), torch.tensor(1.0 / rows)) for rows in (3, 16, 1)
    ]
    return one(run, *calls)
