"""recurrent-cells: one step of GRUCell and LSTMCell, written out."""

import pytest
import torch
from torch import nn

from graftwork.backend.audit import audit_program
from graftwork.lowering import lower
from graftwork.plugins.errors import NotLowerableError
from graftwork.plugins.verification import assert_verified

ID = "recurrent-cells"


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


@pytest.mark.parametrize("cell", [nn.GRUCell, nn.LSTMCell])
@pytest.mark.parametrize("bias", [True, False])
def test_a_module_over_batches_and_single_rows(cell, bias, rewrite):
    module = cell(5, 7, bias=bias).eval()
    for shape in [(3, 5), (5,)]:
        x = torch.randn(shape)
        program = rewrite(ID, lambda x: module(x), x)
        assert program.fired == 1
        torch.testing.assert_close(
            program(x), module(x).detach() if cell is nn.GRUCell else module(x)
        )


class Policy(nn.Module):
    """A recurrent policy's step: the state goes in and out."""

    def __init__(self):
        super().__init__()
        self.gru, self.lstm = nn.GRUCell(16, 32), nn.LSTMCell(32, 32)

    def forward(self, x, h, c):
        hidden = self.gru(x, h)
        return self.lstm(hidden, (h, c))


INPUTS = (torch.randn(2, 16), torch.randn(2, 32), torch.randn(2, 32))


def lower_it(folder, **settings):
    arguments = {"target": "cuda", "archs": ["sm_90"], "directory": folder, "verify": False}
    return lower(Policy().eval(), INPUTS, **arguments, **settings)


def test_a_recurrent_policy_lowers_to_cuda(tmp_path, deep):
    lower_it(tmp_path)
    (program,), (data,) = tmp_path.glob("*.pte"), tmp_path.glob("*.ptd")
    assert audit_program(program, data).ok


def test_without_the_plugin_it_does_not(tmp_path, deep):
    with pytest.raises(NotLowerableError, match="fused_gru_cell"):
        lower_it(tmp_path, disable=[ID])
