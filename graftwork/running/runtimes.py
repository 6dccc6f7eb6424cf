"""What the runtimes have in common: a method that runs on flat tensors."""

from __future__ import annotations

from dataclasses import dataclass

from graftwork.backend.signature import Signature

from .graphs import Run

__all__ = ["RunnableMethod"]


@dataclass(frozen=True)
class RunnableMethod:
    """One loaded method.

    Attributes:
        run: takes the tensors among the inputs and gives the flat outputs.
        device: `cpu` or `cuda`.
        signature: what it takes and gives, as far as the artifact says.
        no_graph: why it cannot run under a CUDA graph; empty where it may.
        keeps: what must live as long as the method, such as a folder of kernels.
    """

    run: Run
    device: str
    signature: Signature
    no_graph: str = ""
    keeps: object = None
