"""Reads what a kernel compiled to for a fault of `ptxas` 12.8, of Triton 3.6 and 3.7.

Where two layouts of one shared address are multiplied by tensor cores (`wgmma`), it adds to a
uniform register that it never filled, and the product reads some other place of shared memory,
or one outside it. So a kernel should have one layout, and read no register before it is written.
"""

from __future__ import annotations

import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton

_LINE = re.compile(r"/\*([0-9a-f]{4,})\*/\s+(?:@!?(?:UP|P)\w+\s+)?(\S+)\s*(.*?)\s*;")
_WRITES = re.compile(r"(?:R2UR|S2UR|CS2UR|LDCU|VOTEU|C?REDUX|U(?!ISETP|PLOP3|TMA|BLK|CGA|SETM))")
_WIDTHS = ((".128", 4), (".64", 2), (".WIDE", 2))


def shared_layouts(ptx: str) -> set[str]:
    """The upper halves of the constants that descriptors of shared memory are made with."""
    constants = re.findall(r"or\.b64\s+%rd\d+, %rd\d+, (-?\d+);", ptx)
    return {hex(half) for constant in constants if (half := int(constant) % 2**64 >> 32)}


def unwritten_reads(binary: Any) -> list[str]:
    """`unwritten_in` what Triton compiled for an NVIDIA GPU."""
    return unwritten_in(_disassembled(binary.asm["cubin"]))


def unwritten_in(sass: str) -> list[str]:
    """The instructions that read a uniform register that none writes on any path to them."""
    found: list[str] = []
    for text in sass.split("Function : ")[1:]:
        code = _LINE.findall(text)
        assert code, "no instruction was understood"
        found += _unwritten(code, text)
    return found


def _disassembled(cubin: bytes) -> str:
    tools = triton.knobs.nvidia
    folders = [str(Path(tool.path).parent) for tool in (tools.nvdisasm, tools.cuobjdump)]
    path = os.pathsep.join([*folders, os.environ["PATH"]])
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        command = [tools.cuobjdump.path, "-sass", file.name]
        environment = {**os.environ, "PATH": path}
        return subprocess.run(
            command, env=environment, check=True, capture_output=True, text=True
        ).stdout


def _unwritten(code: list[tuple[str, str, str]], text: str) -> list[str]:
    """`code`: address, operation and operands of each instruction; sets of registers are bits."""
    at = {int(address, 16): i for i, (address, _, _) in enumerate(code)}
    guarded = {int(a, 16) for a in re.findall(r"/\*([0-9a-f]{4,})\*/\s+@", text)}
    before: list[int | None] = [0, *[None] * (len(code) - 1)]
    waiting = [0]
    while waiting:
        i = waiting.pop()
        address, name, operands = code[i]
        after = (before[i] or 0) | _written(name, operands)
        following = []
        if name.startswith(("BRA", "CALL")):
            following = [at[int(target, 16)] for target in re.findall(r"0x(\w+)", operands)[-1:]]
        ends = name.startswith(("EXIT", "RET")) or (name.startswith("BRA") and "," not in operands)
        if i + 1 < len(code) and (not ends or int(address, 16) in guarded):
            following.append(i + 1)
        for j in following:
            known = before[j]
            if known is None or known | after != known:
                before[j] = (known or 0) | after
                waiting.append(j)
    return [
        f"{address} {name} {operands}"
        for (address, name, operands), known in zip(code, before, strict=True)
        if known is not None and _read(name, operands) & ~known
    ]


def _written(name: str, operands: str) -> int:
    target = re.match(r"UR(\d+)", operands)
    return _bits(int(target[1]), _width(name)) if target and _WRITES.match(name) else 0


def _read(name: str, operands: str) -> int:
    if _WRITES.match(name):
        operands = operands.partition(",")[2]
    read, wide = 0, 2 if name.endswith(".64") and name.startswith("U") else 1
    for kind, register in re.findall(r"(gdesc\[|desc\[|\b)UR(\d+)", operands):
        # Four registers describe both factors; the first two are unused if that is in registers.
        first = int(register)
        if kind == "gdesc[":
            in_registers = re.match(r"R\d+, R", operands) is not None
            read |= _bits(first + 2, 2) if in_registers else _bits(first, 4)
        else:
            read |= _bits(first, 2 if kind == "desc[" else wide)
    return read


def _width(name: str) -> int:
    return next(
        (width for suffix, width in _WIDTHS if re.search(re.escape(suffix) + r"\b", name)), 1
    )


def _bits(first: int, count: int) -> int:
    return ((1 << count) - 1) << first
