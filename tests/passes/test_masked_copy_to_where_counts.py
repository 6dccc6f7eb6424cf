"""masked-copy-to-where: when the index and the checks of its count may go."""

import operator

import pytest
import torch
from masked_copies import MASK, SRC, Rewritten, View, X, make_graph

aten = torch.ops.aten


def keeps_index(reason, function, *inputs):
    done = Rewritten(function, *inputs)
    assert done.fired == 1
    assert done.has(aten.index.Tensor)
    assert any(reason in declined for declined in done.declined), done.declined
    return done


def test_a_users_check_that_a_mask_can_fail_keeps_index_and_check():
    def at_least_one(x, src, mask):
        picks = src[mask]
        torch._check(picks.shape[0] >= 1)
        out = x.clone()
        out[mask] = picks
        return out

    def exactly(x, src, mask):
        picks = src[mask]
        torch._check(picks.shape[0] == 5)
        out = x.clone()
        out[mask] = picks
        return out

    for program in (at_least_one, exactly):
        done = keeps_index("checks its count", program, X, SRC, MASK)
        assert done.has(aten._assert_scalar.default)
        with pytest.raises(RuntimeError, match="Runtime assertion"):
            done.program.module()(X, SRC, MASK & False)


def test_a_users_check_that_every_mask_passes_goes():
    def program(x, src, mask):
        picks = src[mask]
        torch._check(picks.shape[0] <= 12)
        torch._check(picks.shape[0] * 1 >= 0)
        out = x.clone()
        out[mask] = picks
        return out

    assert Rewritten(program, X, SRC, MASK).copies_without_count()


def test_a_check_that_reads_another_size_too_keeps_the_index():
    def program(x, src, mask, other):
        picks = src[mask]
        torch._check(picks.shape[0] <= other.nonzero().shape[0])
        out = x.clone()
        out[mask] = picks
        return out

    keeps_index("checks its count", program, X, SRC, MASK, torch.ones(20))


def test_a_check_against_the_count_of_another_mask_keeps_both():
    def program(x, src, mask, other):
        picks = src[mask]
        torch._check(picks.shape[0] == src[other].shape[0])
        out = x.clone()
        out[mask] = picks
        return out

    keeps_index("checks its count", program, X, SRC, MASK, MASK.flip(0).flip(1) & True)


@pytest.mark.parametrize("check", ["metadata", "tail", "half", "exactly"])
def test_checks_that_are_not_of_the_count_or_not_of_any_mask_keep_the_index(check):
    module = make_graph(copies=1, history=1, rank=2)
    (picks,) = module.graph.find_nodes(op="call_function", target=aten.index.Tensor)
    (put,) = module.graph.find_nodes(op="call_function", target=aten.index_put.default)

    def call(target, *arguments, value=None):
        node = module.graph.call_function(target, arguments)
        node.meta["val"] = value
        return node

    with module.graph.inserting_before(put):
        if check == "metadata":
            call(aten._assert_tensor_metadata.default, picks, [3, 8])
        else:
            size = call(aten.sym_size.int, picks, 1 if check == "tail" else 0, value=8)
            if check == "half":
                size = call(operator.floordiv, size, 2, value=4)
            compare = operator.eq if check == "exactly" else operator.le
            holds = call(compare, size, 64, value=True)
            call(aten._assert_scalar.default, holds, "at most 64")
    view = View.of(module)
    assert view.fired == 1
    assert "checks its count" in view.declined[0]


def test_another_reader_of_the_picks_keeps_the_index():
    def program(x, src, mask):
        picks = src[mask]
        out = x.clone()
        out[mask] = picks - picks.mean()
        return out

    keeps_index("mean reads it", program, X, SRC, MASK)


def test_a_reader_of_the_count_keeps_the_index():
    def program(x, src, mask):
        picks = src[mask]
        out = x * picks.shape[0]
        out[mask] = picks
        return out

    keeps_index("reads it", program, X, SRC, MASK)


def test_a_decline_names_the_users_line():
    class Fill(torch.nn.Module):
        def forward(self, x, src, mask):
            out = x.clone()
            out[mask] = 3
            return out

    (event,) = Rewritten(Fill(), X, SRC, MASK).events
    assert event.source is not None
    assert event.source.code == "out[mask] = 3"
