"""What a .pte and its .ptd files hold, read without ExecuTorch.

A machine that runs artifacts from Python need not have ExecuTorch installed, and reading through
its packages takes seconds. Field numbers are those of ExecuTorch's schema/program.fbs and
extension/flat_tensor/serialize/flat_tensor.fbs, which only ever append.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from graftwork.backend.flatbuffer import Table, root
from graftwork.plugins.errors import InputError

__all__ = ["DelegateEntry", "Plan", "ProgramFile", "Value", "read_data_file", "read_program_file"]

_TENSOR, _KERNEL_CALL, _DELEGATE_CALL, _IN_SEGMENT = 5, 1, 2, 1


@dataclass(frozen=True)
class Value:
    """One value of a plan: a tensor's facts, or a plain number, truth or text.

    `sizes` are upper bounds where `dynamic`.
    """

    kind: str
    scalar: Any = None
    dtype: int = 0
    sizes: tuple[int, ...] = ()
    dim_order: tuple[int, ...] = ()
    dynamic: bool = False


@dataclass(frozen=True)
class DelegateEntry:
    """One delegate of a plan: who runs it, its own bytes, its compile specs."""

    id: str
    processed: bytes = field(repr=False)
    compile_specs: Mapping[str, bytes]


@dataclass(frozen=True)
class Plan:
    """One method: its values, and the calls as (operator or delegate index, value indices)."""

    name: str
    in_spec: str
    out_spec: str
    values: tuple[Value, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    operators: tuple[str, ...]
    delegates: tuple[DelegateEntry, ...]
    kernel_calls: tuple[tuple[str, tuple[int, ...]], ...]
    delegate_calls: tuple[tuple[int, tuple[int, ...]], ...]

    @property
    def written_inputs(self) -> tuple[int, ...]:
        """Places of the inputs that the method writes; as outputs they come before its own."""
        written = {args[0] for name, args in self.kernel_calls if name == "aten::copy_"}
        return tuple(place for place in self.inputs if place in written)


@dataclass(frozen=True)
class ProgramFile:
    """A .pte: its path, methods and named data, which stays in the file until it is read."""

    path: Path
    plans: tuple[Plan, ...]
    named_data: Mapping[str, memoryview] = field(repr=False)


def read_program_file(path: Path) -> ProgramFile:
    """Read a .pte.

    Raises:
        InputError: no such file, or no readable program.
    """
    data = _read(path)
    if bytes(data[4:6]) != b"ET":
        raise InputError(f"{path} is not a readable ExecuTorch program: it does not begin as one")
    try:
        program = root(data)
        base = struct.unpack_from("<Q", data, 24)[0] if bytes(data[8:12]) == b"eh00" else 0
        segments = program.tables(4, _segment)
        inline = program.tables(3, lambda table: table.bytes(0))

        def processed(entry: Table) -> bytes:
            reference = entry.table(1)
            if reference is None:
                return b""
            index = reference.number(1, "I")
            if reference.number(0, "b") == _IN_SEGMENT:
                return bytes(_cut(data, base, segments[index]))
            return bytes(inline[index])

        plans = program.tables(1, lambda table: _plan(table, processed))
        named = program.tables(7, lambda entry: (entry.text(0), entry.number(1, "I")))
        held = {key: _cut(data, base, segments[index]) for key, index in named}
        return ProgramFile(path, tuple(plans), held)
    except (struct.error, ValueError, IndexError) as error:
        raise InputError(f"{path} is not a readable ExecuTorch program: {error}") from error


def read_data_file(path: Path) -> dict[str, memoryview]:
    """The named data of a .ptd.

    Raises:
        InputError: no such file, or no readable data file.
    """
    data = _read(path)
    if bytes(data[4:8]) != b"FT01":
        raise InputError(f"{path} is not an ExecuTorch data file: it does not begin as one")
    try:
        table = root(data)
        base = struct.unpack_from("<Q", data, 32)[0] if bytes(data[8:12]) == b"FH01" else 0
        segments = table.tables(1, _segment)
        named = table.tables(2, lambda entry: (entry.text(0), entry.number(1, "I")))
        return {key: _cut(data, base, segments[index]) for key, index in named}
    except (struct.error, ValueError, IndexError) as error:
        raise InputError(f"{path} is not an ExecuTorch data file: {error}") from error


def _read(path: Path) -> memoryview:
    try:
        with path.open("rb") as file:
            # Mapped, since weights of gigabytes are read one by one, if at all.
            return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
    except ValueError:
        raise InputError(f"{path} is empty") from None
    except OSError as error:
        raise InputError(f"{path} cannot be read: {error.strerror or error}") from error


def _segment(table: Table) -> tuple[int, int]:
    return table.number(0, "Q"), table.number(1, "Q")


def _cut(data: memoryview, base: int, segment: tuple[int, int]) -> memoryview:
    start, size = base + segment[0], segment[1]
    if start + size > len(data):
        raise ValueError("it is cut short")
    return data[start : start + size]


def _plan(table: Table, processed: Any) -> Plan:
    container = table.table(1)
    operators = tuple(table.tables(6, _operator))

    def delegate(entry: Table) -> DelegateEntry:
        return DelegateEntry(entry.text(0), processed(entry), _specs(entry))

    kernels: list[tuple[str, tuple[int, ...]]] = []
    delegates: list[tuple[int, tuple[int, ...]]] = []
    for chain in table.tables(5, lambda chain: chain):
        for instruction in chain.tables(2, lambda item: item):
            kind, call = instruction.number(0, "B"), instruction.table(1)
            if call is None:
                continue
            if kind == _KERNEL_CALL:
                kernels.append((operators[call.number(0)], call.numbers(1)))
            elif kind == _DELEGATE_CALL:
                delegates.append((call.number(0), call.numbers(1)))
    return Plan(
        name=table.text(0),
        in_spec=container.text(0) if container else "",
        out_spec=container.text(1) if container else "",
        values=tuple(table.tables(2, _value)),
        inputs=table.numbers(3),
        outputs=table.numbers(4),
        operators=operators,
        delegates=tuple(table.tables(7, delegate)),
        kernel_calls=tuple(kernels),
        delegate_calls=tuple(delegates),
    )


def _operator(table: Table) -> str:
    name, overload = table.text(0), table.text(1)
    return f"{name}.{overload}" if overload else name


def _specs(delegate: Table) -> dict[str, bytes]:
    return dict(delegate.tables(2, lambda spec: (spec.text(0), bytes(spec.bytes(1)))))


_KINDS = {1: "none", 2: "int", 3: "bool", 4: "float", _TENSOR: "tensor", 6: "str"}


def _value(table: Table) -> Value:
    kind, content = _KINDS.get(table.number(0, "B"), "list"), table.table(1)
    if content is None or kind == "list":
        return Value(kind)
    if kind == "tensor":
        return Value(
            kind,
            dtype=content.number(0, "b"),
            sizes=content.numbers(2),
            dim_order=content.numbers(3, "B"),
            dynamic=bool(content.number(8, "b")),
        )
    scalar: Any = None
    if kind == "int":
        scalar = content.number(0, "q")
    elif kind == "bool":
        scalar = bool(content.number(0, "?"))
    elif kind == "float":
        scalar = content.real(0)
    elif kind == "str":
        scalar = content.text(0)
    return Value(kind, scalar)
