"""Whether to pad an unaligned matrix product, estimated: torch would benchmark both on the GPU.

A row that does not start on 16 bytes is loaded element by element; padding it costs one copy of
each operand that is not padded already. The plain product and the padded one are both priced
with the cost model's best tile, the copies by memory bandwidth and a launch.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from graftwork.backend.deviceless.decisions import PadChoice
from graftwork.backend.deviceless.gemm_cost import GemmShape, Tile, estimate_us, fits
from graftwork.backend.deviceless.gpus import Gpu
from graftwork.backend.deviceless.session import Session
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private

__all__ = ["apply", "should_pad"]

_TILES = (
    Tile(32, 32, 32, 3, 4),
    Tile(64, 64, 32, 3, 4),
    Tile(128, 64, 32, 3, 4),
    Tile(128, 128, 32, 3, 8),
)


def apply(patches: Patches, session: Session) -> None:
    """Decide by estimate, and record it."""
    module = torch_private.inductor_pad_mm()

    def decide(match: Any, mat1: Any, mat2: Any, op: Any, input: Any = None) -> bool:
        hint = torch_private.size_hint
        m, k, n = hint(mat1.shape[-2]), hint(mat1.shape[-1]), hint(mat2.shape[-1])
        batch = hint(mat1.shape[0]) if mat1.dim() == 3 else 1
        multiple = module.get_alignment_size(mat1)
        if not module.is_mm_compute_bound(m, k, n, mat1.dtype):
            return False
        tf32 = mat1.dtype == torch.float32 and torch.backends.cuda.matmul.allow_tf32
        dtype = str(mat1.dtype).removeprefix("torch.")
        shape = GemmShape(m, n, k, batch, dtype, tf32)
        padded, plain_us, padded_us = should_pad(shape, multiple, session.gpu)
        session.decisions.pads.append(
            PadChoice(str(op), m, n, k, dtype, padded, round(plain_us, 2), round(padded_us, 2))
        )
        return padded

    patches.set(module, "_should_pad", decide)


def should_pad(shape: GemmShape, multiple: int, gpu: Gpu) -> tuple[bool, float, float]:
    """Whether padding to `multiple` elements pays, and the microseconds without and with it."""
    up = [(size + multiple - 1) // multiple * multiple for size in (shape.m, shape.n, shape.k)]
    if up == [shape.m, shape.n, shape.k]:
        return False, 0.0, 0.0
    aligned = shape.k % multiple == 0 and shape.n % multiple == 0
    plain = _best(dataclasses.replace(shape, aligned=aligned), gpu)
    padded = _best(dataclasses.replace(shape, m=up[0], n=up[1], k=up[2], aligned=True), gpu)
    copied = 0.0
    launches = 0
    if up[0] != shape.m or up[2] != shape.k:
        copied += shape.batch * (shape.m * shape.k + up[0] * up[2])
        launches += 1
    if up[1] != shape.n or up[2] != shape.k:
        copied += shape.batch * (shape.n * shape.k + up[1] * up[2])
        launches += 1
    padded += copied * shape.itemsize / (gpu.dram_gbs * 1e3) + 2.0 * launches
    # A margin, as torch asks for when it benchmarks.
    return padded * 1.1 < plain, plain, padded


def _best(shape: GemmShape, gpu: Gpu) -> float:
    return min(estimate_us(shape, tile, gpu) for tile in _TILES if fits(shape, tile, gpu))
