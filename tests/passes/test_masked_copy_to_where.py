"""masked-copy-to-where: `out[mask] = f(src[mask])` becomes `where`."""

import operator

import pytest
import torch
from masked_copies import ID, MASK, SRC, Function, Rewritten, View, X, copy
from torch.export import Dim, export

from graftwork.plugins.checking import find_plugin
from graftwork.plugins.verification import assert_verified

aten = torch.ops.aten


def test_the_plugin_is_listed():
    assert find_plugin(ID).kinds


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


def test_a_masked_copy_becomes_where_and_reads_no_count():
    """vllm-project/vllm-omni#4562: a mask index is illegal while a CUDA graph is captured."""

    def program(x, src):
        mask = x >= 0.5
        x = x.clone()
        x[mask] = src[mask]
        return x

    done = Rewritten(program, X, SRC)
    assert done.fired == 1
    assert not done.declined
    assert sorted(map(str, done.ops)) == [
        "aten.clone.default",
        "aten.ge.Scalar",
        "aten.where.self",
    ]


def test_after_export_and_after_decomposition():
    for decompose in (False, True):
        assert Rewritten(copy, X, SRC, MASK, decompose=decompose).copies_without_count()


def test_a_functional_program_that_export_did_not_decompose():
    def program(x, src, mask):
        wide = mask[:, None].expand_as(x)
        return x.masked_scatter(wide, src[mask].to(torch.float64).to(torch.float32))

    assert Rewritten(program, X, SRC, MASK[:, 0]).copies_without_count()


@pytest.mark.parametrize(
    "mask", [torch.zeros(3, 4) > 1, torch.zeros(3, 4) < 1, MASK], ids=["none", "all", "some"]
)
def test_any_number_of_picks(mask):
    assert Rewritten(copy, X, SRC, mask).copies_without_count()


def test_special_values_keep_their_bits():
    bits = torch.tensor([0x7FC12345, -0x3FEDCC, -0x80000000, 0x7F800000], dtype=torch.int32)
    src = bits.view(torch.float32).expand(3, 4)
    got = Rewritten(copy, X, src.contiguous(), MASK).program.module()(X, src, MASK)
    assert torch.equal(got.view(torch.int32), copy(X, src, MASK).view(torch.int32))


def test_a_mask_over_leading_dims():
    assert Rewritten(copy, X, SRC, MASK[:, 2]).copies_without_count()


def test_a_mask_over_inner_dims():
    def program(x, src, mask):
        out = x.clone()
        out[:, mask] = src[:, mask] * 2
        return out

    assert Rewritten(
        program, torch.randn(2, 3, 4), torch.randn(2, 3, 4), MASK
    ).copies_without_count()
    assert Rewritten(program, X, SRC, MASK[0]).copies_without_count()


def test_a_uint8_mask_is_a_mask():
    """Export itself refuses a uint8 index; a traced graph can hold one. Any non-zero picks."""

    def program(x, src, mask):
        return aten.index_put(x, [mask], aten.index(src, [mask]))

    done = View(program, X, SRC, torch.tensor([[0, 1, 2, 255]] * 3, dtype=torch.uint8))
    assert done.fired == 1
    (where,) = done.graph.find_nodes(op="call_function", target=aten.where.self)
    assert where.args[0].meta["val"].dtype is torch.bool


def test_masks_computed_twice_are_one_mask():
    def program(x, src):
        out = x.clone()
        out[x.abs() > 0.5] = src[x.abs() > 0.5]
        return out

    assert Rewritten(program, X, SRC).copies_without_count()


def test_pointwise_functions_of_the_picks():
    def program(x, src, row):
        mask = x[:, 0] > -0.9
        out = x.clone()
        out[mask] = torch.where(src[mask] > 3, src[mask].exp() * 0.5, x[mask]) + row
        return out

    assert Rewritten(program, X, SRC, torch.ones(4)).copies_without_count()


def test_updates_in_place():
    def scale(x, c, mask):
        x = x.clone()
        x[mask] *= 2
        return x

    def add(x, c, mask):
        x = x.clone()
        x[mask] += c
        return x

    assert Rewritten(scale, X, SRC, MASK).copies_without_count()
    assert Rewritten(add, X, torch.ones(4), MASK[:, 0]).copies_without_count()


def test_counts_of_equal_masks_are_checked_for_equality_and_may_go():
    def program(x, a, b):
        out = x.clone()
        out[x > 0.5] = a[x > 0.5] + b[x > 0.5]
        return out

    exported = export(Function(program), (X, SRC, SRC + 1)).graph
    assert any(node.target is operator.eq for node in exported.nodes)
    assert Rewritten(program, X, SRC, SRC + 1).copies_without_count()


def test_masked_select_picks_too():
    def program(x, src, mask):
        out = x.clone()
        out[mask] = torch.masked_select(src, mask).to(torch.float64).to(torch.float32)
        return out

    assert Rewritten(program, X, SRC, MASK).copies_without_count()


@pytest.mark.parametrize(
    "widen",
    [
        lambda m: m.unsqueeze(-1).expand(3, 4),
        lambda m: m[:, None],
        lambda m: m.view(3, 1).expand(3, 4),
    ],
)
def test_masked_scatter_of_the_masks_own_picks(widen):
    def program(x, src, mask):
        return x.masked_scatter(widen(mask), src[mask] + 1)

    assert Rewritten(program, X, SRC, MASK[:, 2]).copies_without_count()


def test_inside_cond_branches():
    def program(x, src, mask):
        return torch.cond(x.sum() > 0, copy, lambda x, src, mask: x * 2, (x, src, mask))

    done = Rewritten(program, X, SRC, MASK)
    assert done.copies_without_count()
    assert done.events[0].graph


def test_dynamic_sizes():
    def program(x, src):
        out = x.clone()
        out[x > 0] = src[x > 0] * 2
        return out

    rows, columns = Dim("rows", min=1, max=64), Dim("columns", min=1, max=64)
    done = Rewritten(program, X, SRC, dims=({0: rows, 1: columns},) * 2)
    assert done.copies_without_count()
    for shape in [(1, 1), (5, 2), (64, 64)]:
        x, src = torch.randn(shape), torch.randn(shape)
        assert torch.equal(done.program.module()(x, src), program(x, src))


def test_dynamic_sizes_with_a_mask_over_leading_dims():
    rows, columns = Dim("rows", max=64), Dim("columns", max=64)
    dims = ({0: rows, 1: columns}, {0: rows, 1: columns}, {0: rows})
    done = Rewritten(copy, X, SRC, MASK[:, 0], dims=dims)
    assert done.copies_without_count()
    x, src, mask = torch.randn(7, 9), torch.randn(7, 9), torch.arange(7) > 3
    assert torch.equal(done.program.module()(x, src, mask), copy(x, src, mask))


def test_a_copy_from_the_result_of_a_copy():
    def program(x, src, mask):
        return copy(src, copy(x, src, mask) * 3, mask)

    done = Rewritten(program, X, SRC, MASK)
    assert done.fired == 2
    assert done.copies_without_count()


def test_a_mask_that_is_itself_made_by_a_masked_copy():
    def program(x, src, mask):
        both = copy(mask, x > 0, src > 5)
        return copy(x, src, both)

    done = Rewritten(program, X, SRC, MASK)
    assert done.fired == 2
    assert done.copies_without_count()


def test_picks_that_several_puts_use_are_made_once():
    def program(x, src, mask):
        picks = src[mask].exp()
        a, b = x.clone(), x + 1
        a[mask] = picks
        b[mask] = picks * 2
        return a + b

    done = Rewritten(program, X, SRC, MASK)
    assert done.fired == 2
    assert done.copies_without_count()
    assert done.ops.count(aten.exp.default) == 1


def test_what_was_rewritten_lowers_on():
    done = Rewritten(copy, X, SRC, MASK)
    again = done.program.run_decompositions()
    assert torch.equal(again.module()(X, SRC, MASK), copy(X, SRC, MASK))
    assert not any("index" in str(node.target) for node in again.graph.nodes)


def test_a_whole_channels_last_program():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    assert Rewritten(copy, x, x * 2, x > 0).copies_without_count()
