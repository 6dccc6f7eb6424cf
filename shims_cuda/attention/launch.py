"""From the tensors of one attention call to kernel launches: sizes, strides, tiles, scratch."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from graftwork.plugins.toolkit.kernels import cdiv, launch

from . import kernels

Int = int | torch.SymInt
LOG2_E = 1.4426950408889634
CHUNK = 1024


@dataclasses.dataclass(frozen=True)
class Tiles:
    """How the forward kernel is cut: query rows, keys, warps, stages, heads swept together."""

    rows: int
    keys: int
    warps: int
    stages: int
    sweep: int = 1


@dataclasses.dataclass(frozen=True)
class Problem:
    """Attention of `batches` sequences, packed one after the other or as a dense batch.

    Strides are (batch, token, head), for a mask (batch, head, query, key), in elements, over
    last dimensions that are contiguous. Packed: `tokens_q` and `tokens_k` are the buffers'
    token counts (for paged keys, what one row of the page table can hold), and the batch stride
    of paged keys is that of a page. Dense: they are lengths.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    strides_q: tuple[Int, Int, Int]
    strides_k: tuple[Int, Int, Int]
    strides_v: tuple[Int, Int, Int]
    batches: Int
    heads: int
    kv_heads: int
    tokens_q: Int
    tokens_k: Int
    scale: float
    left: int = -1
    right: int = -1
    max_k: Int = 0
    flash2: bool = False
    precision: str = "ieee"
    mask: torch.Tensor | None = None
    strides_m: tuple[Int, Int, Int, Int] = (0, 0, 0, 0)
    cu_q: torch.Tensor | None = None
    cu_k: torch.Tensor | None = None
    used: torch.Tensor | None = None
    table: torch.Tensor | None = None

    @property
    def packed(self) -> bool:
        """Whether the sequences lie one after the other."""
        return self.cu_q is not None

    @property
    def group(self) -> int:
        """Query heads that share a key head."""
        return self.heads // self.kv_heads

    @property
    def rows(self) -> Int:
        """Query tokens in all."""
        return self.tokens_q if self.packed else self.tokens_q * self.batches

    def constants(self) -> dict[str, Any]:
        """The kernels' compile-time arguments."""
        size, size_v = self.query.shape[-1], self.value.shape[-1]
        open_window = self.left < 0 and self.right < 0
        # (left, 0) reads the same with and without flash attention 2's rules.
        plain = self.right == 0 or not self.flash2
        return {
            "D": size,
            "DV": size_v,
            "BLOCK_D": _block(size),
            "BLOCK_DV": _block(size_v),
            "VARLEN": self.packed,
            "LEFT": not open_window and (self.left >= 0 or not plain),
            "RIGHT": not open_window and (self.right >= 0 or not plain),
            "FLASH2": not open_window and not plain,
            "USED": self.used is not None,
            "PAGE": self.key.shape[1] if self.table is not None else 0,
            "MASK": 0 if self.mask is None else 1 if self.mask.dtype == torch.bool else 2,
            "NEGATE": self.scale < 0,
            "PRECISION": self.precision,
        }

    def pointers(self) -> list[torch.Tensor]:
        """mask, cu_q, cu_k, used_k, table; the query where there is none."""
        optional = (self.mask, self.cu_q, self.cu_k, self.used, self.table)
        return [self.query if tensor is None else tensor for tensor in optional]

    def numbers(self) -> list[Any]:
        """scale, heads, group, sequences, tokens_q, tokens_k, left, right, max_k."""
        counts = (self.heads, self.group, self.batches, self.tokens_q, self.tokens_k)
        return [abs(self.scale) * LOG2_E, *counts, self.left, self.right, self.max_k]

    @property
    def stride_table(self) -> Int:
        """From one sequence's pages to the next one's."""
        return 0 if self.table is None else self.table.stride(0)


def run_forward(
    problem: Problem, out: torch.Tensor, strides_o: tuple[Int, Int, Int],
    lse: torch.Tensor | None, tiles: Tiles,
) -> None:  # fmt: skip
    """Fill `out`, and `lse` (heads, tokens) where given, one query tile a program."""
    mask, cu_q, cu_k, used, table = problem.pointers()
    constants = problem.constants()
    has_used, paged = constants.pop("USED"), problem.table is not None
    if problem.packed:
        # Each sequence, and what lies before the first and past the last, may end in a part of
        # a tile.
        count = problem.tokens_q // tiles.rows + problem.batches + 2
        plan = out.new_empty(8 + 8 * count, dtype=torch.int32)
        launch(
            kernels.plan_kernel, (cdiv(problem.batches + 2, 32),),
            cu_q, cu_k, used, plan, problem.batches, problem.tokens_q, problem.tokens_k,
            BLOCK_M=tiles.rows, SLOTS=32, WIDE=32, USED=has_used, PAGED=paged, num_warps=4,
        )  # fmt: skip
    else:
        count = cdiv(problem.tokens_q, tiles.rows) * problem.batches
        plan = problem.query
    scale, heads, group, _, *numbers = problem.numbers()
    launch(
        kernels.forward_kernel, (count * problem.heads,),
        problem.query, problem.key, problem.value, out, out if lse is None else lse,
        mask, plan, table, scale, heads, group, *numbers,
        *problem.strides_q, *problem.strides_k, *problem.strides_v, *strides_o,
        *problem.strides_m, problem.stride_table, 0 if lse is None else lse.stride(0),
        **constants, BLOCK_M=tiles.rows, BLOCK_N=tiles.keys, SWEEP=tiles.sweep,
        MASK_ROWS=problem.strides_m[2] != 0, LSE=lse is not None,
        num_warps=tiles.warps, num_stages=tiles.stages,
    )  # fmt: skip


def run_split(
    problem: Problem, out: torch.Tensor, strides_o: tuple[Int, Int, Int],
    lse: torch.Tensor | None, max_q: int, keys: int = 64, warps: int = 4, stages: int = 3,
    chunk: int = CHUNK,
) -> None:  # fmt: skip
    """As `run_forward` for at most `max_q` queries a sequence, the keys in chunks side by side.

    Scratch: a float32 row and a log-sum for each (chunk, token, head).
    """
    mask, cu_q, cu_k, used, table = problem.pointers()
    limit = problem.max_k if problem.packed else problem.tokens_k
    chunks = cdiv(limit, chunk)
    size_v = problem.value.shape[-1]
    total = problem.rows * problem.heads
    part = out.new_empty(chunks, total, size_v, dtype=torch.float32)
    part_lse = out.new_empty(chunks, total, dtype=torch.float32)
    by_head = problem.group > 1 and problem.strides_m[1] != 0
    launch(
        kernels.split_kernel, (chunks, problem.batches * problem.kv_heads),
        problem.query, problem.key, problem.value, part, part_lse,
        mask, cu_q, cu_k, used, table, *problem.numbers(),
        *problem.strides_q, *problem.strides_k, *problem.strides_v,
        *problem.strides_m, problem.stride_table, total,
        **problem.constants(), BLOCK_M=_block(problem.group * max_q), BLOCK_N=keys, CHUNK=chunk,
        MASK_ROWS=problem.strides_m[2] != 0 or by_head, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    launch(
        kernels.merge_kernel, (cdiv(total, 16),),
        part, part_lse, out, out if lse is None else lse, cu_q,
        chunks, problem.batches, problem.heads, problem.tokens_q, total,
        *strides_o, 0 if lse is None else lse.stride(0),
        DV=size_v, BLOCK_DV=_block(size_v), ROWS=16, VARLEN=problem.packed, LSE=lse is not None,
        num_warps=4,
    )  # fmt: skip


def _block(size: int) -> int:
    """The tile size for `size`: a power of two of at least 16."""
    return max(16, 1 << (size - 1).bit_length())
