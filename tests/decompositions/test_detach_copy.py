"""detach-copy: in inference code detach is its input, and detach_copy a clone of it."""

import torch

from graftwork.plugins import LoweringContext, rewrite_program
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.verification import assert_verified

ID = "detach-copy"
aten = torch.ops.aten


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


def test_detach_vanishes_and_the_copy_is_a_clone(rewrite):
    x = torch.randn(3, 2).t()
    program = rewrite(ID, lambda x: aten.detach_copy(x.detach()) * 2, x)
    assert program.fired == 2
    assert program.ops == [aten.clone.default, aten.mul.Tensor]
    assert torch.equal(program(x), x * 2)
    assert program(x).stride() == (aten.detach_copy(x) * 2).stride() == (3, 1)


def test_a_copy_of_a_buffer_that_is_written_later_keeps_what_it_was():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(2))

        def forward(self, x):
            before = aten.detach_copy(self.count)
            self.count.add_(x)
            return before

    x = torch.ones(2)
    exported = torch.export.export(Counter(), (x,))
    selection = select_plugin_alone(find_plugin(ID))
    program, log = rewrite_program(exported, selection, LoweringContext())
    module = program.module()
    assert log.fired(ID) == 1
    assert module(x).tolist() == [0, 0]
    assert module(x).tolist() == [1, 1]


def test_an_input_detached_and_returned(rewrite):
    x = torch.randn(3)
    program = rewrite(ID, lambda x: (x.detach(), aten.detach_copy(x)), x)
    assert all(torch.equal(result, x) for result in program(x))


def test_clones_are_left_alone(rewrite):
    assert rewrite(ID, lambda x: x.clone() + x.view(-1), torch.randn(3)).fired == 0
