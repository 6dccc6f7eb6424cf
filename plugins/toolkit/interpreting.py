"""Triton's interpreter, with what it lacks, for the time that a kernel runs in it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import InterpretedFunction, _patch_lang
from triton.runtime.jit import JITFunction

Kernel = Any  # a function under @triton.jit; Triton ships no types

_interpreting = threading.RLock()


@contextmanager
def interpreted(kernel: Kernel) -> Iterator[Kernel]:
    """``kernel`` as Triton's interpreter takes it.

    A kernel calls other ``@triton.jit`` functions (``tl.sum`` is one). Those refuse to be
    called outside a compilation, so for the time of the run they are interpreted as well.
    """
    if not isinstance(kernel, JITFunction):  # TRITON_INTERPRET=1 when it was decorated
        yield kernel
        return
    builder = interpreter.interpreter_builder
    # All products are exact there, but it does not know this one's name (triton 3.7.1).
    known_names = (*builder.options.allowed_dot_input_precisions, "bf16x6")
    options = dataclasses.replace(builder.options, allowed_dot_input_precisions=known_names)
    with _interpreting, ExitStack() as patches:
        for owner, name, value in (
            (JITFunction, "__call__", _call_interpreted),
            (interpreter, "_convert_float", _convert_float),
            (interpreter, "_patch_lang_tensor", _patch_tensor),
            (interpreter.InterpreterBuilder, "create_dot", _create_dot),
            (interpreter.InterpreterBuilder, "binary_op", _binary_op),
            (builder, "options", options),
        ):
            patches.callback(setattr, owner, name, getattr(owner, name))
            setattr(owner, name, value)
        # Triton's own functions see triton.language.core, kernels see triton.language. Triton
        # patches what a nested call sees on every call and never restores it, after which
        # nothing compiles in this process (seen on triton 3.7.1): patch once, and restore.
        patches.callback(_patch_lang(tl.sum.fn).restore)
        # Lanes past the end divide by sizes of 0; a GPU says nothing of it either.
        patches.enter_context(numpy.errstate(all="ignore"))
        yield InterpretedFunction(kernel.fn)


def _call_interpreted(function: Kernel, *args: Any, **kwargs: Any) -> Any:
    return InterpretedFunction(function.fn).rewrite()(*args, **kwargs)


def _convert_float(values: Any, source: Any, target: Any, rounding: Any) -> Any:
    """Round float32 to the nearest bfloat16, as GPUs do; Triton's interpreter truncates."""
    if (source, target) != (tl.float32, tl.bfloat16):
        return _convert_float_of_triton(values, source, target, rounding)
    bits = values.view(numpy.uint32)
    rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
    return numpy.where(numpy.isnan(values), (bits >> 16) | 0x40, rounded).astype(numpy.uint16)


def _create_dot(builder: Any, a: Any, b: Any, *rest: Any) -> Any:
    """A product of bfloat16 numbers; Triton's interpreter takes their bits for integers."""
    return _create_dot_of_triton(builder, _widened(a), _widened(b), *rest)


def _binary_op(builder: Any, one: Any, other: Any, op: Any) -> Any:
    """Sums, comparisons and the like, of bfloat16 numbers too: in float32, then rounded once."""
    result = _binary_op_of_triton(builder, _widened(one), _widened(other), op)
    if one.dtype.scalar != tl.bfloat16 or result.data.dtype == bool:
        return result
    return builder.cast_impl(result, tl.bfloat16)


def _widened(handle: Any) -> Any:
    """bfloat16 numbers, kept as their bits, as float32; any others as they are."""
    if handle.dtype.scalar != tl.bfloat16:
        return handle
    bits = handle.data.astype(numpy.uint32) << 16
    return interpreter.TensorHandle(bits.view(numpy.float32), tl.float32)


def _patch_tensor(tensor: Any, scope: Any) -> None:
    """Bounds of loops as numbers: numpy 2.4 makes none of arrays of one (triton 3.6.0)."""
    _patch_tensor_of_triton(tensor, scope)
    scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))


_convert_float_of_triton = interpreter._convert_float
_create_dot_of_triton = interpreter.InterpreterBuilder.create_dot
_binary_op_of_triton = interpreter.InterpreterBuilder.binary_op
_patch_tensor_of_triton = interpreter._patch_lang_tensor
