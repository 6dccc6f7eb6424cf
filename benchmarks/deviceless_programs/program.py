"""What a program is: its methods and calls, a registry by name, weights from seeds."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Call = tuple[str, tuple[Tensor, ...]]


@dataclass
class Program:
    """One program: its methods, and the calls that are made one after the other.

    Attributes:
        methods: for each method the module, example inputs and dynamic shapes.
        calls: method and inputs, in order; state is kept between them.
        timed: whether its time is compared.
        enable, disable: the plugin set where it is not the default one.
    """

    methods: Mapping[str, tuple[nn.Module, tuple[Tensor, ...], Any]]
    calls: Sequence[Call]
    timed: bool = False
    enable: tuple[str, ...] = ()
    disable: tuple[str, ...] = ()


PROGRAMS: dict[str, Callable[[], Program]] = {}


def make(name: str) -> Program:
    """The program of that name, in eval mode, with the same weights and inputs every time."""
    torch.manual_seed(zlib.crc32(name.encode()))
    program = PROGRAMS[name]()
    for module, _inputs, _shapes in program.methods.values():
        module.eval()
    return program


def seeded(module: nn.Module) -> nn.Module:
    """Fill a module's parameters by their names: releases of a library initialise differently."""
    for name, value in module.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        drawn = torch.randn(value.shape, generator=generator)
        scale = 0.02 if value.dim() > 1 else 0.1
        with torch.no_grad():
            value.copy_(
                drawn * scale + (1.0 if "norm" in name.lower() and value.dim() == 1 else 0)
            )
    return module


class Function(nn.Module):
    """A plain function as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Tensor) -> Any:
        return self.function(*inputs)


def one(
    module: nn.Module | Callable[..., Any],
    *calls: tuple[Tensor, ...],
    shapes: Any = None,
    **settings: Any,
) -> Program:
    """A program of one method, exported with the inputs of its first call."""
    if not isinstance(module, nn.Module):
        module = Function(module)
    methods = {"forward": (module, calls[0], shapes)}
    return Program(methods, [("forward", call) for call in calls], **settings)


def program(function: Callable[[], Program]) -> Callable[[], Program]:
    """Register a program under its function's name."""
    PROGRAMS[function.__name__] = function
    return function
