"""is-all-true: `all` over bool."""

import torch

from graftwork.plugins.verification import assert_verified

ID = "is-all-true"
aten = torch.ops.aten


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


def test_becomes_all(rewrite):
    program = rewrite(ID, lambda x: aten._is_all_true(x > 0), torch.ones(3, 2))
    assert aten.all.default in program.ops
    assert program(torch.ones(3, 2)).item() is True
    assert program(torch.tensor([[1.0, 1], [1, 0], [1, 1]])).item() is False


def test_other_reductions_are_left_alone(rewrite):
    program = rewrite(ID, lambda x: (x.all(), aten._is_any_true(x)), torch.ones(3) > 0)
    assert program.fired == 0
