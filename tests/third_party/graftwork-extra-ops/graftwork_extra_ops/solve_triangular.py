"""`torch.linalg.solve_triangular`, as `MultivariateNormal.log_prob` calls it.

ExecuTorch has no kernel for it. A small system is solved row by row.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import (
    Case,
    Declined,
    PluginInfo,
    Property,
    Refusal,
    Tolerance,
    hookimpl,
)


@dataclass(frozen=True)
class SolveTriangularOptions:
    """Which systems are taken.

    Attributes:
        largest: rows of the largest system; the program grows with the square of it.
    """

    largest: int = 16


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="small triangular solves, row by row",
        options=SolveTriangularOptions,
        after=("merge-permutes",),
    )


@hookimpl
def list_decompositions(
    options: SolveTriangularOptions,
) -> Mapping[OpOverload, Callable[..., object]]:
    """The one operator, for systems up to the size in the options."""

    def solve(
        self: Tensor, B: Tensor, *, upper: bool, left: bool = True, unitriangular: bool = False
    ) -> Tensor:
        rows = self.shape[-1]
        if not self.is_floating_point():
            raise Declined(f"a system of {self.dtype}")
        if not isinstance(rows, int) or rows > options.largest:
            raise Declined(f"{rows} rows, more than {options.largest} known at export")
        if not left:
            return _solve(self.mT, B.mT, not upper, unitriangular).mT
        return _solve(self, B, upper, unitriangular)

    return {torch.ops.aten.linalg_solve_triangular.default: solve}


def _solve(a: Tensor, b: Tensor, upper: bool, unitriangular: bool) -> Tensor:
    """X in a @ X = b, (*, n, n) and (*, n, k); only the named triangle of `a` is read."""
    rows = a.shape[-1]
    if not rows:
        return b.clone()
    found: dict[int, Tensor] = {}
    for row in reversed(range(rows)) if upper else range(rows):
        value = b[..., row, :]
        for column, known in found.items():
            value = value - a[..., row, column, None] * known
        found[row] = value if unitriangular else value / a[..., row, row, None]
    return torch.stack([found[row] for row in range(rows)], -2)


def _program(a: Tensor, b: Tensor, upper: bool, left: bool, unitriangular: bool) -> Tensor:
    return torch.linalg.solve_triangular(a, b, upper=upper, left=left, unitriangular=unitriangular)


@hookimpl
def list_properties() -> Sequence[Property]:
    """Equal to LAPACK's answer for systems that are far from singular."""
    return [
        Property(
            "solves-equal-eager",
            _cases(),
            Tolerance(relative=1e-4, absolute=1e-5, strides=False),
            refused=[
                Refusal(
                    "integer-systems",
                    Case(
                        _program,
                        (torch.ones(2, 2, dtype=torch.int64),) * 2,
                        {"upper": True, "left": True, "unitriangular": False},
                    ),
                    RuntimeError,
                    "not implemented for 'Long'",
                )
            ],
        )
    ]


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    dtype = draw(st.sampled_from([torch.float32, torch.float64]))
    rows, width = draw(st.integers(1, 5)), draw(st.integers(1, 3))
    batch = draw(st.lists(st.integers(1, 3), max_size=2))
    left = draw(st.booleans())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    a = torch.rand(*batch, rows, rows, generator=generator, dtype=dtype)
    a = a / rows + torch.eye(rows, dtype=dtype)
    shape = (rows, width) if left else (width, rows)
    b = torch.randn(*batch, *shape, generator=generator, dtype=dtype)
    settings = {"upper": draw(st.booleans()), "left": left, "unitriangular": draw(st.booleans())}
    small = draw(st.booleans())
    return Case(
        _program,
        (a, b),
        settings,
        fires=int(rows <= 3) if small else 1,
        options={"largest": 3} if small else {},
    )
