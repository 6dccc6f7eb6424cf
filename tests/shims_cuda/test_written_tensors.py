"""Inductor sees which tensors a kernel writes, so that a compiled program copies no input.

It follows what the address of each store is made of, through everything but loads: a helper that
is given a pointer and returns part of an address makes a tensor of everything it was given
written. What is written in truth is read off the interpreter.
"""

from contextlib import contextmanager
from types import SimpleNamespace

import pytest
import torch
import triton
from torch._higher_order_ops import triton_kernel_wrap as analysis
from triton.backends.compiler import GPUTarget
from triton.runtime.interpreter import InterpreterBuilder

from graftwork.plugins.toolkit import kernels
from graftwork.shims_cuda import unique
from graftwork.shims_cuda.attention.dense import dense_attention
from graftwork.shims_cuda.attention.packed import varlen_attention
from graftwork.shims_cuda.attention.tiles import Tiles
from graftwork.shims_cuda.index_put.operators import (
    mask_counts,
    mask_positions,
    mask_put,
    mask_values,
)
from graftwork.shims_cuda.resize.operator import antialiased_resize
from graftwork.shims_cuda.scatter import scatter_src, scatter_value
from graftwork.shims_cuda.scatter_reduce import scatter_reduce
from graftwork.shims_cuda.sort import rows
from graftwork.shims_cuda.stages import columns, grouping
from graftwork.shims_cuda.stages import mask as mask_stage
from graftwork.shims_cuda.stages import problem as problems
from graftwork.shims_cuda.stages.columns import fold_columns
from graftwork.shims_cuda.stages.fold import fold_groups
from graftwork.shims_cuda.stages.problem import three_dims
from graftwork.shims_cuda.stages.tiles import fold_tiles


@pytest.fixture
def launched(monkeypatch):
    """Of every form of a kernel: its name, what Inductor takes for written, and what is."""
    noted, addresses = {}, []

    def noting(method, pointer):
        def note(self, *args):
            mask = args[pointer + 2] if len(args) > pointer + 2 else None
            places = args[pointer].data
            at = places if mask is None else places[mask.data.astype(bool)]
            addresses.append((int(at.min()), int(at.max())) if at.size else (0, 0))
            return method(self, *args)

        return note

    for name, pointer in (("create_masked_store", 0), ("create_atomic_rmw", 1)):
        method = getattr(InterpreterBuilder, name)
        monkeypatch.setattr(InterpreterBuilder, name, noting(method, pointer))

    interpreted = kernels.interpreted

    @contextmanager
    def watched(kernel):
        with interpreted(kernel) as runnable:

            class Watched:
                def __getitem__(self, grid):
                    def run(*args, **options):
                        addresses.clear()
                        runnable[grid](*args, **options)
                        note(kernel, args, options)

                    return run

            yield Watched()

    def note(kernel, args, options):
        given = dict(zip(kernel.arg_names, args, strict=False)) | options
        given = {name: given[name] for name in kernel.arg_names}
        tensors = {n: v for n, v in given.items() if isinstance(v, torch.Tensor) and v.numel()}
        starts = {n: v.untyped_storage().data_ptr() for n, v in tensors.items()}
        ends = {n: starts[n] + v.untyped_storage().nbytes() for n, v in tensors.items()}
        written = {n for n in tensors for a, b in addresses if starts[n] <= a and b < ends[n]}
        # Two parameters that are one tensor are written together.
        same = {n: {other for other in tensors if starts[n] == starts[other]} for n in tensors}
        constants = {p.name: given[p.name] for p in kernel.params if p.is_constexpr}
        noted.setdefault((kernel, *constants.items()), (kernel, given, written, same))

    monkeypatch.setattr(kernels, "interpreted", watched)
    target = SimpleNamespace(get_current_target=lambda: GPUTarget("cuda", 90, 32))

    def finish():
        monkeypatch.setattr(triton.runtime.driver, "_active", target)
        for kernel, given, written, same in noted.values():
            taken = {other for n in taken_for_written(kernel, given) for other in same[n]}
            yield kernel.fn.__name__, taken, written

    return finish


def taken_for_written(kernel, given):
    if hasattr(analysis, "identify_accessed_tensors"):  # torch 2.13
        accesses = analysis.identify_accessed_tensors(kernel, given, {})
        return {write.name for write in accesses.read_writes.writes}
    return set(analysis.identify_mutated_tensors(kernel, given, {}))


def scatters():
    base, src = torch.zeros(3, 40), torch.ones(70, 40)
    index = torch.arange(2800).view(70, 40) % 3
    scatter_src(base, 0, index, src)
    scatter_src(base[:, :8], 0, index[:, :8], src[:, :8])
    scatter_src(base, 0, index[:, :1].expand(70, 40), src)
    scatter_value(base, 0, index, src[0, 0])
    scatter_src(torch.zeros(70, 40), 0, index[:3], src)
    named = {"mark_last", "mark_last_by_strips", "pick_elements", "pick_rows", "store_value"}
    return named | {"write_last_of_few"}


def sums():
    index, src = torch.arange(180).view(36, 5) % 3, torch.ones(36, 5)
    base = torch.zeros(3, 5)
    elements = three_dims(base, 0, index, src)
    scatter_reduce(base, 0, index, src, "sum", True, False)
    fold_columns(elements, "mean", True)
    fold_columns(elements, "prod", False)
    fold_columns(elements, "prod", True)
    fold_tiles(elements, "sum", True)
    for few in (0, 16):
        grouping.MERGED = few
        fold_groups(three_dims(base, 0, index[:, :1].expand(36, 5), src), "mean", True)
    return {
        *("add_all", "add_in_order", "count_digits", "count_names", "fill_cells", "fold_cells"),
        "fill_from_base",
        *("fold_pieces", "fold_rows", "fold_stretches", "join_tiles", "merge_tiles"),
        *("move_by_digit", "scan_blocks", "sort_tiles"),
    }


def extremes():
    base, src = torch.zeros(3, 40), torch.ones(70, 40)
    index = torch.arange(2800).view(70, 40) % 3
    scatter_reduce(base, 0, index, src, "amax", True, True)
    scatter_reduce(base[:, :8], 0, index[:, :8], src[:, :8], "amin", False, True)
    return {"count_names", "raise_keys", "raise_keys_by_strips", "settle_keys"}


def masks():
    x, mask = torch.zeros(4, 8), torch.ones(4, 8, dtype=torch.bool)
    counts, _ = mask_counts(mask)
    mask_values(x, mask, counts, 32)
    mask_positions(mask, counts, 32)
    mask_put(x, mask, 0, torch.ones(32))
    moved = {"pick_elements", "write_coordinates", "write_kept", "write_ranks"}
    return {"count_kept"} | moved


def sorts():
    rows.sort_rows(torch.arange(60.0).view(2, 30), False)
    rows.topk_rows(torch.arange(300.0).view(1, 300), 1, True)
    rows.radix_rows(torch.arange(60, dtype=torch.int8).view(1, 60), True)
    return {"sort_block", "best_of_groups", "count_digits", "scan_chunks", "place_tiles"}


def uniques():
    x = torch.arange(40) // 3
    unique._unique(x, True, True, True)
    unique._unique_consecutive(x, True, True)
    return {"count_kept", "sort_block", "write_kept", "write_runs"}


def attention():
    query, cu = torch.randn(4, 1, 16), torch.tensor([0, 4], dtype=torch.int32)
    tiles = Tiles(16, 16, 4, 1, chunk=16).numbers()
    for split in (False, True):
        varlen_attention(
            *(query, query, query, cu, cu, None, None),
            *(4, [-1, -1], 0.25, True, "ieee", split, tiles),
        )
    four = query[None].transpose(1, 2)
    dense_attention(four, four, four, None, False, 0.25, "ieee", False, True, tiles)
    return {"plan_kernel", "forward_kernel", "split_kernel", "merge_kernel"}


def resize():
    for dtype in (torch.float32, torch.uint8):
        x = (torch.rand(1, 2, 9, 8) * 255).to(dtype)
        for height in (4, 5):
            antialiased_resize(x, [height, 5], [6, 5], [0.0, 0.0], False, False, False)
    return {"shrink_kernel", "windows_kernel", "resize_kernel", "fix_kernel", "bytes_kernel"}


FAMILIES = (scatters, sums, extremes, masks, sorts, uniques, attention, resize)


@pytest.mark.parametrize("family", FAMILIES)
def test_inductor_takes_no_input_for_written(family, launched, monkeypatch):
    monkeypatch.setattr(problems, "ENOUGH", 1)
    monkeypatch.setattr(columns, "FEW_ROWS", 2)
    monkeypatch.setattr(columns, "AHEAD", 2)
    monkeypatch.setattr(columns, "TOGETHER", 2)
    monkeypatch.setattr(grouping, "MERGED", grouping.MERGED)  # restored after `sums`
    monkeypatch.setattr(rows, "BLOCK_ROW", 64)
    monkeypatch.setattr(mask_stage, "TILE", 16)
    kernels_of_family = family()
    seen = set()
    for name, taken, written in launched():
        assert taken == written, name
        seen.add(name)
    assert seen == kernels_of_family
