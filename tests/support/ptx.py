"""Runs a straight piece of PTX on the CPU: every thread of a program at once, line by line.

Only what `graftwork.shims_cuda.sort.warp_ranks` writes: 32-bit registers, predicates, shared
memory, votes and shuffles within a warp. There are no branches, so barriers have nothing to wait
for; what threads of one line write to the same place must be the same, or be added.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
LANES = 32


def run(text: str, arguments: Sequence[Words], results: int) -> list[Words]:
    """The `results` words of each thread, from `arguments`: the words of each thread, in order."""
    machine = _Machine(arguments, results)
    for line in re.split(r"[;\n{}]", text):
        machine.step(line.strip())
    return [machine.registers[f"${result}"] for result in range(results)]


class _Machine:
    def __init__(self, arguments: Sequence[Words], results: int) -> None:
        self.threads = len(arguments[0])
        thread = np.arange(self.threads, dtype=np.uint32)
        self.registers = {f"${results + i}": words for i, words in enumerate(arguments)}
        self.registers["%tid.x"] = thread
        self.registers["%lanemask_lt"] = (1 << (thread % LANES)) - 1
        self.memory = np.full(
            2**16, 0xDEADBEEF, dtype=np.uint32
        )  # whoever reads it forgot to write
        self.symbols: dict[str, int] = {}
        self.free = 0

    def step(self, line: str) -> None:
        declared = re.fullmatch(r"\.shared \.align 16 \.b32 (\w+)\[(\d+)\]", line)
        if declared:
            self.symbols[declared[1]] = self.free * 4
            self.free += int(declared[2])
            return
        if not line or line.startswith(".reg"):
            return
        guard, operation, operands = re.fullmatch(r"(?:@(!?\w+) )?(\S+)(?: (.*))?", line).groups()  # type: ignore[union-attr]
        active = np.ones(self.threads, bool)
        if guard:
            active = self.registers[guard.lstrip("!")].astype(bool) ^ guard.startswith("!")
        names = [name.strip() for name in (operands or "").split(",")]
        kind = operation.split(".")
        if kind[0] == "bar":
            assert active.all(), line
        elif kind[0] in ("st", "red"):
            at, word = self.place(names[0])[active], self.value(names[1])[active]
            assert (at < self.free).all(), f"past what is declared: {line}"
            if kind[0] == "red":
                np.add.at(self.memory, at, word)
            else:
                self.memory[at] = word
                assert (self.memory[at] == word).all(), f"threads disagree: {line}"
        else:
            self.compute(kind, names, active)

    def compute(self, kind: list[str], names: list[str], active: NDArray[np.bool_]) -> None:
        if kind[0] == "ld":
            found = self.memory[np.where(active, self.place(names[1]), 0)]
            return self.set(names[0], found, active)
        given = [self.value(name) for name in names[1:]]
        if kind[0] == "vote":
            assert active.all(), "every lane votes"
            votes = given[0].reshape(-1, LANES).astype(np.uint64) << np.arange(
                LANES, dtype=np.uint64
            )
            return self.set(names[0], np.repeat(votes.sum(1), LANES), active)
        if kind[0] == "shfl":
            assert kind[2] == "up", kind
            lane = self.registers["%tid.x"] % LANES
            there = lane >= given[1]
            source = np.where(there, self.registers["%tid.x"] - given[1], self.registers["%tid.x"])
            name, predicate = names[0].split("|")
            self.set(name, given[0][source], active)
            return self.set(predicate, there, active)
        word = _OPERATIONS[".".join(kind[:2]) if kind[0] == "setp" else kind[0]](*given)
        return self.set(names[0], word, active)

    def set(self, name: str, word: NDArray[np.generic], active: NDArray[np.bool_]) -> None:
        new = (np.broadcast_to(word, self.threads).astype(np.uint64) & 0xFFFFFFFF).astype(
            np.uint32
        )
        self.registers[name] = np.where(active, new, self.registers.get(name, new))

    def value(self, name: str) -> Words:
        if name in self.registers:
            return self.registers[name]
        number = self.symbols[name] if name in self.symbols else int(name)
        return np.full(self.threads, number & 0xFFFFFFFF, dtype=np.uint32)

    def place(self, name: str) -> NDArray[np.int64]:
        register, _, offset = name.strip("[]").partition("+")
        at = self.value(register).astype(np.int64) + int(offset or 0)
        assert (at % 4 == 0).all(), name
        return at // 4


_OPERATIONS: dict[str, Callable[..., NDArray[np.generic]]] = {
    "mov": lambda a: a,
    "and": lambda a, b: a & b,
    "or": lambda a, b: a | b,
    "not": lambda a: ~a,
    "shl": lambda a, b: a << b,
    "shr": lambda a, b: a >> b,
    "add": lambda a, b: a + b,
    "sub": lambda a, b: a - b,
    "mad": lambda a, b, c: a * b + c,
    "popc": lambda a: np.array([int(word).bit_count() for word in a]),
    "setp.eq": lambda a, b: a == b,
    "setp.ne": lambda a, b: a != b,
    "setp.lt": lambda a, b: a < b,
    "setp.gt": lambda a, b: a > b,
}
