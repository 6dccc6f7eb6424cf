"""Argument checks that stop `torch.export` become checks inside the exported program.

`torch.distributions` validates its arguments with `if not all_valid: raise ValueError(...)`, where
`all_valid` is a tensor. Export cannot take either branch of a value it does not know and stops
with a data-dependent guard (huggingface/transformers#43631: `StudentT(df, loc, scale).mean`).

Where one branch of such an `if`, or of an `assert`, does nothing but raise, there is nothing to
choose: the program goes on only if the check holds. Within `exportable_checks` the export takes
the branch that goes on, and the check becomes an `aten._assert_async` node, as if the code had
called `torch._assert_async`.
"""

from __future__ import annotations

import dis
import functools
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

_DISTRIBUTIONS = "torch.distributions."
_CONSTRAINTS = "torch.distributions.constraints"
_VALIDATION = "torch.distributions.distribution"
_EXPORTERS = ("torch.export", "torch._export")
_JUMPS_ALWAYS = (
    "JUMP_FORWARD",
    "JUMP_ABSOLUTE",
    "JUMP_BACKWARD",
    "JUMP_BACKWARD_NO_INTERRUPT",
    "JUMP_NO_INTERRUPT",
)


@contextmanager
def exportable_checks() -> Iterator[None]:
    """Enter around `torch.export.export` so that argument checks on tensors do not stop it.

    Takes effect for `if condition: raise ...` and `assert condition` on a one-element tensor, and
    for the checks inside `torch.distributions`; any other branch on a tensor's value is left to
    export, which refuses it as before. Outside of an export, and under strict export (which traces
    bytecode itself), it does nothing. Holds for the thread that enters it.
    """
    with _AssertBranches():
        yield


class _AssertBranches(TorchFunctionMode):
    """Answers `bool(tensor)` where the code around it leaves one answer only."""

    def __torch_function__(
        self,
        func: Any,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if (
            func is not torch.Tensor.__bool__
            or torch.compiler.is_dynamo_compiling()
            or not torch.compiler.is_exporting()
        ):
            return func(*args, **(kwargs or {}))
        frame = _asking_frame()
        answer = _only_answer(frame)
        if answer is None or args[0].numel() != 1:
            return func(*args, **(kwargs or {}))
        condition = args[0].reshape(())
        holds = condition if answer else condition.logical_not()
        torch.ops.aten._assert_async.msg(holds, _describe(frame))
        return answer


def _asking_frame() -> FrameType:
    """The frame that asked for the tensor's truth, past the function modes in between."""
    frame = sys._getframe(1)
    while frame.f_code.co_name == "__torch_function__" and frame.f_back is not None:
        frame = frame.f_back
    return frame


def _only_answer(frame: FrameType) -> bool | None:
    """The truth value with which the code goes on; None where either may be meant."""
    if _may_be_caught(frame):
        return None
    if _module(frame) == _CONSTRAINTS:
        # `if not part.all(): return part`, and whoever validates then raises.
        return True if _is_validating(frame) else None
    return _answer_in_code(frame.f_code, frame.f_lasti)


def _may_be_caught(frame: FrameType) -> bool:
    """Whether a handler between the check and the export could make something of a raise."""
    outer: FrameType | None = frame
    while outer is not None and not _module(outer).startswith(_EXPORTERS):
        if not _module(outer).startswith("torch.") and _catches(outer.f_code, outer.f_lasti):
            return True
        outer = outer.f_back
    return False


def _is_validating(frame: FrameType) -> bool:
    caller: FrameType | None = frame
    while caller is not None and _module(caller) == _CONSTRAINTS:
        caller = caller.f_back
    return caller is not None and _module(caller) == _VALIDATION


@functools.lru_cache(maxsize=256)
def _answer_in_code(code: CodeType, offset: int) -> bool | None:
    """The answer for the truth test at a bytecode offset."""
    steps = list(dis.get_instructions(code))
    at = {step.offset: index for index, step in enumerate(steps)}
    index, negated = at[offset], False
    while steps[index].opname in ("TO_BOOL", "UNARY_NOT"):
        negated ^= steps[index].opname == "UNARY_NOT"
        index += 1
    jump = steps[index]
    if not (jump.opname.startswith("POP_JUMP") and jump.opname.endswith(("IF_TRUE", "IF_FALSE"))):
        return None
    jumps_raise = _only_raises(steps, at, at[jump.argval])
    falls_raise = _only_raises(steps, at, index + 1)
    if jumps_raise == falls_raise:
        return None
    jumps_when = jump.opname.endswith("IF_TRUE")
    return (jumps_when if falls_raise else not jumps_when) ^ negated


def _only_raises(steps: Sequence[dis.Instruction], at: Mapping[int, int], start: int) -> bool:
    """Whether every way from `start` ends in a `raise`."""
    seen: set[int] = set()
    waiting = [start]
    while waiting:
        index = waiting.pop()
        if index in seen:
            continue
        seen.add(index)
        step = steps[index]
        if step.opname == "RAISE_VARARGS":
            continue
        if step.opname.startswith(("RETURN", "YIELD", "RERAISE")) or index + 1 == len(steps):
            return False
        if step.opcode in dis.hasjrel or step.opcode in dis.hasjabs:
            waiting.append(at[step.argval])
        if step.opname not in _JUMPS_ALWAYS:
            waiting.append(index + 1)
    return True


@functools.lru_cache(maxsize=256)
def _catches(code: CodeType, offset: int) -> bool:
    """Whether an exception at a bytecode offset runs into an `except` or a `finally`.

    A `with` block is none.
    """
    bytecode = dis.Bytecode(code)
    entries = getattr(bytecode, "exception_entries", None)
    if entries is None:  # Python 3.10 has no table of handlers
        return any(step.opname == "SETUP_FINALLY" for step in bytecode)
    steps = list(bytecode)
    at = {step.offset: index for index, step in enumerate(steps)}
    seen: set[int] = set()
    while offset not in seen:
        seen.add(offset)
        handler = next((e.target for e in entries if e.start <= offset < e.end), None)
        if handler is None:
            return False
        names = [step.opname for step in steps[at[handler] : at[handler] + 3]]
        if "WITH_EXCEPT_START" not in names and names != ["COPY", "POP_EXCEPT", "RERAISE"]:
            return True
        offset = handler
    return False


def _module(frame: FrameType) -> str:
    return str(frame.f_globals.get("__name__", ""))


def _describe(frame: FrameType) -> str:
    """What is checked, and the user's line: the file's name, with no path of the machine."""
    what = ""
    if _is_validating(frame):
        while _module(frame) != _VALIDATION:
            frame = frame.f_back or frame
        validated, parameter = frame.f_locals.get("self"), frame.f_locals.get("param", "value")
        what = f"{parameter} of {type(validated).__name__} is valid, "
    while _module(frame).startswith(_DISTRIBUTIONS) and frame.f_back:
        frame = frame.f_back
    name, line = frame.f_code.co_filename, frame.f_lineno
    return f"{what}{os.path.basename(name)}:{line}: {linecache.getline(name, line).strip()}"
