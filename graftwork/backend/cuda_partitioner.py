"""A drop-in for ExecuTorch's `CudaPartitioner`, with the enabled plugins composed in.

    - from executorch.backends.cuda.cuda_partitioner import CudaPartitioner
    + from graftwork.backend.cuda_partitioner import CudaPartitioner

and `to_edge_transform_and_lower(exported, partitioner=[CudaPartitioner(specs)])` rewrites the
program with the plugins before it is decomposed, compiles it with their options and patches, and
audits the result. The delegate is `CudaBackend` as before, so stock runtimes load the program,
and every compile spec is passed on. With `arch="sm_90"` no GPU is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from executorch.backends.aoti.aoti_partitioner import AotiPartitioner
from executorch.backends.cuda.cuda_partitioner import CudaPartitioner as StockPartitioner
from torch.export import ExportedProgram

from graftwork.backend.cuda_compose import install
from graftwork.backend.cuda_options import CudaOptions
from graftwork.backend.outputs import make_outputs_contiguous
from graftwork.plugins import LoweringContext, rewrite_program, select_plugins
from graftwork.plugins.errors import InputError

__all__ = ["CudaPartitioner"]


class CudaPartitioner(AotiPartitioner):  # type: ignore[misc]  # executorch is untyped
    """Partitions for the CUDA delegate as the stock partitioner does, composed with plugins.

    Args:
        compile_spec: ExecuTorch's compile specs, among them the method's name.
        enable, disable, options: the plugin set, as `graftwork.plugins.select_plugins` takes it.
        settings: what else the lowering is asked for; its `plugins` are replaced.
        rewrite: False for a program that was rewritten before.

    Raises:
        GraftworkError: an unknown plugin, a bad option.
    """

    def __init__(
        self,
        compile_spec: Sequence[Any],
        *,
        enable: Sequence[str] = (),
        disable: Sequence[str] = (),
        options: Mapping[str, Mapping[str, Any]] | None = None,
        settings: CudaOptions | None = None,
        rewrite: bool = True,
    ) -> None:
        install()
        self.selection = select_plugins(enable, disable, options)
        plugins = tuple(choice.text for choice in self.selection.enabled)
        self.settings = dataclasses.replace(settings or CudaOptions(), plugins=plugins)
        # The stock constructor adds the device that the outputs live on.
        stock = StockPartitioner([*compile_spec, self.settings.to_spec()])
        super().__init__(stock.delegation_spec.backend_id, stock.delegation_spec.compile_specs)
        self._rewrite = rewrite
        self._rewritten = False

    def transform_for_pre_decomposition(self, exported_program: ExportedProgram) -> Any:
        """Rewrite the program; ExecuTorch calls this before it decomposes."""
        if not self._rewrite:
            return exported_program
        self._rewritten = True
        context: LoweringContext = self.settings.context()
        program = rewrite_program(exported_program, self.selection, context)[0]
        make_outputs_contiguous(program)
        return program

    def partition(self, exported_program: ExportedProgram) -> Any:
        """Tag what the delegate takes.

        Raises:
            InputError: the program came by a road on which it was not rewritten.
        """
        if self._rewrite and not self._rewritten:
            raise InputError(
                "the enabled plugins were not applied: lower with to_edge_transform_and_lower, or "
                "rewrite the exported program first and pass rewrite=False"
            )
        return super().partition(exported_program)
