"""Which kernels sort the rows of a contiguous ``[rows, n]`` tensor, and their launches."""

from __future__ import annotations

import torch

from graftwork.plugins.toolkit import kernels
from graftwork.plugins.toolkit.kernels import Int, at_least_one, cdiv, launch
from graftwork.plugins.torch_private import upper_bound
from graftwork.shims_cuda.sort.block_kernels import best_of_groups, sort_block
from graftwork.shims_cuda.sort.radix_kernels import count_digits, place_tiles, scan_chunks
from graftwork.shims_cuda.sort.warp_ranks import WARPS

LONGEST_ROW = 2**30
BLOCK_ROW = 8192  # the longest row that one program sorts
GROUPS = (64, 32, 16, 8)  # how many elements may stand behind one candidate of a top-k
DIGIT = 8
COUNT_WARPS = 4
SCAN = 1024  # how many counts a program adds up at a time
CHUNKS = 512  # about how many chunks the rows are cut into, if they are long enough


def sort_rows(x: torch.Tensor, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 columns of each row of ``x`` [rows, n] in stable order."""
    n = x.shape[1]
    if fits(n, longest_block(x)):
        return block_rows(x, n, descending)
    return radix_rows(x, descending)


def topk_rows(x: torch.Tensor, k: Int, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``k`` values of each row and their int64 columns, equal values by column."""
    longest = longest_block(x)
    if fits(x.shape[1], longest):
        return block_rows(x, k, largest)
    group = next((size for size in GROUPS if fits(k, longest // size)), None)
    if group is None:
        values, indices = radix_rows(x, largest)
        return values.narrow(1, 0, k).contiguous(), indices.narrow(1, 0, k).contiguous()
    bound = upper_bound(x.shape[1])
    best = best_groups(x, k, largest, group, LONGEST_ROW if bound is None else bound)
    return block_rows(x, k, largest, best, group)


def longest_block(x: torch.Tensor) -> int:
    """The longest row that one program sorts; short where the interpreter runs it."""
    return min(BLOCK_ROW, 256) if kernels.is_interpreted(x) else BLOCK_ROW


def tile_shape(x: torch.Tensor) -> tuple[int, int]:
    """A radix tile's elements a thread and warps, as powers of two.

    In small tiles few elements go to neighbouring places, which costs long rows more than a
    smaller network saves.
    """
    if kernels.is_interpreted(x):
        return 4, 0
    if takes_ptx(x.device):
        return 3, 3
    return (4, 1) if fits(x.shape[1], 2**21) else (4, 2)


def fits(size: Int, limit: int) -> bool:
    """Whether ``size``, which may be symbolic, is known never to exceed ``limit``."""
    bound = upper_bound(size)
    return bound is not None and bound <= limit


def best_groups(x: torch.Tensor, k: Int, largest: bool, group: int, bound: int) -> torch.Tensor:
    """The ``k`` stretches of ``group`` elements that hold the first ``k`` of each row.

    Rows are not longer than ``bound``, which is known where their length is not.

    A stretch stands for its first element in the wanted order. Of two stretches, the one whose
    own first comes first comes first itself, ties by position; so an element outside the first
    k stretches comes after k others, namely the firsts of these.
    """
    rows, n = x.shape
    groups = cdiv(n, group)
    wide = x.dtype in (torch.int64, torch.float64)
    best = torch.empty((rows, groups), dtype=torch.int64 if wide else torch.int32, device=x.device)
    block = 4096
    blocks = cdiv(n, block)
    options = {"DESCENDING": largest, "GROUP": group, "BLOCK": block, "num_warps": 4}
    launch(best_of_groups, (rows * blocks,), x, best, n, blocks, groups, **options)
    bound = -(-bound // group)
    if bound > longest_block(x):
        picked = best_groups(best, k, False, group, bound)
        return block_rows(best, k, False, picked, group, with_values=False)[1]
    return block_rows(best, k, False, with_values=False, bound=bound)[1]


def block_rows(
    x: torch.Tensor,
    k: Int,
    descending: bool,
    groups: torch.Tensor | None = None,
    group: int = 0,
    with_values: bool = True,
    bound: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``k`` of the candidates of each row, which one program holds (`sort_block`).

    There are not more candidates than ``bound``; by default, what is known of their number.
    """
    rows, n = x.shape
    bound = bound or upper_bound(k * group if groups is not None else n)
    assert bound is not None and bound <= BLOCK_ROW
    span = max(1, (bound - 1).bit_length())
    regs, warps = block_shape(span)
    rows_a_program = 2 ** (regs + warps + 5 - span)
    values = torch.empty((rows, k), dtype=x.dtype, device=x.device) if with_values else x
    index_type = torch.int64 if with_values else torch.int32
    indices = torch.empty((rows, k), dtype=index_type, device=x.device)
    launch(
        sort_block,
        (cdiv(rows, rows_a_program),),
        x,
        indices if groups is None else groups,
        values,
        indices,
        rows,
        n,
        k,
        DESCENDING=descending,
        GROUP=group,
        WITH_VALUES=with_values,
        FLOAT64=fits(n, 2**29) and (kernels.is_interpreted(x) or compares_float64_fast(x.device)),
        SPAN=span,
        REGS=regs,
        WARPS=warps,
        num_warps=2**warps,
    )
    return values, indices


def compares_float64_fast(device: torch.device) -> bool:
    """Whether a GPU has as many float64 as integer units, as NVIDIA's compute GPUs do."""
    if device.type != "cuda" or torch.version.hip or not torch.cuda.is_available():
        return False
    return torch.cuda.get_device_capability(device) in ((8, 0), (9, 0), (10, 0))


def takes_ptx(device: torch.device) -> bool:
    """Whether kernels for a device may hold PTX: those for NVIDIA's GPUs."""
    return device.type == "cuda" and torch.version.hip is None


def block_shape(span: int) -> tuple[int, int]:
    """How many elements a thread owns and how many warps a program has, as powers of two."""
    regs = min(max(span - 5, 3), 4 if span < 12 else 5)
    return regs, max(2 if span <= 10 else span - regs - 5, 1)


def radix_rows(x: torch.Tensor, descending: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 columns of each row in stable order, for rows of any length."""
    rows, n = x.shape
    tile_regs, tile_warps = tile_shape(x)
    tile = 2 ** (tile_regs + tile_warps + 5)
    ptx = takes_ptx(x.device) and not kernels.is_interpreted(x)
    tiles = at_least_one(cdiv(n, tile))
    if isinstance(rows, int):
        share = min(rows, CHUNKS)
    else:
        share = torch.sym_min(rows, CHUNKS)
    iters = at_least_one(share * tiles // CHUNKS)  # not more than there are tiles
    chunks = at_least_one(cdiv(tiles, iters))  # or Inductor takes the strides below for others

    def table(*shape: Int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.int32, device=x.device)

    some = at_least_one(rows)
    tile_offsets, chunk_counts = table(some, tiles, 256), table(some, chunks, 256)
    row_counts = table(some, 256)
    values = torch.empty_like(x)
    indices = torch.empty((rows, n), dtype=torch.int64, device=x.device)
    passes = 1 if x.dtype == torch.bool else x.dtype.itemsize
    spare = torch.empty_like(x) if passes > 1 else values
    columns = [table(rows, n), table(rows, n)] if passes > 1 else [indices, indices]

    digits_at_a_time = next(d for d in (64, 16, 4) if d == 4 or fits(chunks, SCAN // d))
    source, column = x, indices
    for turn in range(passes):
        last = turn == passes - 1
        target = values if (passes - turn) % 2 else spare
        to_column = indices if last else columns[turn % 2]
        sizes = (rows, n, tiles, chunks, iters, DIGIT * turn)
        launch(
            count_digits,
            (rows * chunks,),
            source,
            tile_offsets,
            chunk_counts,
            *sizes,
            DESCENDING=descending,
            TILE=tile,
            PTX=ptx,
            num_warps=WARPS if ptx else COUNT_WARPS,
        )
        launch(
            scan_chunks,
            (rows * (256 // digits_at_a_time),),
            chunk_counts,
            row_counts,
            chunks,
            DIGITS=digits_at_a_time,
            CHUNKS=SCAN // digits_at_a_time,
            num_warps=4,
        )
        launch(
            place_tiles,
            (rows * tiles,),
            source,
            column,
            tile_offsets,
            chunk_counts,
            row_counts,
            target,
            to_column,
            *sizes,
            DESCENDING=descending,
            FIRST=turn == 0,
            REGS=tile_regs,
            WARPS=tile_warps,
            PTX=ptx,
            num_warps=2**tile_warps,
        )
        source, column = target, to_column
    return values, indices
