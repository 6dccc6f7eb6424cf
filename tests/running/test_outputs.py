"""A loaded program gives what the model did, also where an output is no tensor."""

import pytest
import torch
from torch import nn

import graftwork
from graftwork.backend.outputs import model_outputs
from graftwork.backend.signature import Constant, Number, Signature, record_signature
from graftwork.plugins.errors import NotLowerableError

ROWS = torch.export.Dim("rows", min=2, max=9)
X = torch.randn(5, 4)


def lowered(model, target, folder, **arguments):
    torch.manual_seed(0)
    return graftwork.load(
        graftwork.lower(model, (X,), target=target, directory=folder, **arguments).artifact
    )


class Nothing(nn.Module):
    """As of attention without weights (`need_weights=False`)."""

    def forward(self, x):
        return {"weights": None, "values": x + 1, "rest": [None, x * 2]}


@pytest.mark.parametrize("target", ["cpu", "aoti"])
def test_an_output_that_is_none(target, tmp_path):
    """ValueError else: PyCapsule_New called with null pointer."""
    found = lowered(Nothing(), target, tmp_path)(X)
    assert found["weights"] is None and found["rest"][0] is None
    assert torch.equal(found["values"], X + 1) and torch.equal(found["rest"][1], X * 2)


class Constants(nn.Module):
    def forward(self, x):
        return 3, x + 1, float("inf"), True, (None, x.shape[1])


@pytest.mark.parametrize("target", ["cpu", "aoti"])
def test_an_output_that_is_the_same_in_every_call(target, tmp_path):
    """InductorError else: AssertionError, with the outputs as they are in Inductor."""
    found = lowered(Constants(), target, tmp_path)(X)
    assert torch.equal(found[1], X + 1)
    assert (found[0], *found[2:]) == (3, float("inf"), True, (None, 4))
    assert type(found[0]) is int and type(found[3]) is bool


class Numbers(nn.Module):
    def forward(self, x):
        return x + 1, x.shape[0], x.shape[0] * 2.5, x.shape[0] > 3, x.max().item()


@pytest.mark.parametrize("target", ["cpu", "aoti"])
def test_an_output_that_is_a_number(target, tmp_path):
    """A package of AOTInductor gives tensors for them."""
    program = lowered(Numbers(), target, tmp_path, dynamic_shapes=({0: ROWS},))
    for x in (X, X[:3]):
        for ours, models in zip(program(x)[1:], Numbers()(x)[1:], strict=True):
            assert type(ours) is type(models) and ours == models


def test_numbers_are_recorded_and_older_records_are_read():
    signature = record_signature(torch.export.export(Numbers(), (X,), dynamic_shapes=({0: ROWS},)))
    kinds = ("int", "float", "bool", "float")
    assert signature.outputs == (None, *map(Number, kinds))
    record = signature.to_json()
    assert Signature.from_json(record) == signature
    record["outputs"] = [None, {"constant": 3}]
    assert Signature.from_json(record).outputs == (None, Constant("", 3))


def test_a_number_that_the_file_calls_constant_is_the_one_of_the_call():
    """What a .pte of another writer records of a number is only its first value."""
    signature = Signature(None, (Constant("", 0), None), "", "")
    assert model_outputs(signature, [5, None]) == [5, None]
    assert model_outputs(signature, [None]) == [0, None]


class Returns(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def forward(self, x):
        return self.value


@pytest.mark.parametrize("value", [None, 3])
def test_executorch_plans_no_program_without_tensors(value, tmp_path):
    """AssertionError else: graph_output_allocated not set."""
    with pytest.raises(NotLowerableError, match="forward returns no tensor.*take target aoti"):
        lowered(Returns(value), "cpu", tmp_path)


def test_aotinductor_takes_a_program_without_tensors(tmp_path):
    assert lowered(Returns(3), "aoti", tmp_path)(X) == 3
