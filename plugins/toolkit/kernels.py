"""Launching Triton kernels from a ``triton_op``, on a GPU, while tracing, and on the CPU.

A kernel family calls :func:`launch` and nothing else of Triton's launching machinery:

- while an operator is traced (export, AOTInductor, fake tensors), the launch is recorded, so
  that the kernel is compiled into the program;
- on CUDA tensors the kernel runs, with its device asserts on; a kernel in Gluon in place of
  its stand-in (gluon.py);
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

import numpy
import torch
import triton
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, _patch_lang
from triton.runtime.jit import JITFunction

from .gluon import kernel_behind
from .symbolic import Size, known

Int = Size
Kernel = Any  # a function under @triton.jit; Triton ships no types

_interpreting = threading.RLock()


def launch(kernel: Kernel, grid: Sequence[Size], *args: Any, **options: Any) -> None:
    """Run or record ``kernel`` over ``grid``: one to three sizes, later ones raised to at least 1.

    ``args`` are the kernel's arguments in order; ``options`` are its ``tl.constexpr``
    parameters and ``num_warps``, ``num_stages``. Where the first size is 0 nothing runs, in a
    compiled program too (its launcher returns); an empty tensor has no memory to touch.

    Raises:
        RuntimeError: real tensors that are neither on a GPU nor on the CPU.
    """
    if isinstance(grid[0], int) and grid[0] == 0:
        return
    whole = (grid[0], *(at_least_one(size) for size in grid[1:]))
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
        behind = kernel_behind(kernel)
        run = kernel if behind is None else behind
        run[whole](*args, **options, debug=behind is None, sanitize_overflow=False)
    else:
        raise RuntimeError(f"Triton kernels run on cuda or cpu tensors, not on {device}")


def fits_int32(*sizes: Size) -> bool:
    """Whether every size is below 2^31 for all inputs the program takes."""
    return all(known(size < 2**31) for size in sizes)


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` stands for data (fake, functional, ...) instead of holding it."""
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def is_interpreted(tensor: torch.Tensor) -> bool:
    """Whether kernels on `tensor` run in the interpreter now, which pays by the element.

    A traced tensor may well be on the CPU while the program that it is traced for runs on a GPU.
    """
    return tensor.device.type == "cpu" and not is_traced(tensor)


def as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    """A bool tensor as uint8, others as they are; without a copy, except in a compiled program.

    There the copy is part of what computes the tensor, and Inductor of torch 2.11 has no view
    of a computed bool.
    """
    if tensor.dtype != torch.bool:
        return tensor
    return tensor.to(torch.uint8) if is_traced(tensor) else tensor.view(torch.uint8)


def as_dtype(tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What `as_bytes` gave for a tensor of `dtype`, back in that dtype."""
    if dtype != torch.bool:
        return tensor
    return tensor.to(torch.bool) if is_traced(tensor) else tensor.view(torch.bool)


def at_least_one(size: Size) -> Size:
    """``max(1, size)``, symbolic where ``size`` is."""
    if isinstance(size, int):
        return max(1, size)
    larger: Size = torch.sym_max(1, size)  # type: ignore[no-untyped-call]  # torch has no types
    return larger


def cdiv(size: Size, block: Size) -> Size:
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
        compiled_call, convert = JITFunction.__call__, interpreter._convert_float
        JITFunction.__call__ = _call_interpreted
        interpreter._convert_float = _convert_float
        # Triton's own functions see triton.language.core, kernels see triton.language. Triton
        # patches what a nested call sees on every call and never restores it, after which
        # nothing compiles in this process (seen on triton 3.7.1): patch once, and restore.
        scope = _patch_lang(tl.sum.fn)
        try:
            # Lanes past the end divide by sizes of 0; a GPU says nothing of it either.
            with numpy.errstate(all="ignore"):
                yield InterpretedFunction(kernel.fn)
        finally:
            scope.restore()
            JITFunction.__call__ = compiled_call
            interpreter._convert_float = convert


def _convert_float(values: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Round float32 to the nearest bfloat16, as GPUs do; Triton's interpreter truncates."""
    if (source, target) != (tl.float32, tl.bfloat16):
        return _convert_float_of_triton(values, source, target, rounding)
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(values), (bits >> 16) | 0x40, rounded).astype(numpy.uint16)


_convert_float_of_triton = interpreter._convert_float


def _call_interpreted(function: Kernel, *args: Any, **kwargs: Any) -> Any:
    return InterpretedFunction(function.fn).rewrite()(*args, **kwargs)


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
