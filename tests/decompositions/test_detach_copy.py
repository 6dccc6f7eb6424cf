"""detach-copy: in inference code both forms are their input."""

import torch

from graftwork.plugins.verification import assert_verified

ID = "detach-copy"
aten = torch.ops.aten


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


def test_both_forms_vanish(rewrite):
    x = torch.randn(3)
    program = rewrite(ID, lambda x: aten.detach_copy(x.detach()) * 2, x)
    assert program.fired == 2
    assert program.ops == [aten.mul.Tensor]
    assert torch.equal(program(x), x * 2)


def test_an_input_detached_and_returned(rewrite):
    x = torch.randn(3)
    program = rewrite(ID, lambda x: (x.detach(), aten.detach_copy(x)), x)
    assert all(torch.equal(result, x) for result in program(x))


def test_clones_are_left_alone(rewrite):
    assert rewrite(ID, lambda x: x.clone() + x.view(-1), torch.randn(3)).fired == 0
