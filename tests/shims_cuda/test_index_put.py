"""index_put and masks: eager's values, bools or-ed, writes under a mask without a host read."""

import pytest
import torch
import triton.language as tl
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from graftwork.lowering import lower
from graftwork.plugins import Declined, LoweringContext
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.rewriting import rewrite_program
from graftwork.plugins.toolkit.kernels import jit, launch
from graftwork.plugins.verification import assert_verified
from graftwork.shims_cuda.index_put import Options, _index
from graftwork.shims_cuda.index_put.operators import (
    index_put,
    mask_counts,
    mask_positions,
    mask_put,
    mask_values,
)
from graftwork.shims_cuda.stages import mask as masks
from graftwork.shims_cuda.stages.last_writer import last_writer
from graftwork.shims_cuda.stages.problem import Problem


def put(x, index, v, accumulate=False, deterministic=True):
    return index_put(x, index, v, accumulate, deterministic)


def test_properties_hold(examples):
    assert_verified("index-put", examples=examples)


def test_bools_accumulate_as_or():
    """pytorch/pytorch#193584: the compiled program adds instead."""
    x, index = torch.tensor([False, True, False]), torch.tensor([0, 0, 1])
    assert put(x, [index], torch.ones(3, dtype=torch.bool), True).tolist() == [True, True, False]


def test_float_sums_add_in_index_order():
    """pytorch/pytorch#101105: float sums that differ from run to run."""
    index, v = torch.tensor([0, 0, 0, -3]), torch.tensor([1e8, 1, -1e8, 2])
    assert put(torch.zeros(4), [index], v, True).tolist() == [0, 2, 0, 0]


def test_half_sums_add_in_float32():
    ones = torch.ones(1000, dtype=torch.bfloat16)
    out = put(ones[:1] * 0, [torch.zeros(1000, dtype=torch.int64)], ones, True)
    assert out.item() == 1000


def test_negative_indices_wrap_and_further_ones_are_errors():
    assert put(torch.zeros(3), [torch.tensor([-3])], torch.ones(1)).tolist() == [1, 0, 0]
    with pytest.raises(IndexError, match="index -4 is out of bounds for dimension 0 with size 3"):
        put(torch.zeros(3), [torch.tensor([-4])], torch.ones(1))


@pytest.mark.parametrize("row", [2, -3])
def test_a_write_out_of_range_is_dropped(row):
    """Unguarded, row 2 of the first of two groups would be row 0 of the second."""
    index = torch.tensor([row]).view(1, 1, 1)
    out = last_writer(Problem(torch.zeros(2, 2, 1), index, torch.ones(2, 1, 1), wraps=True))
    assert not out.any()


def rewritten(model, inputs, dynamic=None):
    program = torch.export.export(model, inputs, dynamic_shapes=dynamic)
    context = LoweringContext(target="cuda", device="cuda")
    plugin = find_plugin("index-put")
    return rewrite_program(program, select_plugin_alone(plugin), context)


def reads_host(program):
    return [
        n for n in program.graph.nodes if n.target is torch.ops.aten._local_scalar_dense.default
    ]


class PutUnderMask(torch.nn.Module):
    def forward(self, x, mask, v):
        return torch.ops.aten.index_put(x, [mask], v)


class Fill(torch.nn.Module):
    def forward(self, x, mask):
        x = x.clone()
        x[mask] = 2
        return x


class Find(torch.nn.Module):
    def forward(self, x):
        return torch.nonzero(x)


def test_writes_under_a_mask_read_nothing_back():
    x, mask = torch.zeros(3, 4), torch.rand(3, 4) < 2
    program, log = rewritten(PutUnderMask(), (x, mask, torch.ones(12)))
    assert log.fired("index-put") == 1
    assert not reads_host(program)
    program, _ = rewritten(Fill(), (x, mask))
    assert not reads_host(program)


def test_nonzero_reads_the_count_once():
    """pytorch/pytorch#112443: nonzero leaves range checks in the program."""
    x = torch.tensor([[0.0, 1, 0, 2], [0, 0, 0, 0], [3, 0, float("nan"), -0.0]])
    program, log = rewritten(Find(), (x,))
    assert log.fired("index-put") == 1
    assert len(reads_host(program)) == 1
    for inputs in (x, torch.zeros(3, 4), torch.ones(3, 4)):
        assert torch.equal(program.module()(inputs), torch.nonzero(inputs))


def test_a_computed_mask_is_not_viewed_as_bytes():
    """Inductor of torch 2.11 has no view of a bool that it computes."""

    class FindPositive(torch.nn.Module):
        def forward(self, x):
            return torch.nonzero(x > 0)

    program, log = rewritten(FindPositive(), (torch.randn(3, 4),))
    assert log.fired("index-put") == 1
    target = torch.ops.aten.view.dtype
    assert not program.graph.find_nodes(op="call_function", target=target)


def test_a_second_pick_by_one_mask_is_left_with_a_reason():
    """Export gives both picks one size symbol, which only the first may bring into being."""

    class PickTwice(torch.nn.Module):
        def forward(self, x, y):
            mask = x > 0
            return x[mask] + y[mask]

    x, y = torch.randn(3, 4), torch.randn(3, 4)
    program, log = rewritten(PickTwice(), (x, y))
    assert (log.fired("index-put"), log.declined("index-put")) == (1, 1)
    assert torch.equal(program.module()(x, y), x[x > 0] + y[x > 0])


class Mixed(torch.nn.Module):
    def forward(self, x, mask, i, v):
        return torch.ops.aten.index_put(x, [mask, i], v)


@pytest.mark.parametrize("index", [torch.tensor(-1), torch.tensor([1])], ids=["0-d", "1-d"])
def test_a_mask_beside_one_integer_is_one_mask(index):
    inputs = torch.zeros(2, 3), torch.tensor([True, True]), index, torch.tensor([4.0, 5.0])
    program, log = rewritten(Mixed(), inputs)
    assert log.fired("index-put") == 1
    assert not reads_host(program)
    assert torch.equal(program.module()(*inputs), Mixed()(*inputs))
    with pytest.raises(IndexError, match="index 3 is out of bounds"):
        _index(inputs[0], [inputs[1], torch.tensor(3)])


def test_a_mask_beside_several_integers_reads_nothing_back():
    mask = torch.tensor([True, False, True])
    inputs = torch.zeros(3, 3), mask, torch.tensor([0, -1]), torch.tensor([4.0, 5.0])
    program, log = rewritten(Mixed(), inputs)
    assert log.fired("index-put") == 1
    assert not reads_host(program)
    assert torch.equal(program.module()(*inputs), Mixed()(*inputs))


def test_a_mask_that_keeps_one_element_broadcasts_over_integers():
    x, mask = torch.arange(9.0).view(3, 3), torch.tensor([False, True, False])
    assert torch.equal(_index(x, [mask, torch.tensor([2, 0])]), x[mask, torch.tensor([2, 0])])


def test_a_mask_that_keeps_another_number_than_there_are_integers_is_an_error():
    for mask in ([True, True, True], [False, False, False]):
        with pytest.raises(IndexError, match="shape mismatch: indexing tensors"):
            _index(torch.zeros(3, 3), [torch.tensor(mask), torch.tensor([0, 1])])


def test_a_mask_beside_integers_of_more_dims_is_left_with_a_reason():
    inputs = torch.zeros(2, 3), torch.tensor([True, True]), torch.tensor([[0, 2]]), torch.ones(1)
    _, log = rewritten(Mixed(), inputs)
    assert log.declined("index-put") == 1


def test_a_mask_apart_from_an_integer_and_two_masks_are_left():
    x, mask = torch.zeros(2, 3, 2), torch.tensor([True, True])
    with pytest.raises(Declined, match="apart"):
        _index(x, [mask, None, torch.tensor(0)])
    with pytest.raises(Declined, match="more than one mask"):
        _index(x, [mask, torch.tensor([True, True, True]), None])


@pytest.mark.parametrize(("tile", "stretches"), [(8, 4), (16, 4), (64, 1)])
def test_masks_of_one_stretch_and_of_several(tile, stretches, monkeypatch):
    """One tile is counted in one launch; more are cut into stretches of several."""
    monkeypatch.setattr(masks, "TILE", tile)
    monkeypatch.setattr(masks, "STRETCHES", 4)
    x = torch.arange(50.0).view(5, 10)
    mask = x % 3 == 1
    counts, count = mask_counts(mask)
    assert counts.shape == (stretches,)
    assert count == counts.sum() == mask.sum()
    assert torch.equal(mask_values(x, mask, counts, int(count)), x[mask])
    assert torch.equal(mask_positions(mask, counts, int(count)), mask.nonzero())
    assert torch.equal(mask_put(x, mask, 0, -x[mask]), torch.where(mask, -x, x))


def test_a_mask_of_many_dims_of_any_layout_gives_coordinates(monkeypatch):
    monkeypatch.setattr(masks, "TILE", 16)
    mask = torch.rand(3, 1, 4, 2, 5, 2).permute(3, 0, 5, 1, 2, 4) < 0.5
    counts, count = mask_counts(mask)
    assert torch.equal(mask_positions(mask, counts, int(count)), mask.nonzero())


def test_no_more_is_written_than_there_is_room_for(monkeypatch):
    """The count is an argument, which a caller may have from elsewhere."""
    monkeypatch.setattr(masks, "TILE", 8)
    x = torch.arange(40)
    mask = x % 2 == 0
    counts, _ = mask_counts(mask)
    out = torch.full((30,), -1)
    assert torch.equal(masks.kept_positions(mask, counts, out[:13], 13)[:, 0], x[:26:2])
    assert (out[13:] == -1).all()


def test_nothing_past_the_end_of_a_mask_counts(monkeypatch):
    monkeypatch.setattr(masks, "TILE", 8)
    monkeypatch.setattr(masks, "STRETCHES", 2)
    mask = torch.ones(64, dtype=torch.bool)[:20]
    counts, count = mask_counts(mask)
    assert count == 20
    out = torch.full((30,), -1)
    masks.kept_positions(mask, counts, out, 30)
    assert (out[20:] == -1).all()
    assert mask_values(torch.arange(64)[:20], mask, counts, 20).tolist() == list(range(20))


@jit
def quotients(p, out, extent, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    line, place = masks.divide(
        tl.load(p + o, mask=o < n), extent, masks.inverse_of(extent, False), False
    )
    tl.store(out + o, line, mask=o < n)
    tl.store(out + n + o, place, mask=o < n)


@pytest.mark.parametrize("extent", [1, 2, 3, 7, 4096, 65537, 2**30 + 1, 2**31 - 1])
def test_coordinates_divide_exactly(extent):
    whole = torch.arange(0, 2**31, max(extent, 2**31 // 250))
    p = torch.cat([whole - 1, whole, whole // extent * extent, torch.tensor([2**31 - 1])])
    p = p.clamp(0, 2**31 - 1).to(torch.int32)
    out = torch.empty(2, p.numel(), dtype=torch.int32)
    launch(quotients, (1,), p, out, extent, p.numel(), BLOCK=1024)
    assert torch.equal(out, torch.stack([p // extent, p % extent]))


def test_every_kernel_compiles_for_every_gpu(compile_everywhere, monkeypatch):
    monkeypatch.setattr(masks, "TILE", 16)
    x, mask = torch.zeros(4, 8), torch.ones(4, 8, dtype=torch.bool)

    def call():
        counts, _ = mask_counts(mask)
        mask_values(x, mask, counts, 32)
        mask_positions(mask, counts, 32)
        put(x, [torch.tensor([0, 1])], torch.ones(2, 8))

    assert compile_everywhere(call) == {
        "count_kept",
        "mark_last",
        "pick_rows",
        "write_coordinates",
        "write_kept",
    }
    with pytest.raises(RuntimeError, match="shape mismatch"):
        mask_put(x, mask, 0, torch.ones(3))
    assert compile_everywhere(lambda: mask_put(x, mask, 0, torch.ones(32))) == {
        "count_kept",
        "pick_elements",
        "write_ranks",
    }


class Kept(torch.nn.Module):
    """The images that are not padding, as many as their mask keeps."""

    def forward(self, images, mask):
        return images[mask].flatten(1) * 2


def test_rows_of_a_mask_lower_to_cuda(tmp_path, deep):
    """With coordinates in rows of `count` the result was copied onto itself: KeyError 'op19'."""
    inputs = torch.randn(5, 3, 4), torch.tensor([True, False, True, True, False])
    settings = {"target": "cuda", "archs": ["sm_90"], "verify": False}
    assert lower(Kept(), inputs, directory=tmp_path, **settings).report.files


def test_a_byte_other_than_0_counts_once():
    """Bytes viewed as bool may be any; a mask kept 257 elements of 3."""
    mask = torch.tensor([2, 0, 255], dtype=torch.uint8).view(torch.bool)
    counts, kept = mask_counts(mask)
    assert (counts.tolist(), kept.item()) == ([2], 2)
    assert mask_values(torch.arange(3.0), mask, counts, 2).tolist() == [0, 2]


class Numbers(torch.nn.Module):
    """One number written, or added, by each kind of index."""

    def forward(self, x, i, mask):
        x = x.clone()
        x[i] = 0.0
        x[:, i] = 1.0
        x[mask, torch.tensor([0, 1, 2])] = 2.0
        return x.index_put((i,), torch.tensor(1.5), accumulate=True)


def test_numbers_written_lower_to_cuda(tmp_path):
    """Inductor holds a constant without storage, and asserted where it was reshaped."""
    mask = torch.tensor([True, False, True, True, False])
    inputs = torch.randn(5, 3), torch.tensor([1, 2]), mask
    settings = {"target": "cuda", "archs": ["sm_90"], "verify": False}
    assert lower(Numbers(), inputs, directory=tmp_path, **settings).report.files


@pytest.mark.parametrize("accumulate", [True, False])
@pytest.mark.parametrize("number", [True, False])
def test_a_number_and_an_index_on_the_host_go_to_the_gpu(number, accumulate, monkeypatch):
    """`x[i] = 0.0` has them there; eager takes both, a kernel would read the host's memory."""
    monkeypatch.setattr("graftwork.shims_cuda.index_put.index_put", index_put._function)
    kernels = find_plugin("index-put").call(
        "list_kernels", options=Options(), context=LoweringContext()
    )
    put = kernels[torch.ops.aten.index_put.default]
    with FakeTensorMode():
        x, near = torch.empty(9, 3, device="cuda"), torch.empty(4, 3, device="cuda")
        index, far = torch.empty(4, dtype=torch.int64), torch.empty(())
        traced = make_fx(lambda *given: put(given[0], [given[1]], given[2], accumulate))(
            x, index, far if number else near
        )
    given = [
        arg
        for node in traced.graph.nodes
        if "triton" in str(node.target)
        for arg in node.kwargs["kwargs"].values()
        if isinstance(arg, torch.fx.Node)
    ]
    assert given
    assert {arg.meta["val"].device.type for arg in given} == {"cuda"}
