"""Take the compiled libraries out of a `.pte` (and its `.ptd`), whoever wrote it.

A CUDA delegate's payload only names a library; the library itself is named data of the `.pte`,
or of the `.ptd` beside it. Releases differ in how they name it:

- "method-name" (1.2, 1.3): an empty payload; the key is `METHOD_so_blob`.
- "content-key" (1.4): two lines, the library's key and the weights' key.
- "ETCUDAFQN3" (1.5.1): magic, the library's key, then one record a weight.

`read_program(pte, ptd)` gives each CUDA delegate with its library and the weights it asks for.
"""

from __future__ import annotations

import dataclasses
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from graftwork.backend.program_file import read_data_file, read_program_file
from graftwork.plugins.errors import GraftworkError, InputError

__all__ = ["Delegate", "PayloadError", "Weight", "parse_payload", "read_program"]

_BACKEND = "CudaBackend"
_MAGIC = b"ETCUDAFQN"


class PayloadError(GraftworkError):
    """The file is not a program, or a delegate's payload is of no known format."""


@dataclasses.dataclass(frozen=True)
class Weight:
    """One constant that the library reads: its name, and the key of its bytes in the data file."""

    fqn: str
    key: str
    nbytes: int
    dtype: int
    device: str
    offset: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Delegate:
    """One CUDA delegate of a program.

    `library` is None where neither file holds `library_key`. `missing` are the keys of weights
    that the data file lacks; it is only looked at when a data file was given.
    """

    method: str
    index: int
    format: str
    library_key: str
    library: bytes | None = dataclasses.field(repr=False)
    weights: tuple[Weight, ...]
    missing: tuple[str, ...]
    compile_specs: Mapping[str, bytes]
    data: Mapping[str, memoryview] = dataclasses.field(repr=False, compare=False)

    def weight_bytes(self, weight: Weight) -> memoryview:
        """The stored bytes of `weight`; KeyError where the data file lacks them."""
        return self.data[weight.key]


def read_program(
    pte: str | os.PathLike[str], ptd: str | os.PathLike[str] | Sequence[str] | None = None
) -> tuple[Delegate, ...]:
    """Read every CUDA delegate of the program `pte`, with its data file or files `ptd`.

    Raises PayloadError where a file cannot be read or is not what it should be.
    """
    try:
        file = read_program_file(Path(pte))
        data = dict(file.named_data)
        paths = (ptd,) if isinstance(ptd, (str, os.PathLike)) else tuple(ptd or ())
        for path in paths:
            data.update(read_data_file(Path(path)))
    except InputError as error:
        raise PayloadError(str(error)) from error
    delegates = []
    for plan in file.plans:
        for index, delegate in enumerate(d for d in plan.delegates if d.id == _BACKEND):
            specs = delegate.compile_specs
            method = specs.get("method_name", plan.name.encode()).decode()
            kind, key, weights = parse_payload(delegate.processed, method)
            delegates.append(
                Delegate(
                    method=plan.name,
                    index=index,
                    format=kind,
                    library_key=key,
                    library=bytes(data[key]) if key in data else None,
                    weights=weights,
                    missing=tuple(w.key for w in weights if paths and w.key not in data),
                    compile_specs=specs,
                    data=data,
                )
            )
    return tuple(delegates)


def parse_payload(payload: bytes, method: str) -> tuple[str, str, tuple[Weight, ...]]:
    """The format, the library's key and the weights of one delegate's payload."""
    if not payload:
        return "method-name", f"{method}_so_blob" if method else "so_blob", ()
    if not payload.startswith(_MAGIC):
        lines = payload.decode("utf-8", "replace").splitlines()
        if 1 <= len(lines) <= 2 and lines[0].endswith("_so_blob"):
            return "content-key", lines[0], ()
        raise PayloadError(f"unknown CUDA payload, starting with {payload[:16]!r}")
    reader = _Reader(payload, len(_MAGIC) + 1)
    kind = payload[: len(_MAGIC) + 1].decode("ascii", "replace")
    if kind != "ETCUDAFQN3":
        raise PayloadError(f"unknown CUDA payload {kind!r}")
    try:
        key = reader.string()
        weights = tuple(reader.weight() for _ in range(reader.u32()))
    except (struct.error, UnicodeDecodeError) as error:
        raise PayloadError(f"damaged {kind} payload: {error}") from error
    return kind, key, weights


class _Reader:
    """Reads the little-endian records of an ETCUDAFQN3 payload in order."""

    def __init__(self, data: bytes, at: int) -> None:
        self.data = data
        self.at = at

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from("<" + layout, self.data, self.at)
        self.at += struct.calcsize("<" + layout)
        return values

    def u32(self) -> int:
        return int(self.take("I")[0])

    def string(self) -> str:
        (text,) = self.take(f"{self.u32()}s")
        return bytes(text).decode("utf-8")

    def weight(self) -> Weight:
        fqn, key = self.string(), self.string()
        nbytes, dtype, device, offset, rank = self.take("QiiqI")
        sizes, strides = self.take(f"{rank}q"), self.take(f"{rank}q")
        return Weight(fqn, key, nbytes, dtype, "cuda" if device else "cpu", offset, sizes, strides)
