"""Operators made of Triton kernels, and their launches on a GPU, while tracing, and on the CPU.

A kernel family makes its operators by :func:`kernel_op`, and calls :func:`launch` and nothing
else of Triton's launching machinery:

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

from collections.abc import Callable, Sequence
from functools import update_wrapper
from typing import Any, Generic, TypeVar

import torch
import triton
import triton.language as tl
from triton.runtime.jit import JITFunction

from ..torch_private import dispatch_mode_is_active
from .gluon import kernel_behind
from .interpreting import interpreted
from .symbolic import Size, known

R = TypeVar("R")
Int = Size
Kernel = Any  # a function under @triton.jit; Triton ships no types


class KernelOp(Generic[R]):
    """A function of tensors as an operator, called past the dispatcher where nobody listens.

    Through the dispatcher a call costs as much as two or three launches. So where tensors hold
    their data, want no gradient, and no mode watches (tracing is one), the function itself is
    called.

    Attributes:
        op: the operator, which programs are exported with.
    """

    def __init__(self, name: str, function: Callable[..., R]) -> None:
        update_wrapper(self, function)
        self._function = function
        self.op: Any = torch.library.triton_op(name, mutates_args={})(function)

    def __call__(self, *args: Any, **kwargs: Any) -> R:
        """What the function returns; where it is traced, sizes may be symbolic."""
        watched = torch.compiler.is_compiling() or dispatch_mode_is_active()
        if watched or not all(map(_is_plain, (*args, *kwargs.values()))):
            out: R = self.op(*args, **kwargs)
            return out
        return self._function(*args, **kwargs)


def kernel_op(name: str) -> Callable[[Callable[..., R]], KernelOp[R]]:
    """Make a function the operator ``name`` (``namespace::name``); it writes no argument."""
    return lambda function: KernelOp(name, function)


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
    whole = (grid[0], *map(at_least_one, grid[1:]))
    tensor = None
    for arg in args:
        if isinstance(arg, int) or not isinstance(arg, torch.Tensor):
            continue
        if is_traced(arg):
            if isinstance(kernel, JITFunction):
                torch.library.wrap_triton(kernel)[whole](*args, **options)
            return
        tensor = arg
    assert tensor is not None, "a kernel without tensors writes nothing"
    if tensor.is_cuda:
        _launch_on(tensor.get_device(), kernel, whole, args, options)
    elif tensor.is_cpu:
        with interpreted(kernel) as runnable:
            runnable[whole](*args, **options)
    else:
        raise RuntimeError(f"Triton kernels run on cuda or cpu tensors, not on {tensor.device}")


def _launch_on(
    device: int, kernel: Kernel, grid: Sequence[Size], args: Sequence[Any], options: dict[str, Any]
) -> None:
    """Run ``kernel`` on GPU ``device``; Triton takes the current one, wherever tensors are."""
    if device != torch.cuda.current_device():
        with torch.cuda.device(device):
            _launch_on(device, kernel, grid, args, options)
        return
    behind = kernel_behind(kernel)
    run = kernel if behind is None else behind
    run[grid](*args, **options, debug=behind is None, sanitize_overflow=False)


def fits_int32(*sizes: Size) -> bool:
    """Whether every size is below 2^31 for all inputs the program takes."""
    return all(known(size < 2**31) for size in sizes)


def is_traced(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` stands for data (fake, functional, ...) instead of holding it."""
    return type(tensor) not in (torch.Tensor, torch.nn.Parameter)


def _is_plain(arg: object) -> bool:
    """Whether an argument is no tensor, or one that holds its data and wants no gradient.

    One whose data is to be negated or conjugated still (``c.conj().imag``) does not: the
    dispatcher does that before it calls an operator.
    """
    if isinstance(arg, torch.Tensor):
        return not (is_traced(arg) or arg.requires_grad or arg.is_neg() or arg.is_conj())
    return not isinstance(arg, (list, tuple)) or all(map(_is_plain, arg))


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
