"""reshape-copy: a contiguous copy in the new shape, never an alias."""

import functools

import pytest
import torch

from graftwork.plugins.verification import assert_verified

ID = "reshape-copy"
aten = torch.ops.aten


@pytest.fixture
def rewritten(rewrite):
    return functools.partial(rewrite, ID)


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


@pytest.mark.parametrize(
    ("view", "size"),
    [
        (lambda x: x, [6, 4]),
        (lambda x: x.t(), [-1]),
        (lambda x: x[:, 1:], [10, -1]),
        (lambda x: x.t(), [2, 3, 4]),
    ],
)
def test_result_is_a_contiguous_copy(rewritten, view, size):
    x = torch.randn(4, 6)
    program = rewritten(lambda x: aten._reshape_copy(view(x), size), x)
    result = program(x)
    assert torch.equal(result, view(x).reshape(size))
    assert result.is_contiguous()
    assert result.untyped_storage().data_ptr() != x.untyped_storage().data_ptr()
    assert aten._reshape_copy.default not in program.ops


def test_data_dependent_sizes(rewritten):
    def rows(x):
        places = x.nonzero()
        return aten._reshape_copy(places.t(), [2 * places.shape[0]])

    x = torch.tensor([[1.0, 0.0], [2.0, 3.0]])
    program = rewritten(rows, x)
    assert program.fired == 1
    for other in (x, torch.zeros(2, 2), torch.ones(2, 2)):
        assert torch.equal(program(other), rows(other))


def test_plain_reshapes_are_left_alone(rewritten):
    assert rewritten(lambda x: x.t().reshape(-1), torch.randn(2, 3)).fired == 0
