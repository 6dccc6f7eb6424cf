"""What no input changes is computed before a program is built, and nothing else is."""

import torch
from torch.export import Dim

from graftwork.backend.constants import LARGEST, fold_constants

aten = torch.ops.aten


def export(function, *inputs, **rest):
    class Module(torch.nn.Module):
        def forward(self, x):
            return function(x)

    return torch.export.export(Module(), inputs, strict=False, **rest).run_decompositions({})


def targets(program):
    return [node.target for node in program.graph.nodes if node.op == "call_function"]


def check(function, *inputs, **rest):
    """Fold, compare with eager, give what is left."""
    folded = fold_constants(export(function, *inputs, **rest))
    folded.validate()
    torch.testing.assert_close(folded.module()(*inputs), function(*inputs))
    return targets(folded)


def test_what_comes_from_arange_alone_becomes_one_constant():
    left = check(lambda x: x * (torch.arange(4) * 0.5 + 1).cos(), torch.randn(3, 4))
    assert left == [aten.mul.Tensor]


def test_lifted_constants_take_part():
    left = check(lambda x: x + torch.tensor([1.0, 2.0]).exp(), torch.randn(2))
    assert left == [aten.add.Tensor]


def test_one_creation_that_is_read_stays():
    assert aten.arange.default in check(lambda x: x + torch.arange(4), torch.randn(4))


def test_random_draws_stay():
    assert aten.rand.default in check(lambda x: x + torch.rand(3) * 0, torch.zeros(3))


def test_uninitialised_values_stay():
    left = check(lambda x: x + torch.empty(3).isnan() * 0, torch.zeros(3))
    assert aten.empty.memory_format in left


def test_sizes_that_depend_on_values_stay():
    left = check(lambda x: x + torch.arange(4).nonzero().sum() * 2, torch.zeros(3))
    assert aten.nonzero.default in left


def test_an_expanded_value_is_stored_whole():
    program = export(lambda x: x + (torch.arange(3) * 2).expand(2, 3), torch.zeros(2, 3))
    folded = fold_constants(program)
    (stored,) = (folded.constants[spec.target] for spec in folded.graph_signature.input_specs[:1])
    assert stored.shape == (2, 3) and stored.is_contiguous()


def test_large_values_stay():
    count = LARGEST // 4 + 1
    left = check(lambda x: x + torch.arange(count).to(torch.float32) * 2, torch.zeros(count))
    assert aten.arange.default in left and aten.mul.Tensor in left


def test_dynamic_sizes_stay():
    left = check(
        lambda x: x + torch.arange(x.shape[0]) * 2,
        torch.randn(4),
        dynamic_shapes=({0: Dim("n", min=2, max=8)},),
    )
    assert aten.mul.Tensor in left


def test_a_returned_constant_stays_computed():
    def function(x):
        grid = torch.arange(3) * 2
        return x + grid, grid

    assert aten.mul.Tensor in check(function, torch.randn(3))


def test_a_buffer_that_is_written_is_no_constant():
    class Counter(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("count", torch.zeros(1))

        def forward(self, x):
            self.count += 1
            return x + self.count * 2

    program = torch.export.export(Counter(), (torch.zeros(1),), strict=False)
    folded = fold_constants(program.run_decompositions({})).module()
    assert [folded(torch.zeros(1)).item() for _ in range(3)] == [2.0, 4.0, 6.0]


def test_the_constants_of_the_program_given_are_left_as_they_were():
    program = export(lambda x: x * (torch.arange(4) * 0.5), torch.randn(4))
    before = dict(program.constants)
    fold_constants(program)
    assert program.constants == before
