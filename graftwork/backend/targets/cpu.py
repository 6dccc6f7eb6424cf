"""`cpu`: ExecuTorch with XNNPACK and the portable kernels, one .pte file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import fx

from graftwork.backend import executorch_api
from graftwork.backend.constants import fold_constants
from graftwork.backend.manifest import ENTRY_NAME
from graftwork.backend.request import BuildRequest
from graftwork.backend.unlowered import UnloweredReport
from graftwork.plugins.errors import InputError
from graftwork.plugins.toolkit.graphs import sub_graphs


class CpuTarget:
    """The embedded default: lowers, runs and compares on any machine."""

    name = "cpu"
    suffix = ".pte"

    def device(self, settings: Mapping[str, Any]) -> str:
        """Always the CPU."""
        return "cpu"

    def check(self, archs: Sequence[str], settings: Mapping[str, Any], methods: int) -> None:
        """Refuse options that only mean something elsewhere."""
        refuse_settings(self.name, archs, settings)

    def build(self, request: BuildRequest) -> list[Path]:
        """Fold constants, lower to edge, audit what is left outside XNNPACK, write the .pte."""
        with request.compile_patches():
            edge = executorch_api.lower_to_xnnpack(
                {name: fold_constants(program) for name, program in request.programs.items()}
            )
        report = UnloweredReport(request.selection, request.context)
        for method in sorted(request.programs):
            graph_module = edge.exported_program(method).graph_module
            for _, module in sub_graphs(graph_module):
                _audit(module, report)
        report.raise_if_any()
        path = request.directory / f"{request.name}{self.suffix}"
        path.write_bytes(
            executorch_api.serialize(edge, {ENTRY_NAME: request.manifest.encode("utf-8")})
        )
        return [path]

    def why_not_runnable(self) -> str:
        """It runs wherever executorch's Python runtime does."""
        return ""


def refuse_settings(target: str, archs: Sequence[str], settings: Mapping[str, Any]) -> None:
    """Refuse architectures and settings a target would otherwise silently ignore."""
    given = [*(["arch"] if archs else []), *(key for key, value in settings.items() if value)]
    if given:
        raise InputError(f"target {target} takes no {', '.join(given)}; it is for target cuda")


def _audit(module: fx.GraphModule, report: UnloweredReport) -> None:
    """Note every operator left outside the delegates that the portable runtime lacks."""
    kernels = executorch_api.portable_kernels()
    for node in module.graph.nodes:
        name = executorch_api.out_variant_name(node.target)
        if name is None:
            continue
        if not name:
            report.add(str(node.target._op._schema.name), "it has no out variant", [node])
        elif name not in kernels:
            report.add(name, "the portable kernels do not include it", [node])
