"""Numbers read by the host and padded buffers lower for the stock runtime."""

import pytest
import torch
from torch import nn

from graftwork.lowering import lower
from graftwork.plugins.errors import NotLowerableError


class Picks(nn.Module):
    def forward(self, x):
        return x[x > 0]


class Padded(nn.Module):
    """A product whose second operand is padded where it is computed."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(1001, 2003), nn.Linear(2003, 1001)

    def forward(self, x):
        return self.second(nn.functional.gelu(self.first(x)))


def lowered(model, inputs, folder, **arguments):
    return lower(
        model, inputs, target="cuda", archs=["sm_90"], directory=folder, verify=False, **arguments
    )


def test_a_mask_index_lowers(tmp_path):
    """pytorch/executorch#19907 and others: the count is read with aoti_torch_item_int64."""
    lowered(Picks(), (torch.randn(64),), tmp_path)


def test_without_it_the_audit_stops_the_mask_index(tmp_path, deep):
    with pytest.raises(NotLowerableError, match="aoti_torch_item_int64"):
        lowered(Picks(), (torch.randn(64),), tmp_path, disable=["runtime-calls"])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("enabled", [True, False])
def test_a_buffer_that_is_padded_in_place(enabled, tmp_path, deep):
    arguments = {} if enabled else {"disable": ["runtime-calls"]}
    inputs = (torch.randn(1000, 1001, dtype=torch.float16),)
    if enabled:
        lowered(Padded().half(), inputs, tmp_path)
        return
    with pytest.raises(NotLowerableError, match="aoti_torch_as_strided"):
        lowered(Padded().half(), inputs, tmp_path, **arguments)
