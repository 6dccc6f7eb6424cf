"""Launching Triton kernels from a ``triton_op``, on a GPU, while tracing, and on the CPU.

A kernel family calls :func:`launch` and nothing else of Triton's launching machinery:

- while an operator is traced (export, AOTInductor, fake tensors), the launch is recorded, so
  that the kernel is compiled into the program;
- on CUDA tensors the kernel runs, with its device asserts on;
- on CPU tensors the same kernel runs under Triton's interpreter. No environment variable is
  needed, so one process can both interpret kernels and compile them.

Kernels live in modules whose name ends in ``kernels``; see pyproject.toml for what the type
checker is told about those.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime.interpreter import InterpretedFunction, _patch_lang
from triton.runtime.jit import JITFunction

Int = int | torch.SymInt
Kernel = Any  # a function under @triton.jit; Triton ships no types

_interpreting = threading.RLock()


def launch(kernel: Kernel, grid: Sequence[Int], *args: Any, **options: Any) -> None:
    """Run or record ``kernel`` over ``grid`` (one to three sizes; each is raised to at least 1).

    ``args`` are the kernel's arguments in order; ``options`` are its ``tl.constexpr``
    parameters and ``num_warps``, ``num_stages``. Kernels mask their accesses, so the one
    program of an empty problem touches nothing.

    Raises:
        RuntimeError: real tensors that are neither on a GPU nor on the CPU.
    """
    whole = tuple(at_least_one(size) for size in grid)
    tensors = [arg for arg in args if isinstance(arg, torch.Tensor)]
    if any(is_traced(tensor) for tensor in tensors):
        if isinstance(kernel, JITFunction):
            torch.library.wrap_triton(kernel)[whole](*args, **options)
        return
    device = tensors[0].device.type
    if device == "cpu":
        with _interpreted(kernel) as interpreted:
            interpreted[whole](*args, **options)
    elif device == "cuda":
        kernel[whole](*args, **options, debug=True, sanitize_overflow=False)
    else:
        raise RuntimeError(f"Triton kernels run on cuda or cpu tensors, not on {device}")


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` stands for data (fake, functional, ...) instead of holding it."""
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def at_least_one(size: Int) -> Int:
    """``max(1, size)``, symbolic where ``size`` is."""
    return max(1, size) if isinstance(size, int) else torch.sym_max(1, size)


def cdiv(size: Int, block: int) -> Int:
    """``ceil(size / block)`` in integers, symbolic where ``size`` is."""
    return (size + block - 1) // block


@contextmanager
def _interpreted(kernel: Kernel) -> Iterator[Kernel]:
    """``kernel`` as Triton's interpreter takes it.

    A kernel calls other ``@triton.jit`` functions (``tl.sum`` is one). Those refuse to be
    called outside a compilation, so for the time of the run they are interpreted as well.
    """
    if not isinstance(kernel, JITFunction):  # TRITON_INTERPRET=1 when it was decorated
        yield kernel
        return
    with _interpreting:
        compiled_call = JITFunction.__call__
        JITFunction.__call__ = _call_interpreted
        try:
            yield InterpretedFunction(kernel.fn)
        finally:
            JITFunction.__call__ = compiled_call


def _call_interpreted(function: Kernel, *args: Any, **kwargs: Any) -> Any:
    # InterpretedFunction.__call__ does the same, but leaves triton.language patched behind, and
    # nothing compiles in this process after that (seen on triton 3.7.1).
    scope = _patch_lang(function.fn)
    try:
        return InterpretedFunction(function.fn).rewrite()(*args, **kwargs)
    finally:
        scope.restore()


# Order-preserving maps between floats and integers: what compares, sorts and goes through
# integer atomics. Device functions, called from kernels.

jit: Callable[[Callable[..., Any]], Kernel] = triton.jit


@jit
def ordered_key(x):  # type: ignore[no-untyped-def]
    """Signed integers of the width of ``x`` in the order of ``x``.

    NaN maps above everything, whatever its sign and payload; -0.0 maps right below 0.0.
    Integers map to themselves, except that uint8 widens to int16.
    """
    if x.dtype == tl.float64:
        bits = x.to(tl.int64, bitcast=True)
        key = tl.where(x != x, 0x7FFFFFFFFFFFFFFF, bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF))
    elif x.dtype == tl.float32:
        bits = x.to(tl.int32, bitcast=True)
        key = tl.where(x != x, 0x7FFFFFFF, bits ^ ((bits >> 31) & 0x7FFFFFFF))
    elif x.dtype == tl.float16 or x.dtype == tl.bfloat16:
        bits = x.to(tl.int16, bitcast=True)
        magnitude = tl.full(bits.shape, 0x7FFF, tl.int16)
        wide = x.to(tl.float32)  # the interpreter compares a bfloat16 by its bits
        key = tl.where(wide != wide, magnitude, bits ^ ((bits >> 15) & magnitude))
    elif x.dtype == tl.uint8:
        key = x.to(tl.int16)
    else:
        key = x
    return key


@jit
def from_ordered_key(key, dtype: tl.constexpr):  # type: ignore[no-untyped-def]
    """The value of ``dtype`` that :func:`ordered_key` maps to ``key``; NaN comes back as NaN.

    ``key`` may be wider than the map's result.
    """
    if dtype == tl.float64:
        x = (key ^ ((key >> 63) & 0x7FFFFFFFFFFFFFFF)).to(tl.float64, bitcast=True)
    elif dtype == tl.float32:
        narrow = key.to(tl.int32)
        x = (narrow ^ ((narrow >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
    elif dtype == tl.float16 or dtype == tl.bfloat16:
        short = key.to(tl.int16)
        magnitude = tl.full(short.shape, 0x7FFF, tl.int16)
        x = (short ^ ((short >> 15) & magnitude)).to(dtype, bitcast=True)
    else:
        x = key.to(dtype)
    return x
