"""scatter_reduce and scatter_add: the sums, products, means and extremes that eager gives."""

import pytest
import torch

from graftwork.plugins import Declined, LoweringContext
from graftwork.plugins.checking import find_plugin
from graftwork.plugins.verification import assert_verified
from graftwork.shims_cuda.scatter_reduce import Options, scatter_reduce
from graftwork.shims_cuda.stages import columns, grouping, planes, tiles
from graftwork.shims_cuda.stages import problem as problems
from graftwork.shims_cuda.stages.columns import fold_columns, suits_columns
from graftwork.shims_cuda.stages.fold import fold_groups
from graftwork.shims_cuda.stages.problem import Problem, suits_strips, three_dims
from graftwork.shims_cuda.stages.reduce import reduce_problem
from graftwork.shims_cuda.stages.tiles import fold_tiles, stretches_of, suits_tiles

REDUCTIONS = ["sum", "prod", "mean", "amax", "amin"]


def reduced(base, index, src, reduce, include_self=True, deterministic=True):
    return scatter_reduce(base, 0, index, src, reduce, include_self, deterministic)


def test_properties_hold(examples):
    assert_verified("scatter-reduce", examples=examples)


@pytest.mark.parametrize("fold", [fold_columns, fold_groups])
def test_float_sums_add_in_index_order(fold):
    """pytorch/pytorch#101105: float sums that differ from run to run."""
    index, src = torch.tensor([0, 0, 0, 1]), torch.tensor([1e8, 1, -1e8, 2])
    problem = three_dims(torch.zeros(4), 0, index, src)
    assert fold(problem, "sum", True).flatten().tolist() == [0, 2, 0, 0]


def test_a_mean_counts_in_its_dtype():
    """128 int8 ones: the sum and the count are both -128; 256 zeros: a count of 0 is a 1."""
    index = torch.zeros(256, dtype=torch.int64)
    ones = torch.ones(256, dtype=torch.int8)
    base = torch.full((1,), 7, dtype=torch.int8)
    assert reduced(base, index[:128], ones[:128], "mean", include_self=False).item() == 1
    assert reduced(base, index, ones * 0 + 3, "mean", include_self=False).item() == 0


def test_an_integer_mean_rounds_down():
    base = torch.tensor([1, 1], dtype=torch.int32)
    src = torch.tensor([-5, -5, 4], dtype=torch.int32)
    assert reduced(base, torch.tensor([0, 0, 1]), src, "mean").tolist() == [-3, 2]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("fold", [fold_columns, fold_groups])
def test_half_sums_add_in_float32(fold, dtype):
    ones = torch.ones(1000, dtype=dtype)
    problem = three_dims(
        torch.zeros(1, dtype=dtype), 0, torch.zeros(1000, dtype=torch.int64), ones
    )
    assert fold(problem, "sum", True).item() == 1000


@pytest.mark.parametrize("fold", [fold_columns, fold_groups])
def test_a_half_product_rounds_at_every_step(fold):
    src = torch.tensor([1.1, 1.9, 0.9]).bfloat16()
    problem = three_dims(src[:1], 0, torch.zeros(3, dtype=torch.int64), src)
    stepwise = src[0] * src[1] * src[2]
    assert fold(problem, "prod", False).item() == stepwise.item()
    assert stepwise != src.double().prod().bfloat16()


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("include_self", [True, False])
@pytest.mark.parametrize("columns", [1, 512])
def test_elements_not_named_keep_their_bits(reduce, include_self, columns):
    bits = torch.tensor([0x7FC12345, -0x80000000, 0], dtype=torch.int32)
    base = bits.view(torch.float32).repeat(columns, 1).t().contiguous()
    index = torch.full((2, columns), 2)
    out = reduced(base, index, torch.full((2, columns), 3.0), reduce, include_self)
    assert torch.equal(out[:2].view(torch.int32), base[:2].view(torch.int32))


@pytest.mark.parametrize("reduce", ["amax", "amin"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_nan_wins_both_ways_whatever_its_sign(reduce, dtype):
    base, nan = torch.tensor([1.0, 2.0], dtype=dtype), torch.tensor([float("nan")], dtype=dtype)
    for special in (nan, -nan):
        out = reduced(base, torch.tensor([0, 0]), special.repeat(2), reduce)
        assert out[0].isnan()
        assert out[1] == 2


@pytest.mark.parametrize("reduce", ["amax", "amin"])
def test_strips_of_columns_give_the_same(reduce, monkeypatch):
    monkeypatch.setattr(problems, "ENOUGH", 2)
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(3, (70, 40), generator=generator)
    base, src = (torch.randn(n, 40, generator=generator) for n in (3, 70))
    assert suits_strips(three_dims(base, 0, index, src), 32, 256)
    expected = base.scatter_reduce(0, index, src, reduce)
    assert torch.equal(reduced(base, index, src, reduce), expected)


@pytest.mark.parametrize("fold", [fold_columns, fold_groups])
def test_a_sum_of_negative_zeros_keeps_the_sign(fold):
    """Not in tiles, here: the interpreter takes sums from NumPy, whose sums begin at 0.0."""
    zero = torch.tensor([-0.0])
    problem = three_dims(zero, 0, torch.tensor([0]), zero)
    assert fold(problem, "sum", True).signbit().item()
    assert not fold(problem, "sum", False).signbit().item()


@pytest.mark.parametrize("reduce", REDUCTIONS)
@pytest.mark.parametrize("columns", [3, 512])
@pytest.mark.parametrize("row", [2, -9])
def test_a_value_out_of_range_is_dropped(reduce, columns, row):
    """Unguarded, row 2 of the first of two groups would be row 0 of the second."""
    base = torch.ones(2, 2, columns)
    index = torch.tensor([row, 1]).view(2, 1, 1).repeat(1, 1, columns)
    problem = Problem(base, index, torch.full((2, 1, columns), 2.0))
    out = reduce_problem(problem, reduce, False, True)
    expected = torch.ones(2, 2, columns)
    expected[1, 1] = 2
    assert torch.equal(out, expected)


@pytest.mark.parametrize("reduce", ["prod", "mean", "amax", "amin"])
def test_bool_has_sums_only(reduce):
    """CUDA eager has no other reduction of bool, and says so."""
    x, index = torch.zeros(3, dtype=torch.bool), torch.tensor([0])
    kernels = find_plugin("scatter-reduce").call(
        "list_kernels", options=Options(), context=LoweringContext()
    )
    with pytest.raises(Declined, match=f"bool has no scatter_reduce by {reduce}, only by sum"):
        kernels[torch.ops.aten.scatter_reduce.two](x, 0, index, x[:1], reduce)


@pytest.mark.parametrize("fold", [fold_columns, fold_groups])
@pytest.mark.parametrize("few_rows", [2048, 1])
@pytest.mark.parametrize(("base", "value"), [(0.0, 1e20), (1e-30, 1e20), (1e30, 1e-30)])
def test_a_product_begins_with_the_base(fold, few_rows, base, value, monkeypatch):
    """The values alone leave float32's range: infinite times a base of 0 is NaN."""
    monkeypatch.setattr(columns, "FEW_ROWS", few_rows)
    src = torch.ones(8)
    src[:2] = value
    index, x = torch.zeros(8, dtype=torch.int64), torch.full((3,), base)
    expected = x.scatter_reduce(0, index, src, "prod")
    assert expected.isfinite().all()
    assert torch.equal(fold(three_dims(x, 0, index, src), "prod", True).flatten(), expected)


def test_rows_longer_than_a_piece_fold_piece_by_piece():
    src = torch.arange(1.0, 60.0)
    index = torch.zeros(59, dtype=torch.int64)
    problem = three_dims(torch.zeros(2), 0, index, src)
    assert fold_groups(problem, "sum", True).flatten().tolist() == [float(src.sum()), 0]


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean"])
@pytest.mark.parametrize("few_rows", [5, 4])
def test_columns_in_stretches_fold_in_order(reduce, few_rows, monkeypatch):
    """Sixteen values ahead, in stretches; a row named twice among eight is passed on."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **how: empty(*size, **how).fill_(7))
    monkeypatch.setattr(columns, "FEW_ROWS", few_rows)
    monkeypatch.setattr(columns, "LANES", 3 * 40)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(5, (150, 40), generator=generator)
    base = torch.randint(1, 3, (5, 40), generator=generator).double()
    src = torch.randint(-1, 2, (150, 40), generator=generator).double()
    src[src == 0] = 1
    problem = three_dims(base, 0, index, src)
    assert columns.stretches_of(problem) == 2
    expected = base.scatter_reduce(0, index, src, reduce)
    assert torch.equal(fold_columns(problem, reduce, True).view(5, 40), expected)


def sized(rows, count, columns, width=None, dtype=torch.float32):
    index = torch.empty(1, count, width or columns, dtype=torch.int64, device="meta")
    values = [torch.empty(1, n, columns, dtype=dtype, device="meta") for n in (rows, count)]
    return Problem(values[0], index, values[1])


def test_columns_are_folded_where_lanes_are_many_and_planes_small():
    assert suits_columns(sized(512, 4096, 1024), "sum")
    assert suits_columns(sized(64, 65536, 64), "sum")
    assert not suits_columns(sized(64, 65536, 31), "sum")
    assert not suits_columns(sized(8192, 65536, 1024), "sum")
    assert suits_columns(sized(8192, 65536, 1024), "prod")
    assert suits_columns(sized(512, 4096, 65536), "sum")
    assert suits_columns(sized(64, 65536, 64, width=1), "sum")
    assert not suits_columns(sized(8192, 65536, 1024, width=1), "sum")


def test_tiles_are_for_sums_of_floats_by_element_or_of_few_columns():
    assert suits_tiles(sized(65536, 8192, 64), "sum", True)
    assert not suits_tiles(sized(65536, 8192, 64), "prod", True)
    assert not suits_tiles(sized(65536, 8192, 64, dtype=torch.int64), "mean", True)
    assert suits_tiles(sized(65536, 65536, 3, width=1), "mean", True)
    assert not suits_tiles(sized(65536, 65536, 64, width=1), "sum", True)


def test_tiles_are_for_few_rows_unless_planes_would_be_large():
    assert suits_tiles(sized(65536, 63, 1024, width=1), "sum", True)
    assert not suits_tiles(sized(65536, 63, 1024, width=1, dtype=torch.half), "sum", True)
    assert not suits_tiles(sized(65536, 63, 1024, width=1), "sum", False)
    assert suits_tiles(sized(100, 63, 1024, width=1), "mean", False)
    assert not suits_tiles(sized(100, 1000, 1024, width=1), "sum", True)


def test_long_columns_are_cut_into_more_stretches_than_large_ones():
    assert stretches_of(sized(64, 65536, 1)) > 16
    assert stretches_of(sized(65536, 8192, 64)) == 1
    assert stretches_of(sized(65536, 63, 1024)) == 1


@pytest.mark.parametrize("stretches", [1, 3])
@pytest.mark.parametrize("several", [1, 16])
def test_tiles_add_up_what_they_share(stretches, several, monkeypatch):
    """Two tiles ahead, in stretches whose planes are folded one by one or together."""
    empty = torch.empty
    monkeypatch.setattr(torch, "empty", lambda *size, **how: empty(*size, **how).fill_(-7))
    monkeypatch.setattr("graftwork.shims_cuda.stages.tiles.stretches_of", lambda p: stretches)
    monkeypatch.setattr(planes, "SEVERAL", several)
    generator = torch.Generator().manual_seed(1)
    index = torch.randint(4, (2, 37, 5), generator=generator)
    base, src = (torch.randint(-9, 9, (2, n, 5), generator=generator).double() for n in (5, 37))
    out = fold_tiles(Problem(base, index, src), "sum", True)
    assert torch.equal(out, base.scatter_add(1, index, src))
    rows = index[..., :1].expand_as(index)
    out = fold_tiles(Problem(base, index[..., :1], src), "sum", True)
    assert torch.equal(out, base.scatter_add(1, rows, src))


@pytest.mark.parametrize("row", [2, -9])
def test_tiles_drop_what_is_out_of_range(row):
    """Unguarded, row 2 of the first of two groups would be row 0 of the second."""
    index = torch.tensor([row, 1]).view(2, 1, 1).repeat(1, 1, 3)
    problem = Problem(torch.ones(2, 2, 3), index, torch.full((2, 1, 3), 2.0))
    expected = torch.ones(2, 2, 3)
    expected[1, 1] = 3
    assert torch.equal(fold_tiles(problem, "sum", True), expected)


@pytest.mark.parametrize("size", [1, 33, 300])
@pytest.mark.parametrize("rows", [3, 50])
def test_merged_tiles_group_as_a_radix_sort_does(size, rows, monkeypatch):
    generator = torch.Generator().manual_seed(size)
    index = torch.randint(-rows, rows, (2, size, 1), generator=generator)
    index[0, size // 2], index[1, size // 3] = rows, -rows - 1
    values = [torch.zeros(2, n, 4) for n in (rows, size)]
    problem = Problem(values[0], index, values[1], wraps=True)
    monkeypatch.setattr(grouping, "MERGED", 20)
    merged = grouping.group_by_row(problem)
    monkeypatch.setattr(grouping, "MERGED", 0)
    sorted_by_digit = grouping.group_by_row(problem)
    for ours, theirs in zip(vars(merged).values(), vars(sorted_by_digit).values(), strict=True):
        assert torch.equal(ours, theirs)
    row = torch.where(index < 0, index + rows, index) + torch.tensor([0, rows]).view(2, 1, 1)
    row[0, size // 2] = row[1, size // 3] = 2 * rows
    assert torch.equal(merged.order, row.flatten().argsort(stable=True).int())


@pytest.mark.parametrize("reduce", ["sum", "prod", "mean"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_an_index_expanded_over_the_dims_before_folds_all_of_them(reduce, dtype):
    """Its stride is 0 there, as that of an index with one entry for all; its positions are not."""
    generator = torch.Generator().manual_seed(0)
    base, src = (torch.randint(-2, 3, (2, n, 5), generator=generator).to(dtype) for n in (3, 20))
    index = torch.randint(3, (20, 1), generator=generator).expand(2, 20, 5)
    folded = fold_groups(three_dims(base, 1, index, src), reduce, True)
    assert torch.equal(folded, base.scatter_reduce(1, index, src, reduce))


def test_every_kernel_compiles_for_every_gpu(compile_everywhere, monkeypatch):
    compile_reductions(compile_everywhere, monkeypatch, False)


def test_every_reduction_compiles_for_every_gpu(compile_everywhere, monkeypatch, deep):
    compile_reductions(compile_everywhere, monkeypatch, True)


def compile_reductions(compile_everywhere, monkeypatch, every):
    monkeypatch.setattr(columns, "AHEAD", 4)
    monkeypatch.setattr(columns, "TOGETHER", 2)
    monkeypatch.setattr(tiles, "AHEAD", 2)
    monkeypatch.setattr(problems, "ENOUGH", 16)
    wide, row = torch.zeros(4, 512, dtype=torch.int64), torch.zeros(4, 1, dtype=torch.int64)

    def call():
        base, src = torch.zeros(4, 512), torch.ones(4, 512)
        for reduce in ("prod", "sum", "mean"):
            reduced(base, wide, src, reduce)
        reduced(base[:, :8], wide[:, :8], src[:, :8], "amin", include_self=False)
        reduced(base, row.expand(4, 512), src, "prod")
        reduced(base, wide.repeat(16, 1), src.repeat(16, 1), "amax")
        many = torch.zeros(20000, 1, dtype=torch.int64)
        reduced(base[:, :8], many.expand(-1, 8), torch.ones(20000, 8), "sum")
        reduced(base[:, :1], many, torch.ones(20000, 1), "sum")
        reduced(base, wide, src, "sum", deterministic=False)
        reduced(torch.zeros(3000, 512), wide, src, "sum")
        reduced(torch.zeros(3000, 512), wide, src, "prod")

    assert compile_everywhere(call, every) == {
        "add_all",
        "add_in_order",
        "count_digits",
        "count_names",
        "fill_cells",
        "fill_from_base",
        "fold_cells",
        "fold_pieces",
        "fold_rows",
        "fold_stretches",
        "join_tiles",
        "merge_tiles",
        "move_by_digit",
        "raise_keys",
        "raise_keys_by_strips",
        "scan_blocks",
        "settle_keys",
        "sort_tiles",
    }
