"""Every output reaches the runtime contiguous, and so the program says."""

from dataclasses import dataclass

import pytest
import torch
from torch import nn

from graftwork.backend.outputs import (
    is_contiguous,
    make_outputs_contiguous,
    return_plain_tuples,
)
from graftwork.lowering import lower
from graftwork.running.loading import load


class Parts(nn.Module):
    def forward(self, x):
        y = x * 2
        left, right = (x + 3).split(3, 1)
        return y[8:], y.t(), left, right


def test_outputs_with_other_strides_are_copied():
    x = torch.randn(16, 6)
    program = torch.export.export(Parts(), (x,))
    assert make_outputs_contiguous(program) == 3
    program.validate()
    outputs = program.module()(x)
    assert all(out.is_contiguous() for out in outputs)
    for ours, theirs in zip(outputs, Parts()(x), strict=True):
        assert torch.equal(ours, theirs)
    assert make_outputs_contiguous(program) == 0


def test_dynamic_sizes_and_sizes_of_one():
    rows = torch.export.Dim("rows", min=2)
    program = torch.export.export(
        nn.Flatten(), (torch.randn(4, 3, 2),), dynamic_shapes=({0: rows},)
    )
    assert make_outputs_contiguous(program) == 0
    assert is_contiguous(torch.empty(1, 5).t())
    assert is_contiguous(torch.empty_strided((1, 3), (77, 1)))
    assert not is_contiguous(torch.empty(2, 3).t())


class Largest(nn.Module):
    """What torch.max returns has a class of its own; so has what it holds."""

    def forward(self, x):
        return {"rows": torch.max(x, 1), "columns": [torch.max(x, 0)]}


def test_a_return_type_of_torch_becomes_a_tuple():
    x = torch.randn(3, 5)
    program = torch.export.export(Largest(), (x,))
    return_plain_tuples(program)
    found = program.module()(x)
    assert type(found["rows"]) is tuple
    assert type(found["columns"][0]) is tuple
    assert torch.equal(found["rows"][1], x.max(1).indices)


@dataclass
class Found:
    boxes: torch.Tensor
    scores: torch.Tensor | None = None


torch.export.register_dataclass(Found, serialized_type_name="graftwork.tests.Found")


class Finds(nn.Module):
    def forward(self, x):
        return Found(x + 1)


@pytest.mark.parametrize("target", ["cpu", "aoti"])
def test_a_container_that_leaves_out_none_lowers_and_runs(target, tmp_path):
    """A registered dataclass, as Hugging Face's ModelOutput, has no leaf for a field of None.

    Refused else: `leaves` has length 1 but the spec refers to a pytree that holds 0 items.
    """
    x = torch.randn(3)
    found = load(lower(Finds(), (x,), target=target, directory=tmp_path).artifact)(x)
    assert isinstance(found, Found) and found.scores is None
    assert torch.equal(found.boxes, x + 1)


@pytest.mark.parametrize("target", ["cpu", "aoti"])
def test_a_program_that_returns_one_lowers_and_runs(target, tmp_path):
    """Refused else: no registered serialization name for <class 'torch.return_types.max'>."""
    x = torch.randn(3, 5)
    lowered = lower(Largest(), (x,), target=target, directory=tmp_path)
    found = load(lowered.report.artifact)(x)
    assert torch.equal(found["rows"][0], x.max(1).values)
