"""`cuda`: ExecuTorch's CUDA delegate, one .pte and one .ptd for each architecture.

On a machine with a GPU and no architecture named it compiles for that GPU; with `archs` it
compiles for those, without needing one. Several give one artifact each, from one export.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from graftwork.backend.data_names import DEFAULT_DATA_NAME, check_data_name
from graftwork.backend.in_parallel import run_all
from graftwork.backend.manifest import ENTRY_NAME
from graftwork.backend.outputs import make_outputs_contiguous
from graftwork.backend.request import BuildRequest
from graftwork.backend.runtime_exports import release
from graftwork.plugins.errors import InputError, NotLowerableError

SETTINGS = ("data_name", "runtime", "extra_symbols", "ptx", "compile_specs")


class CudaTarget:
    """Composed, audited, with or without a GPU.

    Settings: `data_name` (the weights file's name without .ptd), `runtime` (the ExecuTorch
    release to run on), `extra_symbols` (functions it exports beyond the stock ones), `ptx`
    (embed PTX for newer GPUs), `compile_specs` (key -> value, passed to the delegate).
    """

    name = "cuda"
    suffix = ".pte"

    def device(self, settings: Mapping[str, Any]) -> str:
        """Always CUDA."""
        return "cuda"

    def check(self, archs: Sequence[str], settings: Mapping[str, Any], methods: int) -> None:
        """Refuse unknown settings, names and architectures before any work."""
        from graftwork.backend.deviceless import gpu

        unknown = sorted(key for key, value in settings.items() if value and key not in SETTINGS)
        if unknown:
            raise InputError(
                f"target cuda takes no {', '.join(unknown)}; it takes {', '.join(SETTINGS)}"
            )
        if settings.get("data_name"):
            check_data_name(str(settings["data_name"]))
        if settings.get("runtime"):
            release(str(settings["runtime"]))
        if len(set(archs)) != len(archs):
            raise InputError(f"an architecture is named twice: {', '.join(archs)}")
        for arch in archs:
            gpu(arch)
        if not archs and not torch.cuda.is_available():
            raise InputError("this machine has no GPU; name the one to compile for: --arch sm_90")
        if shutil.which("g++") is None:
            raise InputError("target cuda compiles C++: install g++")

    def build(self, request: BuildRequest) -> list[Path]:
        """Compile for each architecture, audit each library, then write the files."""
        for program in request.programs.values():
            make_outputs_contiguous(program)
        archs = request.context.archs or ("",)

        def build(arch: str) -> tuple[list[Path], dict[str, Any]]:
            return _build_one(request, arch, f"_{arch}" if len(archs) > 1 else "")

        files: list[Path] = []
        for arch, (written, record) in zip(archs, run_all(build, archs), strict=True):
            files += written
            request.record[arch or "this GPU"] = record
        return files

    def why_not_runnable(self) -> str:
        """It runs in an ExecuTorch runtime with the CUDA backend, on the GPU compiled for."""
        return (
            "a CUDA program runs in an ExecuTorch runtime built with its CUDA backend, on the GPU "
            "it was compiled for"
        )


def _build_one(request: BuildRequest, arch: str, suffix: str) -> tuple[list[Path], dict[str, Any]]:
    """The files for one architecture, and what there is to report."""
    from executorch.exir.backend.compile_spec_schema import CompileSpec

    from graftwork.backend import executorch_api
    from graftwork.backend.cuda_compose import collecting
    from graftwork.backend.cuda_options import CudaOptions, data_name_spec
    from graftwork.backend.cuda_partitioner import CudaPartitioner

    settings = request.settings
    data_name = str(settings.get("data_name") or DEFAULT_DATA_NAME) + suffix
    # The compiler's files, and weights until they are written, stay in the staging directory.
    workspace = request.directory / f"compile{suffix}"
    workspace.mkdir()
    options = CudaOptions(
        arch=arch,
        runtime=str(settings.get("runtime") or ""),
        extra_symbols=tuple(settings.get("extra_symbols") or ()),
        ptx=bool(settings.get("ptx")),
    )
    passed = [
        CompileSpec(key, value if isinstance(value, bytes) else str(value).encode())
        for key, value in dict(settings.get("compile_specs") or {}).items()
    ]
    partitioners = {
        method: [
            CudaPartitioner(
                [
                    CompileSpec("method_name", method.encode()),
                    data_name_spec(data_name),
                    *passed,
                ],
                disable=["all"],
                enable=[choice.text for choice in request.selection.enabled],
                settings=options,
                rewrite=False,
            )
        ]
        for method in request.programs
    }
    with collecting(workspace) as outcome:
        edge = executorch_api.lower_with(request.programs, partitioners)
    left = _operators_left(edge, request.programs)
    if left:
        raise NotLowerableError(
            f"the CUDA delegate left operators outside itself: {', '.join(left)}"
        )
    manifest = _manifest(request.manifest, arch, options.release, outcome)
    pte = request.directory / f"{request.name}{suffix}.pte"
    program = executorch_api.emit(edge, {ENTRY_NAME: manifest.encode("utf-8")})
    with pte.open("wb") as file:
        program.write_to_file(file)
    program.write_tensor_data_to_file(str(request.directory))
    shutil.rmtree(workspace)
    record = {
        "runtime": options.release,
        "libraries": [
            {
                "method": a.method,
                "archs": list(a.archs),
                "kernels": len(a.kernels),
                "bytes": a.size,
            }
            for a in outcome.audits
        ],
        "decisions": [decisions.to_dict() for decisions in outcome.decisions],
    }
    ptd = request.directory / f"{data_name}.ptd"
    return [pte, ptd] if ptd.exists() else [pte], record


def _operators_left(edge: Any, methods: Mapping[str, Any]) -> list[str]:
    """Names of operators that no delegate took; they would run on the CPU, in GPU memory."""
    from graftwork.backend import executorch_api

    names: set[str] = set()
    for method in methods:
        for node in edge.exported_program(method).graph_module.graph.nodes:
            name = executorch_api.out_variant_name(node.target)
            if name is not None:
                names.add(name or str(node.target))
    return sorted(names)


def _manifest(text: str, arch: str, runtime: str, outcome: Any) -> str:
    """The request's manifest, with what this artifact is for."""
    record = json.loads(text)
    found = {name for audit in outcome.audits for name in audit.archs}
    record["archs"] = [arch] if arch else sorted(found)
    record["runtime"] = {"executorch": runtime, "payload": release(runtime).payload}
    return json.dumps(record, sort_keys=True)
