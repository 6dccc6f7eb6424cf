"""What a plugin promises, in a form that can be run: cases, reference, tolerance, refusals.

One record feeds `graftwork verify`, the pytest plugin, the error tests and the benchmarks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from hypothesis.strategies import SearchStrategy

Road = Literal["export", "direct"]


@dataclass(frozen=True)
class Tolerance:
    """How far a result may be from the reference.

    A value passes where `|ours - reference| <= absolute + relative * |reference|`; NaN equals
    NaN, an infinity only itself. With `bits` the values must be equal bit for bit (NaN payloads
    and the sign of zero included). With `strides` the outputs' strides must be the reference's.
    """

    relative: float = 0.0
    absolute: float = 0.0
    bits: bool = False
    strides: bool = True


EXACT = Tolerance(bits=True)


@dataclass(frozen=True)
class Case:
    """One example: a program, its inputs, and what the plugin must do with it.

    Attributes:
        program: a function at the top level of a module, or a `torch.nn.Module` class. A
            function is called with the inputs and `settings`; a class is made with `settings`.
        inputs: positional inputs, used for the export and for the first comparison.
        settings: keyword arguments that are constants of the program (plain Python values).
        fires: how often the plugin must fire; 0 for a negative match; None where any count is
            right.
        dynamic_shapes: as `torch.export.export` takes it. A function is exported with all its
            inputs as one `*inputs` argument, so it takes `((shapes of the first, ...),)`.
        more_inputs: further inputs, of other sizes, that the same exported program must take.
        options: the plugin's options for this case, by name.
        tolerance: how far this case may be from the reference, where not as its property says.
    """

    program: Callable[..., Any]
    inputs: tuple[Any, ...]
    settings: Mapping[str, Any] = field(default_factory=dict)
    fires: int | None = 1
    dynamic_shapes: Any = None
    more_inputs: tuple[tuple[Any, ...], ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)
    tolerance: Tolerance | None = None

    def module(self) -> torch.nn.Module:
        """The program as a module, in evaluation mode."""
        if isinstance(self.program, type):
            module: torch.nn.Module = self.program(**self.settings)
            return module.eval()
        return _FunctionModule(self.program, self.settings)


class _FunctionModule(torch.nn.Module):
    """A function with its settings, as a module that can be exported."""

    def __init__(self, function: Callable[..., Any], settings: Mapping[str, Any]) -> None:
        super().__init__()
        self.function = function
        self.settings = dict(settings)

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs, **self.settings)


@dataclass(frozen=True)
class Refusal:
    """A case that must end in an error, which `message` (a regular expression) matches.

    Eager may refuse it (a wrong dtype) or the plugin may (an argument it cannot honour): whichever
    comes first on the case's road.
    """

    name: str
    case: Case
    error: type[Exception]
    message: str


@dataclass(frozen=True)
class Benchmark:
    """A named size to measure: `make(device)` gives the case with its inputs on that device."""

    name: str
    make: Callable[[str], Case]


@dataclass(frozen=True)
class Property:
    """One promise of a plugin.

    Attributes:
        name: kebab-case, unique within the plugin, such as `masked-copies-equal-eager`.
        cases: a hypothesis strategy of `Case`.
        tolerance: how far from the reference a result may be.
        reference: called with the case's inputs and settings in place of eager, where eager
            cannot run the program on this machine; `reference_reason` says why.
        reference_reason: shown in reports beside the result.
        road: `export` exports the program, rewrites it by this plugin alone and runs the result;
            `direct` runs the program in eager mode with this plugin's operators in place, which
            is faster and needs no export: for kernels.
        refused: cases that must end in an error.
        benchmarks: sizes to measure.
    """

    name: str
    cases: SearchStrategy[Case]
    tolerance: Tolerance = EXACT
    reference: Callable[..., Any] | None = None
    reference_reason: str = ""
    road: Road = "export"
    refused: Sequence[Refusal] = ()
    benchmarks: Sequence[Benchmark] = ()
