"""Shapes, strides and tile sizes of one attention call: from tensors to kernel launches."""

from __future__ import annotations

import dataclasses

import torch

from graftwork.plugins.toolkit.kernels import cdiv, launch

from . import kernels

Int = int | torch.SymInt
LOG2_E = 1.4426950408889634


@dataclasses.dataclass(frozen=True)
class Tiles:
    """Tile sizes of the forward kernel and how many warps and stages it gets."""

    rows: int
    keys: int
    warps: int
    stages: int
    sweep: int = 1


def varlen_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, cu_q: torch.Tensor,
    cu_k: torch.Tensor | None, max_k: Int, left: int, right: int, scale: float,
    used: torch.Tensor | None, table: torch.Tensor | None, tiles: Tiles,
    precision: str = "ieee", flash2: bool = True,
) -> tuple[torch.Tensor, torch.Tensor]:  # fmt: skip
    tokens, heads, size = query.shape
    size_v = value.shape[-1]
    paged = table is not None
    kv_heads = key.shape[-2]
    sequences = cu_q.shape[0] - 1
    out = query.new_empty(tokens, heads, size_v)
    lse = query.new_empty(heads, tokens, dtype=torch.float32)
    count = tokens // tiles.rows + sequences + 2
    plan = torch.empty(sequences + 3 + count, dtype=torch.int32, device=query.device)
    launch(
        kernels.plan_kernel, (cdiv(sequences + 2, 32),), cu_q, plan, sequences, tokens,
        BLOCK_M=tiles.rows, SLOTS=32, WIDE=32, num_warps=4,
    )  # fmt: skip
    page = key.shape[1] if paged else 0
    has_left, has_right = bounded(left, right)
    launch(
        kernels.forward_kernel, (count * heads,),
        query, key, value, out, lse, query, plan, cu_q, cu_q if cu_k is None else cu_k,
        cu_q if used is None else used, cu_q if table is None else table,
        abs(scale) * LOG2_E, heads, heads // kv_heads, sequences, tokens,
        table.shape[1] * page if table is not None else key.shape[0], left, right, max_k,
        0, query.stride(0), query.stride(1),
        key.stride(0), key.stride(-3), key.stride(-2),
        value.stride(0), value.stride(-3), value.stride(-2),
        0, out.stride(0), out.stride(1), 0, 0, 0, 0,
        table.stride(0) if table is not None else 0, lse.stride(0),
        D=size, DV=size_v, BLOCK_D=block(size), BLOCK_DV=block(size_v),
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SWEEP=tiles.sweep, VARLEN=True,
        LEFT=has_left, RIGHT=has_right, FLASH2=(flash2 and has_left and right != 0) or (right > 0 and flash2),
        USED=used is not None, PAGE=page, MASK=0, MASK_ROWS=False, LSE=True,
        NEGATE=scale < 0, PRECISION=precision,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out, lse


def bounded(left: int, right: int) -> tuple[bool, bool]:
    """Which sides of a window the kernel has to look at."""
    if left < 0 and right < 0:
        return False, False
    if right == 0:
        return left >= 0, True
    return True, True


def block(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())


def dense_forward(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None,
    causal: bool, scale: float, tiles: Tiles, precision: str = "ieee",
) -> torch.Tensor:  # fmt: skip
    batch, heads, rows, size = query.shape
    kv_heads, keys, size_v = key.shape[1], key.shape[2], value.shape[-1]
    out = query.new_empty(batch, heads, rows, size_v)
    m = query if mask is None else mask.expand(batch, heads, rows, keys)
    kind = 0 if mask is None else 1 if mask.dtype == torch.bool else 2
    strides = m.stride() if mask is not None else (0, 0, 0, 0)
    launch(
        kernels.forward_kernel, (batch * heads * cdiv(rows, tiles.rows),),
        query, key, value, out, out, m, query, query, query, query, query,
        abs(scale) * LOG2_E, heads, heads // kv_heads, 0, rows, keys, -1, 0, 0,
        query.stride(0), query.stride(2), query.stride(1),
        key.stride(0), key.stride(2), key.stride(1),
        value.stride(0), value.stride(2), value.stride(1),
        out.stride(0), out.stride(2), out.stride(1), *strides, 0, 0,
        D=size, DV=size_v, BLOCK_D=block(size), BLOCK_DV=block(size_v),
        BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SWEEP=tiles.sweep, VARLEN=False,
        LEFT=False, RIGHT=causal, FLASH2=False, USED=False, PAGE=0, MASK=kind,
        MASK_ROWS=kind != 0 and mask.shape[-2] != 1, LSE=False, NEGATE=scale < 0,
        PRECISION=precision, num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip
    return out
