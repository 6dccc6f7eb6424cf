"""scatter: the last write in index order wins; nothing outside the output is touched."""

import pytest
import torch

from graftwork.plugins.verification import assert_verified
from graftwork.shims_cuda.scatter import scatter_src, scatter_value
from graftwork.shims_cuda.stages import few_writes
from graftwork.shims_cuda.stages import problem as problems
from graftwork.shims_cuda.stages.few_writes import are_few, write_few
from graftwork.shims_cuda.stages.last_writer import fill, last_writer
from graftwork.shims_cuda.stages.problem import Problem, suits_strips, three_dims


def test_properties_hold(examples):
    assert_verified("scatter", examples=examples)


@pytest.mark.parametrize("plugin", ["scatter", "index-put"])
def test_properties_hold_where_entries_are_few(plugin, examples, monkeypatch):
    monkeypatch.setattr(few_writes, "SPARSE", 0)
    assert_verified(plugin, examples=examples)


@pytest.mark.parametrize("places", [[], [0], [0, 0]])
def test_a_number_takes_an_index_of_any_length(places):
    """As eager does; the source may be longer."""
    x, index, src = torch.tensor(1.0), torch.tensor(places, dtype=torch.int64), torch.arange(3.0)
    assert torch.equal(scatter_src(x, 0, index, src), x.scatter(0, index, src))
    assert torch.equal(scatter_value(x, 0, index, src[2]), x.scatter(0, index, 2.0))


def test_a_few_entries_need_no_table(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    index = torch.randint(5, (2, 60, 20), generator=generator)
    src = torch.arange(2400.0).view(2, 60, 20)
    problem = Problem(torch.zeros(2, 500, 20), index, src)
    assert are_few(problem)
    few = last_writer(problem)
    monkeypatch.setattr(few_writes, "FEW", 0)
    assert not are_few(problem)
    assert torch.equal(few, last_writer(problem))


def test_int64_scatter_of_distinct_indices():
    """pytorch/pytorch#194187: int64 falls back to a library call although nothing collides."""
    index, src = torch.randperm(64)[:32], torch.randint(1, 9, (32,))
    out = scatter_src(torch.zeros(64, dtype=torch.int64), 0, index, src)
    assert torch.equal(out[index], src)
    assert int((out != 0).sum()) == 32


def test_the_last_of_many_writes_wins():
    out = scatter_src(torch.zeros(2), 0, torch.zeros(600, dtype=torch.int64), torch.arange(600.0))
    assert out.tolist() == [599, 0]


@pytest.mark.parametrize("row", [2, -1], ids=["past the end", "negative"])
@pytest.mark.parametrize("kernel", [last_writer, write_few, fill])
def test_a_write_out_of_range_is_dropped(kernel, row):
    """Unguarded, row 2 of the first of two groups would be row 0 of the second."""
    base = torch.full((2, 2, 3), 5.0)
    index = torch.tensor([[row], [1 if row == 2 else row]]).view(2, 1, 1)
    out = kernel(Problem(base, index, torch.ones(2, 1, 3)))
    expected = base.clone()
    if row == 2:
        expected[1, 1] = 1
    assert torch.equal(out, expected)


def test_an_index_outside_is_an_error_on_the_cpu():
    for op, last in ((scatter_src, torch.ones(1)), (scatter_value, torch.ones(()))):
        with pytest.raises(RuntimeError, match="index -1 is out of bounds for dimension 0 with"):
            op(torch.zeros(3), 0, torch.tensor([-1]), last)


def test_an_expanded_index_is_read_once_a_row():
    index = torch.tensor([[1], [0]]).expand(2, 5)
    problem = three_dims(torch.zeros(3, 5), 0, index, torch.ones(2, 5))
    assert problem.moves_rows
    assert problem.index.shape == (1, 2, 1)


def test_strips_of_columns_give_the_same(monkeypatch):
    index = torch.randint(3, (2, 70, 40), generator=torch.Generator().manual_seed(0))
    problem = Problem(torch.zeros(2, 3, 40), index, torch.arange(5600.0).view(2, 70, 40))
    assert not suits_strips(problem, 16, 512)
    plain = last_writer(problem)
    monkeypatch.setattr(problems, "ENOUGH", 6)
    assert suits_strips(problem, 16, 512)
    in_strips = last_writer(problem)
    assert torch.equal(in_strips, plain)
    assert torch.equal(in_strips, torch.zeros(2, 3, 40).scatter(1, index, problem.src))


def test_strips_are_for_values_that_collide(monkeypatch):
    monkeypatch.setattr(problems, "ENOUGH", 1)
    index = torch.zeros(1, 70, 40, dtype=torch.int64)
    few, many = (Problem(torch.zeros(1, n, 40), index, torch.zeros(1, 70, 40)) for n in (70, 71))
    assert suits_strips(few, 16, 512)
    assert not suits_strips(many, 16, 512)


def test_strips_drop_what_is_out_of_range(monkeypatch):
    monkeypatch.setattr(problems, "ENOUGH", 1)
    index = torch.full((2, 64, 32), 3)
    index[1] = -1
    problem = Problem(torch.zeros(2, 3, 32), index, torch.ones(2, 64, 32))
    assert suits_strips(problem, 16, 512)
    assert not last_writer(problem).any()


def test_nan_payloads_and_signed_zeros_are_moved_as_they_are():
    bits = torch.tensor([0x7FC12345, -0x80000000], dtype=torch.int32)
    out = scatter_src(torch.zeros(3), 0, torch.tensor([2, 0]), bits.view(torch.float32))
    assert out.view(torch.int32)[[2, 0]].tolist() == bits.tolist()


def test_every_kernel_compiles_for_every_gpu(compile_everywhere, monkeypatch):
    monkeypatch.setattr(problems, "ENOUGH", 2)
    rows = torch.zeros(4, 1, dtype=torch.int64)

    def call():
        scatter_src(torch.zeros(4, 8), 0, torch.zeros(4, 8, dtype=torch.int64), torch.ones(4, 8))
        wide = torch.zeros(64, 32, dtype=torch.int64)
        scatter_src(torch.zeros(4, 32), 0, wide, torch.ones(64, 32))
        scatter_src(torch.zeros(4, 8), 0, rows.expand(4, 8), torch.ones(4, 8))
        scatter_value(torch.zeros(4, 8), 0, rows.expand(4, 8), torch.ones(()))
        scatter_src(torch.zeros(64, 8), 0, wide[:4, :8], torch.ones(4, 8))

    assert compile_everywhere(call) == {
        "mark_last",
        "mark_last_by_strips",
        "pick_elements",
        "pick_rows",
        "store_value",
        "write_last_of_few",
    }
