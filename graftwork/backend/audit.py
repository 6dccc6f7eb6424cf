"""Would this program load on the runtime it is meant for?

A library lowered for ExecuTorch's CUDA delegate can compile without a word and still fail on
the device, because it calls a function that the runtime there does not export: integer scatter,
`scatter_reduce` with "amax", float64 at a boundary, and others. `audit_program` reads the
compiled libraries of any `.pte`, `audit_library` one library while it is being lowered, and
each says what it misses, naming the symbol, the op it came from and, where it knows the graph,
the source line and the plugin that would provide it.

Checked: every `aoti_torch_*` symbol against the table of the runtime release, every other
undefined symbol, every needed library, every embedded kernel's architecture, and whether the
files hold what the payload names, in a format that the release reads.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from graftwork.backend import payload as _payload
from graftwork.backend.elf import DeviceCode, ElfError, device_code, read_elf
from graftwork.backend.runtime_exports import Release, installed_release, release
from graftwork.plugins import LoweringContext, installed_plugins

__all__ = [
    "AuditReport",
    "Finding",
    "LibraryAudit",
    "Origin",
    "audit_library",
    "audit_program",
    "op_of_symbol",
]

# What a Linux machine with an NVIDIA driver has. cudart is not among them: the delegate's
# runtime links it, so its functions are there when the library is loaded.
_EXPECTED_LIBRARIES = re.compile(
    r"(libcuda|libstdc\+\+|libgcc_s|libc|libm|libdl|librt|libpthread|ld-linux-[\w-]+)\.so(\.\d+)*"
)
_DRIVER = re.compile(r"cu[A-Z]\w*")
_CUDART = re.compile(r"(cuda[A-Z]|__cuda)\w*")
_SHIM = re.compile(r"aoti_torch_(?:(?:cuda|cpu|mps|xpu)_)?(\w+)")

# Functions that no single op stands for: what a program does to need them.
_NOT_AN_OP = {
    "proxy_executor_call_function": "a custom op without a kernel of its own",
    "call_dispatcher": "a custom op without a kernel of its own",
    "dtype_float64": "a float64 tensor at the boundary of a kernel",
    "dtype_complex64": "a complex tensor",
    "dtype_complex128": "a complex tensor",
    "dtype_uint16": "a uint16 tensor at the boundary of a kernel",
    "dtype_uint32": "a uint32 tensor at the boundary of a kernel",
    "dtype_uint64": "a uint64 tensor at the boundary of a kernel",
    "scalar_to_tensor": "a host number turned into a tensor",
}


@dataclasses.dataclass(frozen=True)
class Origin:
    """Where an op of a compiled program came from: its source lines and who would provide it."""

    sources: tuple[str, ...] = ()
    plugin: str | None = None


@dataclasses.dataclass(frozen=True)
class Finding:
    """One reason why a library does not load or run.

    `kind` is "symbol", "library", "architecture" or "payload"; `name` the symbol, library,
    kernel or key in question; `op` the overload it came from ("aten.scatter.src_out"), if any.
    """

    kind: str
    name: str
    message: str
    op: str | None = None
    sources: tuple[str, ...] = ()
    plugin: str | None = None

    def __str__(self) -> str:
        """The message, then the op's source lines and the plugin, each on its own line."""
        lines = [self.message]
        lines += [f"    at {source}" for source in self.sources]
        if self.plugin is not None:
            lines.append(f"    plugin {self.plugin} provides it")
        return "\n".join(lines)


@dataclasses.dataclass(frozen=True)
class LibraryAudit:
    """What one compiled library needs and holds, and what is wrong with that."""

    method: str
    size: int
    symbols: tuple[str, ...]
    needed: tuple[str, ...]
    kernels: tuple[DeviceCode, ...]
    findings: tuple[Finding, ...]

    @property
    def archs(self) -> tuple[str, ...]:
        """The architectures that every kernel of the library holds code for."""
        per_kernel: dict[str | None, set[str]] = {}
        for index, code in enumerate(self.kernels):
            key = code.kernel if code.kernel is not None else f"#{index}"
            per_kernel.setdefault(key, set()).add(code.arch)
        if not per_kernel:
            return ()
        return tuple(sorted(set.intersection(*per_kernel.values())))


@dataclasses.dataclass(frozen=True)
class AuditReport:
    """The audit of one program against one runtime release."""

    path: str
    release: str
    libraries: tuple[LibraryAudit, ...]
    findings: tuple[Finding, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def to_dict(self) -> dict[str, Any]:
        """The report as plain lists and dicts, ready for JSON."""
        return {
            "path": self.path,
            "release": self.release,
            "ok": self.ok,
            "libraries": [
                {
                    "method": library.method,
                    "size": library.size,
                    "symbols": list(library.symbols),
                    "needed": list(library.needed),
                    "archs": list(library.archs),
                    "kernels": [dataclasses.asdict(code) for code in library.kernels],
                }
                for library in self.libraries
            ],
            "findings": [dataclasses.asdict(finding) for finding in self.findings],
        }


def audit_program(
    pte: str | os.PathLike[str],
    ptd: str | os.PathLike[str] | Sequence[str] | None = None,
    *,
    runtime: str | None = None,
    archs: Iterable[str] = (),
    extra_symbols: Iterable[str] = (),
) -> AuditReport:
    """Audit every CUDA delegate of the program `pte`, whoever wrote it.

    `runtime` names the ExecuTorch release it is to run on (default: the installed one),
    `archs` the GPUs that must be able to run it, `extra_symbols` functions that this runtime
    exports beyond the stock ones. Raises PayloadError or OSError where the file cannot be read.
    """
    target = installed_release() if runtime is None else release(runtime)
    archs = tuple(archs)
    extra = frozenset(extra_symbols)
    libraries: list[LibraryAudit] = []
    findings: list[Finding] = []
    for delegate in _payload.read_program(pte, ptd):
        findings += _payload_findings(delegate, target, asked_for_data=ptd is not None)
        if delegate.library is None:
            continue
        audit = audit_library(
            delegate.library,
            runtime=target.name,
            archs=archs,
            extra_symbols=extra,
            method=delegate.method,
        )
        libraries.append(audit)
        findings += audit.findings
    return AuditReport(os.fspath(pte), target.name, tuple(libraries), tuple(findings))


def audit_library(
    library: bytes,
    *,
    runtime: str | None = None,
    archs: Iterable[str] = (),
    extra_symbols: Iterable[str] = (),
    origins: Mapping[str, Origin] | None = None,
    method: str = "forward",
) -> LibraryAudit:
    """Audit one compiled library (its bytes) against a runtime release.

    `origins` says, by op name without overload ("aten.scatter_reduce"), where the graph's ops
    came from; findings quote it.
    """
    target = installed_release() if runtime is None else release(runtime)
    provided = target.symbols | frozenset(extra_symbols)
    try:
        elf = read_elf(library)
    except ElfError as error:
        broken = Finding("library", method, f"method {method}: {error}")
        return LibraryAudit(method, len(library), (), (), (), (broken,))
    findings: list[Finding] = []
    for name in sorted(elf.undefined - elf.weak - elf.versioned):
        if name in provided or _CUDART.fullmatch(name):
            continue
        if _DRIVER.fullmatch(name):
            if not any(needed.startswith("libcuda.so") for needed in elf.needed):
                findings.append(
                    Finding("library", name, f"{name} needs libcuda.so.1, which is not linked")
                )
            continue
        findings.append(_symbol_finding(name, target, origins or {}, method))
    for name in elf.needed:
        if not _EXPECTED_LIBRARIES.fullmatch(name):
            findings.append(
                Finding(
                    "library",
                    name,
                    f"method {method} needs {name}, which a machine without torch does not have",
                    plugin="link-as-needed" if name.startswith(("libgomp", "libomp")) else None,
                )
            )
    kernels = device_code(library)
    findings += _architecture_findings(kernels, tuple(archs))
    symbols = tuple(sorted(name for name in elf.undefined if name.startswith("aoti_torch_")))
    return LibraryAudit(method, len(library), symbols, elf.needed, kernels, tuple(findings))


def op_of_symbol(symbol: str) -> str | None:
    """The op that a shim function stands for: "aten.scatter.src_out"; None where none does.

    Inductor builds the function's name from the overload's, `aoti_torch_DEVICE_NAME_OVERLOAD`.
    """
    match = _SHIM.fullmatch(symbol)
    if match is None:
        return None
    base = match.group(1)
    if base.startswith("item_"):
        return "aten._local_scalar_dense.default"
    if base in _NOT_AN_OP or base.startswith(("dtype_", "device_type_", "get_", "create_")):
        return None
    known = _fallback_ops()
    for name in (base, base.removesuffix("_out")):
        if name in known:
            return known[name]
    return f"aten.{base.removesuffix('_out')}"


@functools.cache
def _fallback_ops() -> dict[str, str]:
    from torchgen.aoti.fallback_ops import (  # type: ignore[import-untyped]  # no stubs
        inductor_fallback_ops,
    )

    table: dict[str, str] = {}
    for full in inductor_fallback_ops:
        _namespace, name, overload = full.split(".")
        table[name if overload == "default" else f"{name}_{overload}"] = full
    return table


def _symbol_finding(
    name: str, target: Release, origins: Mapping[str, Origin], method: str
) -> Finding:
    match = _SHIM.fullmatch(name)
    if match is None:
        return Finding(
            "symbol", name, f"method {method} calls {name}, which nothing it is linked to provides"
        )
    op = op_of_symbol(name)
    origin = origins.get(".".join(op.split(".")[:2]), Origin()) if op is not None else Origin()
    cause = f" for {op}" if op is not None else ""
    if match.group(1) in _NOT_AN_OP:
        cause = f" for {_NOT_AN_OP[match.group(1)]}"
    return Finding(
        "symbol",
        name,
        f"method {method} calls {name}{cause}, which the ExecuTorch {target.name} runtime does "
        "not export: the program would lower, and fail to load",
        op=op,
        sources=origin.sources,
        plugin=origin.plugin or (_providers().get(".".join(op.split(".")[:2])) if op else None),
    )


@functools.cache
def _providers() -> dict[str, str]:
    """The installed plugin that handles each operator, by its name without overload."""
    from graftwork.backend.unlowered import handled_operators

    found: dict[str, str] = {}
    context = LoweringContext(target="cuda", device="cuda")
    for plugin in installed_plugins():
        if not plugin.broken:
            for op in handled_operators(plugin, context):
                found.setdefault(str(op._schema.name).replace("::", "."), plugin.id)
    return found


def _architecture_findings(
    kernels: tuple[DeviceCode, ...], archs: tuple[str, ...]
) -> list[Finding]:
    findings = []
    by_kernel: dict[str, list[DeviceCode]] = {}
    for index, code in enumerate(kernels):
        by_kernel.setdefault(code.kernel or f"kernel {index}", []).append(code)
    for arch in archs:
        # Libraries that keep no kernel names hold one image a kernel and a GPU: any will do.
        if kernels and all(code.kernel is None for code in kernels):
            groups = {"every kernel": list(kernels)}
        else:
            groups = by_kernel
        for kernel, codes in groups.items():
            if not any(code.runs_on(arch) for code in codes):
                have = ", ".join(code.arch for code in codes)
                findings.append(
                    Finding(
                        "architecture", kernel, f"{kernel} has no code for {arch}, only {have}"
                    )
                )
    return findings


def _payload_findings(
    delegate: _payload.Delegate, target: Release, asked_for_data: bool
) -> list[Finding]:
    findings = []
    if delegate.format != target.payload:
        findings.append(
            Finding(
                "payload",
                delegate.format,
                f"method {delegate.method} has a {delegate.format} payload; the ExecuTorch "
                f"{target.name} runtime reads {target.payload}",
            )
        )
    if delegate.library is None:
        hint = "" if asked_for_data else " (no data file was given)"
        findings.append(
            Finding(
                "payload",
                delegate.library_key,
                f"method {delegate.method}: no library {delegate.library_key}{hint}",
            )
        )
    for key in delegate.missing:
        findings.append(
            Finding("payload", key, f"method {delegate.method}: the data file lacks {key}")
        )
    return findings
