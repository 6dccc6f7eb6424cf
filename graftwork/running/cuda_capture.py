"""Captures a call in a CUDA graph through torch, and gives everything back where that fails."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import Any

import torch

from graftwork.plugins.torch_private import give_back_pool

from .graphs import Run

__all__ = ["CudaCapture", "CudaReplay"]


class CudaReplay:
    """A captured graph with the tensors it reads and writes."""

    def __init__(
        self,
        graph: torch.cuda.CUDAGraph,
        inputs: Sequence[torch.Tensor],
        outputs: Sequence[Any],
        written: Sequence[int],
    ) -> None:
        self._graph = graph
        self._inputs = inputs
        self._outputs = outputs
        self._written = written
        self._stream = torch.cuda.current_stream()

    def __call__(self, inputs: Sequence[torch.Tensor]) -> list[Any]:
        """Copy the inputs in, replay, copy the outputs out; nothing waits for the GPU."""
        stream = torch.cuda.current_stream()
        if stream != self._stream:  # the tensors are shared by all replays
            stream.wait_stream(self._stream)
            self._stream = stream
        for mine, given in zip(self._inputs, inputs, strict=True):
            mine.copy_(given)
        self._graph.replay()
        for index in self._written:
            inputs[index].copy_(self._inputs[index])
        return [out.clone() if isinstance(out, torch.Tensor) else out for out in self._outputs]


class CudaCapture:
    """Captures on a stream of its own, with a memory pool of its own.

    `written` are the places of the inputs that the program writes.
    """

    def __init__(self, written: Sequence[int] = ()) -> None:
        self._written = written

    def __call__(self, run: Run, inputs: Sequence[torch.Tensor]) -> CudaReplay:
        """Record `run` without running it.

        Raises:
            RuntimeError: it cannot be captured; all memory is given back, and random numbers
                go on as if nothing had been tried.
        """
        device = torch.cuda.current_device()
        generator = torch.cuda.default_generators[device]
        before = generator.clone_state()
        pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        mine = [_copy(tensor) for tensor in inputs]
        gc.collect()  # what is freed during a capture breaks it
        torch.cuda.synchronize()
        outputs, failure, ended = _record(graph, pool, run, mine)
        if failure is None:
            return CudaReplay(graph, mine, outputs, self._written)
        mine.clear()
        if ended:
            graph.reset()
        else:
            # A capture that breaks off leaves its pool open and the generator in it.
            generator.graphsafe_set_state(before)
            give_back_pool(device, pool)
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        try:
            raise failure
        finally:
            # Else the error and this frame keep each other alive, and the graph with its memory.
            failure = None


def _record(
    graph: torch.cuda.CUDAGraph, pool: Any, run: Run, inputs: Sequence[torch.Tensor]
) -> tuple[list[Any], BaseException | None, bool]:
    """The outputs, what went wrong, and whether the capture could be ended.

    A failure comes without its traceback, whose frames would keep the tensors alive.
    """
    outputs: list[Any] = []
    failure: BaseException | None = None
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's own
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        # Another thread's work must not break the capture.
        graph.capture_begin(pool=pool, capture_error_mode="thread_local")
        try:
            outputs = run(inputs)
        except BaseException as error:
            failure = error.with_traceback(None)
        try:
            graph.capture_end()
        except RuntimeError as error:
            return [], failure or error.with_traceback(None), False
    return ([] if failure else outputs), failure, True


def _copy(tensor: torch.Tensor) -> torch.Tensor:
    """A copy with the same strides, also where there are gaps between the elements."""
    laid = torch.empty_strided(
        tuple(tensor.shape), tensor.stride(), dtype=tensor.dtype, device=tensor.device
    )
    return laid.copy_(tensor)
