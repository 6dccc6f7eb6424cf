"""The sort plugin: its properties, its long-row kernels, ties, refusals and reach."""

from __future__ import annotations

import pytest
import torch
import triton
from functorch.compile import aot_function
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from graftwork.plugins import Declined
from graftwork.plugins.checking import find_plugin
from graftwork.plugins.toolkit import kernels
from graftwork.plugins.torch_private import symbolic_expression
from graftwork.plugins.verification import verify_property
from graftwork.shims_cuda import sort as plugin
from graftwork.shims_cuda.sort import operators, radix_kernels, rows
from graftwork.shims_cuda.sort.promises import DTYPES, PROPERTIES, make

KINDS = ("distinct", "few")


def bits(x: torch.Tensor) -> torch.Tensor:
    width = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
    return x.contiguous().view(width[x.itemsize])


def assert_sorted_as_eager(
    got: tuple[torch.Tensor, torch.Tensor], x: torch.Tensor, descending: bool
) -> None:
    values, indices = torch.sort(x, dim=1, descending=descending, stable=True)
    count = got[0].shape[1]
    assert torch.equal(got[1], indices[:, :count])
    assert torch.equal(bits(got[0]), bits(values[:, :count]))


def test_the_plugin_is_listed() -> None:
    assert find_plugin("sort").implements("list_kernels")


@pytest.mark.parametrize("promise", PROPERTIES, ids=lambda promise: promise.name)
def test_promise(promise, examples: int) -> None:
    result = verify_property(find_plugin("sort"), promise, examples)
    assert result.passed, f"{result.message}\n{result.script}"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_radix_passes_sort_every_dtype(dtype: torch.dtype) -> None:
    """One tile and a bit: flagos-ai/FlagGems#5981 hangs where programs wait for each other."""
    x = make(dtype, (1, 512 + 5), "distinct" if dtype.itemsize > 2 else "few", 1)
    assert_sorted_as_eager(rows.radix_rows(x, False), x, False)


def test_radix_counts_add_up_over_chunks_and_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "CHUNKS", 2)  # so a chunk has several tiles
    x = make(torch.int8, (2, 3 * 512 + 1), "few", 2)
    assert_sorted_as_eager(rows.radix_rows(x, True), x, True)


@pytest.mark.parametrize("many", [1, 600, 70000])
def test_a_chunk_has_no_more_tiles_than_its_row(
    many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many rows: one chunk each, which went through 136 times as many tiles as exist."""
    taken = []
    monkeypatch.setattr(rows, "launch", lambda kernel, grid, *args, **options: taken.append(args))
    rows.radix_rows(torch.empty((many, 20000), dtype=torch.int8, device="meta"), False)
    tiles, chunks, iters = taken[0][5:8]
    assert 1 <= iters <= tiles <= chunks * iters


def test_tiles_are_small_for_short_rows_and_for_the_interpreter() -> None:
    def shape(n: int, device: str) -> tuple[int, int]:
        return rows.tile_shape(torch.empty((1, n), dtype=torch.int8, device=device))

    assert [shape(n, "meta") for n in (9000, 2**21, 2**22)] == [(4, 1), (4, 1), (4, 2)]
    assert shape(2**22, "cpu") == (4, 0)
    assert rows.longest_block(torch.empty(0)) == 256
    assert rows.longest_block(torch.empty(0, device="meta")) == 8192


@pytest.mark.parametrize(("rows_", "n"), [(3, 1), (70, 2), (1, 129), (2, 700)])
@pytest.mark.parametrize("dtype", (torch.float32, torch.float64, torch.bfloat16), ids=str)
def test_one_program_sorts_rows_of_any_count(dtype: torch.dtype, rows_: int, n: int) -> None:
    x = make(dtype, (rows_, n), "few", n)
    assert_sorted_as_eager(rows.block_rows(x, n, True), x, True)


@pytest.mark.parametrize("words", (True, False))
@pytest.mark.parametrize("dtype", (torch.float32, torch.int32), ids=str)
def test_words_compared_as_float64_sort_as_pairs_do(
    dtype: torch.dtype, words: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "is_interpreted", lambda tensor: False)
    monkeypatch.setattr(rows, "compares_float64_fast", lambda device: words)
    x = make(dtype, (2, 200), "distinct", 7)
    x[:, :50] = torch.tensor([0, -(2**31), 2**31 - 1, -1, 1]).repeat(10).to(dtype)
    assert_sorted_as_eager(rows.sort_rows(x, True), x, True)
    monkeypatch.setattr(rows, "BLOCK_ROW", 512)
    long = make(dtype, (1, 600), "few", 8)
    assert_sorted_as_eager(rows.topk_rows(long, 9, False), long, False)


def test_float64_is_taken_for_fast_where_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    fast = {(8, 0): True, (8, 6): False, (8, 9): False, (9, 0): True, (12, 0): False}
    for capability, expected in fast.items():
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _, c=capability: c)
        assert rows.compares_float64_fast(torch.device("cuda")) == expected
    assert not rows.compares_float64_fast(torch.device("cpu"))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not rows.compares_float64_fast(torch.device("cuda"))


@pytest.mark.parametrize("largest", (True, False))
def test_topk_of_a_long_row_takes_equal_values_in_order(largest: bool) -> None:
    x = make(torch.float32, (2, 900), "few", 3)
    assert_sorted_as_eager(rows.topk_rows(x, 20, largest), x, largest)


def test_topk_narrows_groups_of_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK_ROW", 128)
    x = make(torch.int64, (2, 64 * 130), "distinct", 4)
    assert_sorted_as_eager(rows.topk_rows(x, 2, True), x, True)


def test_topk_of_most_of_a_row_sorts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "BLOCK_ROW", 64)
    x = make(torch.int8, (1, 300), "distinct", 5)
    assert_sorted_as_eager(rows.topk_rows(x, 100, False), x, False)


def test_sizes_without_a_bound_and_empty_ones_run() -> None:
    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, indices = torch.ops.graftwork.sort(x, 1, True)
            return values, indices

    dynamic = {"x": {0: torch.export.Dim.DYNAMIC, 1: torch.export.Dim.DYNAMIC}}
    x = make(torch.int8, (2, 40), "few", 6)
    program = torch.export.export(Model(), (x,), dynamic_shapes=dynamic).run_decompositions({})
    assert_sorted_as_eager(program.module()(x), x, True)
    empty = torch.empty((3, 0), dtype=torch.float32)
    assert torch.ops.graftwork.sort(empty, 1, False)[1].shape == (3, 0)


def test_topk_of_rows_without_a_bound_ends() -> None:
    """It narrowed groups of groups until the recursion limit; rows end at LONGEST_ROW."""

    class Model(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            values, indices = torch.ops.graftwork.topk(x, 5, 1, True)
            return values, indices

    x = make(torch.float32, (2, 700), "distinct", 8)
    dynamic = {"x": {1: torch.export.Dim.DYNAMIC}}
    program = torch.export.export(Model(), (x,), dynamic_shapes=dynamic)
    assert_sorted_as_eager(program.module()(x), x, True)


def test_an_empty_problem_of_unknown_size_touches_nothing() -> None:
    for shape in ((0, 5), (5, 0)):
        values, indices = rows.radix_rows(torch.empty(shape, dtype=torch.int8), False)
        assert values.shape == indices.shape == shape


def test_declines_what_no_kernel_sorts() -> None:
    with pytest.raises(Declined, match="complex"):
        plugin._check(torch.zeros(3, dtype=torch.complex64), 0)
    with pytest.raises(Declined, match="longest"):
        plugin._check(torch.empty(2**30 + 1, dtype=torch.int8, device="meta"), 0)
    with pytest.raises(Declined, match="empty"):
        plugin._median(torch.zeros(0))


@pytest.mark.parametrize("k", (-1, 4))
def test_topk_refuses_a_k_out_of_range(k: int) -> None:
    with pytest.raises(RuntimeError, match="topk"):
        torch.ops.graftwork.topk(torch.zeros(3), k, 0, True)


def kernels_of_every_kind() -> None:
    """With small networks, which compile in a tenth of the time."""
    for dtype in (torch.bfloat16, torch.float32, torch.int64):
        rows.sort_rows(torch.zeros((2, 60), dtype=dtype), False)
    rows.topk_rows(torch.zeros((1, 300)), 1, True)
    rows.radix_rows(torch.zeros((1, 60), dtype=torch.int8), True)


NAMES = {"sort_block", "best_of_groups", "count_digits", "scan_chunks", "place_tiles"}


def test_kernels_compile_for_every_gpu(compile_everywhere, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(rows, "BLOCK_ROW", 64)
    assert compile_everywhere(kernels_of_every_kind) == NAMES


def test_tiles_sorted_in_ptx_compile_for_every_nvidia_gpu(compile_everywhere, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(rows, "takes_ptx", lambda device: True)
    compiled = compile_everywhere(
        lambda: rows.radix_rows(torch.zeros((1, 60)), True), backend="cuda"
    )
    assert compiled == {"count_digits", "scan_chunks", "place_tiles"}


def test_ptx_is_for_nvidia_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rows.takes_ptx(torch.device("cuda"))
    assert not rows.takes_ptx(torch.device("cpu"))
    monkeypatch.setattr(torch.version, "hip", "7.0")
    assert not rows.takes_ptx(torch.device("cuda"))


def test_every_form_compiles_for_every_gpu(compile_everywhere, monkeypatch, deep) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(rows, "BLOCK_ROW", 64)
    assert compile_everywhere(kernels_of_every_kind, every=True) == NAMES


def test_digits_are_read_where_a_number_stands_for_the_shift() -> None:
    """Inductor of torch 2.11 compiles a kernel so, to learn what it writes."""
    kernel = radix_kernels.count_digits
    pointers = {"x": "*fp32", "tile_offsets": "*i32", "chunk_counts": "*i32"}
    constants = {"shift": 8, "DESCENDING": True, "TILE": 1024, "PTX": False}
    signature = {
        name: "constexpr" if name in constants else pointers.get(name, "i32")
        for name in kernel.arg_names
    }
    source = ASTSource(kernel, signature, constants)
    assert triton.compile(source, target=GPUTarget("cuda", 90, 32)).asm["cubin"]


def test_tables_of_dynamic_size_have_the_strides_of_their_sizes() -> None:
    """A size not known to be one or more makes a stride that Inductor 2.11 takes for another's.

    It then copies the table, and looks for the copy in vain (KeyError: 'op3').
    """
    graphs: list[torch.fx.Graph] = []

    def keep(module: torch.fx.GraphModule, inputs: object) -> torch.fx.GraphModule:
        graphs.append(module.graph)
        raise StopIteration

    sort = aot_function(lambda x: operators.sort(x, 1, False), keep, dynamic=True)
    with pytest.raises(StopIteration), torch.no_grad():
        sort(torch.zeros(3, 20_000, dtype=torch.int8))
    tables = [node.meta["val"] for node in graphs[0].nodes if "empty" in str(node.target)]
    assert len(tables) >= 5
    for table in tables:
        for size, stride, outer in zip(
            table.shape[1:], table.stride()[1:], table.stride(), strict=False
        ):
            expected = symbolic_expression(size) * symbolic_expression(stride)
            assert symbolic_expression(outer) == expected
