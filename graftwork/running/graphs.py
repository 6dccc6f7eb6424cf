"""Runs a method under a CUDA graph: warm-up calls, one capture, then replays.

A warm-up is an ordinary call, and a capture records kernels without running them; the capture's
own call is its first replay. So a buffer that the program writes advances by one step a call,
also where the capture fails and the call is run again without a graph.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from graftwork.plugins.errors import InputError

__all__ = ["WARM_UPS", "Capture", "GraphedRun", "Replay", "Run"]

WARM_UPS = 3  # as ExecuTorch's CUDA backend; libraries load kernels and make handles in them

_log = logging.getLogger("graftwork")

Run = Callable[[Sequence[torch.Tensor]], list[Any]]  # an output may be None, or a number


class Replay(Protocol):
    """A captured call: new values for its inputs, new tensors for its outputs."""

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Replay on inputs of the captured shapes."""


class Capture(Protocol):
    """Records one call without running it, on inputs of its own; frees all it took on failure."""

    def __call__(self, run: Run, inputs: Sequence[torch.Tensor]) -> Replay:
        """Capture `run` for inputs shaped like these."""


class GraphedRun:
    """A method's run under a graph.

    Attributes:
        why_not: why calls run without a graph for good; empty while that is not so.
    """

    def __init__(
        self, run: Run, capture: Capture, method: str, names: Sequence[str], why_not: str = ""
    ) -> None:
        self._run = run
        self._capture = capture
        self._method = method
        self._names = names
        self._warm_ups = WARM_UPS
        self._replay: Replay | None = None
        self._shapes: list[tuple[int, ...]] = []
        self.why_not = ""
        if why_not:
            self._switch_off(why_not)

    @property
    def captured(self) -> bool:
        """Whether calls are replays by now."""
        return self._replay is not None

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Run one call; a replay refuses inputs of other shapes than the captured ones.

        Raises:
            InputError: names the input, the dim and both sizes.
        """
        if self._replay is not None:
            self._refuse_other_shapes(inputs)
            return self._replay(inputs)
        if self.why_not:
            return self._run(inputs)
        if self._warm_ups:
            self._warm_ups -= 1
            return self._run(inputs)
        replay = self._try_to_capture(inputs)
        if replay is None:
            return self._run(inputs)
        self._shapes = [tuple(tensor.shape) for tensor in inputs]
        self._replay = replay
        return replay(inputs)

    def _try_to_capture(self, inputs: Sequence[torch.Tensor]) -> Replay | None:
        try:
            return self._capture(self._run, inputs)
        except Exception as error:
            first = next(iter(str(error).strip().splitlines()), type(error).__name__)
            # Compiled programs add where their source lay on the machine that compiled them.
            reason = re.sub(r" at /\S+, line \d+$", "", first)
            self._switch_off(f"it cannot be captured: {reason}")
            return None

    def _switch_off(self, reason: str) -> None:
        self.why_not = reason
        _log.info("method %s runs without a CUDA graph: %s", self._method, reason)

    def _refuse_other_shapes(self, inputs: Sequence[torch.Tensor]) -> None:
        for name, tensor, captured in zip(self._names, inputs, self._shapes, strict=True):
            if tensor.shape != captured:
                dims = enumerate(zip(tensor.shape, captured, strict=True))
                dim, (size, wanted) = next(item for item in dims if item[1][0] != item[1][1])
                raise InputError(
                    f"method {self._method}, input {name}: dim {dim} is {size}, and its CUDA "
                    f"graph was captured with {wanted}; load the program once for each shape, "
                    f"or without a graph"
                )
