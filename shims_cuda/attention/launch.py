"""From the tensors of one attention call to kernel launches: sizes, strides, tiles, scratch."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch

from graftwork.plugins.toolkit import kernels as launching
from graftwork.plugins.toolkit.kernels import cdiv, launch
from graftwork.plugins.toolkit.symbolic import Size, known

from . import forward_kernels, plan_kernels, split_kernels, stand_in_kernels
from .tiles import Tiles, block

LOG2_E = 1.4426950408889634
SLOTS = 32


@dataclasses.dataclass(frozen=True)
class Problem:
    """Attention of `batches` sequences, packed one after the other or as a dense batch.

    Strides count elements over last dimensions that are contiguous: (batch, token, head), for a
    mask (batch, head, query, key). Packed, where `cu_q` is given: `tokens_q` and `tokens_k` are
    the buffers' token counts; for paged keys (`table`) what one row of the page table can hold,
    and the batch stride is that of a page. Dense: they are lengths, and the window lines up with
    the sequences' beginnings.
    """

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    strides_q: Sequence[Size]
    strides_k: Sequence[Size]
    strides_v: Sequence[Size]
    batches: Size
    heads: int
    kv_heads: int
    tokens_q: Size
    tokens_k: Size
    scale: float
    left: int = -1
    right: int = -1
    max_k: Size = 0
    flash2: bool = False
    precision: str = "ieee"
    mask: torch.Tensor | None = None
    strides_m: Sequence[Size] = (0, 0, 0, 0)
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
    def rows(self) -> Size:
        """Query tokens in all."""
        return self.tokens_q if self.packed else self.tokens_q * self.batches

    def constants(self) -> dict[str, Any]:
        """The compile-time arguments that both kernels share.

        Keys and values are as wide as one layout of shared memory takes: Triton may keep them at
        the same place, one after the other, laid out by their width up to 64 elements. TF32
        products want values in rows of a tile's keys, so there keys are 32 wide or more. For two
        layouts of one address ptxas (12.8, of Triton 3.6 and 3.7) makes code that reads uniform
        registers which nothing has written.
        """
        size, size_v = self.query.shape[-1], self.value.shape[-1]
        least = min(64, max(block(size), block(size_v)))
        least = least if self.precision == "ieee" else max(least, 32)
        bounded = self.left >= 0 or self.right >= 0
        # (left, 0) reads the same with and without the rules of flash attention 2.
        flash2 = bounded and self.flash2 and self.right != 0
        return {
            "D": size,
            "DV": size_v,
            "BLOCK_D": max(block(size), least),
            "BLOCK_DV": max(block(size_v), least),
            "VARLEN": self.packed,
            "LEFT": flash2 or self.left >= 0,
            "RIGHT": flash2 or self.right >= 0,
            "FLASH2": flash2,
            "PAGE": self.key.shape[1] if self.table is not None else 0,
            "MASK": 0 if self.mask is None else 1 if self.mask.dtype == torch.bool else 2,
            "NEGATE": self.scale < 0,
            "PRECISION": self.precision,
        }

    def pointers(self, written: torch.Tensor) -> list[torch.Tensor]:
        """mask, cu_q, cu_k, used_k, table; a tensor that the kernel writes stands in for none.

        Inductor would copy one that is only read, if computed, for each pointer that it is.
        """
        optional = (self.mask, self.cu_q, self.cu_k, self.used, self.table)
        return [written if tensor is None else tensor for tensor in optional]

    def numbers(self) -> list[Any]:
        """scale, heads, group, batches, tokens_q, tokens_k, left, right, max_k."""
        counts = (self.heads, self.group, self.batches, self.tokens_q, self.tokens_k)
        return [abs(self.scale) * LOG2_E, *counts, self.left, self.right, self.max_k]

    def strides(self) -> list[Size]:
        """All strides of query, key and value."""
        return [*self.strides_q, *self.strides_k, *self.strides_v]

    @property
    def mask_rows(self) -> bool:
        """Whether the mask may differ from query to query."""
        return not known(self.strides_m[2] == 0)

    @property
    def stride_table(self) -> Size:
        """From one sequence's pages to the next one's."""
        return 0 if self.table is None else self.table.stride(0)


def _strides(problem: Problem, tiles: Tiles) -> dict[str, Size]:
    """What lies between two keys and two values, where the kernel is to be compiled for it."""
    strides = (problem.strides_k[1], problem.strides_v[1])
    found = [s if tiles.fixed and isinstance(s, int) else 0 for s in strides]
    return {"STRIDE_K": found[0], "STRIDE_V": found[1]}


def run_forward(
    problem: Problem,
    out: torch.Tensor,
    strides_o: Sequence[Size],
    lse: torch.Tensor | None,
    tiles: Tiles,
) -> None:
    """Fill `out` (strides batch, token, head) and `lse` (heads, tokens), one tile a program."""
    if launching.is_interpreted(problem.query):
        # The interpreter pays by the step, so a step does as much as for half types on a GPU;
        # it knows Triton alone.
        tiles = dataclasses.replace(tiles, rows=64, keys=64, programs=0)
    if tiles.programs:
        _run_hopper(problem, out, strides_o, lse, tiles)
        return
    mask, _, _, _, table = problem.pointers(out)
    plan = out
    count = cdiv(problem.tokens_q, tiles.rows) * problem.batches
    if problem.packed:
        count = _tiles_at_most(problem, tiles)
        plan = _plan(problem, out, tiles)
    programs = count * problem.heads
    again = out.new_empty(programs, dtype=torch.int32) if tiles.cut else out

    def run(tiles: Tiles, precision: str, repeat: bool) -> None:
        launch(
            forward_kernels.forward_kernel,
            (programs,),
            *(problem.query, problem.key, problem.value, out, out if lse is None else lse),
            *(mask, plan, table, again),
            *problem.numbers(),
            *problem.strides(),
            *strides_o,
            *problem.strides_m,
            *(problem.stride_table, 0 if lse is None else lse.stride(0)),
            **{**problem.constants(), "PRECISION": precision, "AGAIN": repeat},
            **_strides(problem, tiles),
            **{"BLOCK_M": tiles.rows, "BLOCK_N": tiles.keys, "SWEEP": tiles.sweep},
            **{"MASK_ROWS": problem.mask_rows, "LSE": lse is not None},
            num_warps=tiles.warps,
            num_stages=tiles.stages,
        )

    if tiles.cut:
        run(tiles, "bf16x6", False)
        run(dataclasses.replace(tiles, keys=16), problem.precision, True)
    else:
        run(tiles, problem.precision, False)


def _run_hopper(
    problem: Problem,
    out: torch.Tensor,
    strides_o: Sequence[Size],
    lse: torch.Tensor | None,
    tiles: Tiles,
) -> None:
    """`run_forward` with the kernel for Hopper GPUs: strides between tokens are known."""
    tokens = [problem.strides_q, problem.strides_k, problem.strides_v]
    launch(
        stand_in_kernels.hopper_stand_in,
        (tiles.programs,),
        *(problem.query, problem.key, problem.value, out, out if lse is None else lse),
        _plan(problem, out, tiles) if problem.packed else out.new_zeros(2, dtype=torch.int32),
        *problem.numbers()[:6],
        *(stride for strides in tokens for stride in (strides[0], strides[2])),
        *(*strides_o, 0 if lse is None else lse.stride(0)),
        **{"D": problem.query.shape[-1], "BLOCK_N": tiles.keys, "STAGES": tiles.stages},
        **{"SWEEP": tiles.sweep, "SHORT": bool(tiles.short)},
        **{"VARLEN": problem.packed, "CAUSAL": problem.right == 0, "LSE": lse is not None},
        **{f"STRIDE_{n}": strides[1] for n, strides in zip("QKV", tokens, strict=True)},
        num_warps=tiles.warps,
    )


def _tiles_at_most(problem: Problem, tiles: Tiles) -> Size:
    """Tiles of packed sequences: each of them, and what lies before the first and past the last,
    may end in a part of a tile. `plan_kernel` leaves out what goes past it."""
    return problem.tokens_q // tiles.rows + problem.batches + 2


def _plan(problem: Problem, out: torch.Tensor, tiles: Tiles) -> torch.Tensor:
    """The plan that deals out the tiles of packed sequences."""
    plan = out.new_empty(8 + 8 * _tiles_at_most(problem, tiles), dtype=torch.int32)
    _, cu_q, cu_k, used, _ = problem.pointers(plan)
    launch(
        plan_kernels.plan_kernel,
        (cdiv(problem.batches + 2, SLOTS),),
        *(cu_q, cu_k, used, plan, problem.batches, problem.tokens_q, problem.tokens_k),
        **{"BLOCK_M": tiles.rows, "SLOTS": SLOTS, "WIDE": 32},
        **{"USED": problem.used is not None, "PAGED": problem.table is not None},
        num_warps=4,
    )
    return plan


def run_split(
    problem: Problem,
    out: torch.Tensor,
    strides_o: Sequence[Size],
    lse: torch.Tensor | None,
    tiles: Tiles,
) -> None:
    """As `run_forward` where `tiles.rows` hold all queries of all heads that share a key head.

    The keys are worked on in chunks side by side; scratch is a float32 row and a log-sum for
    each (chunk, token, head).
    """
    longest = problem.max_k if problem.packed else problem.tokens_k
    chunks = cdiv(longest, tiles.chunk)
    size_v = problem.value.shape[-1]
    total = problem.rows * problem.heads
    part = out.new_empty(chunks, total, size_v, dtype=torch.float32)
    part_lse = out.new_empty(chunks, total, dtype=torch.float32)
    mask, cu_q, cu_k, used, table = problem.pointers(part)
    by_head = problem.group > 1 and not known(problem.strides_m[1] == 0)
    launch(
        split_kernels.split_kernel,
        (problem.batches * problem.kv_heads, chunks),
        *(problem.query, problem.key, problem.value, part, part_lse),
        *(mask, cu_q, cu_k, used, table),
        *problem.numbers(),
        *problem.strides(),
        *problem.strides_m,
        *(problem.stride_table, total),
        **problem.constants(),
        **_strides(problem, tiles),
        **{"BLOCK_M": tiles.rows, "BLOCK_N": tiles.keys, "CHUNK": tiles.chunk},
        **{"USED": problem.used is not None},
        **{"MASK_ROWS": problem.mask_rows or by_head},
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    launch(
        split_kernels.merge_kernel,
        (total,),
        *(part, part_lse, out, out if lse is None else lse, cu_q),
        *(chunks, problem.batches, problem.heads, problem.tokens_q, total),
        *strides_o,
        0 if lse is None else lse.stride(0),
        **{"DV": size_v, "BLOCK_DV": block(size_v), "CHUNKS": 16},
        **{"VARLEN": problem.packed, "LSE": lse is not None},
        num_warps=4,
    )
