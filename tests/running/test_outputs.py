"""A loaded program gives what the model did, also where an output is no tensor."""

import pytest
import torch
from torch import nn

import graftwork

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
