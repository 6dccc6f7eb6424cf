"""dilated-convolution: every so many rows and columns are an image of their own."""

import pytest
import torch
from torch import nn

from graftwork.backend.audit import audit_program
from graftwork.lowering import lower
from graftwork.plugins.errors import NotLowerableError
from graftwork.plugins.verification import assert_verified

ID = "dilated-convolution"


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


@pytest.mark.parametrize("padding", [0, 3, "same", "valid"])
@pytest.mark.parametrize("dilation", [2, (1, 3), (2, 5)])
def test_a_module_over_batches_and_single_images(padding, dilation, rewrite):
    module = nn.Conv2d(3, 5, 3, padding=padding, dilation=dilation).eval()
    for shape in [(2, 3, 14, 13), (3, 14, 13)]:
        x = torch.randn(shape)
        program = rewrite(ID, lambda x: module(x), x, target="cuda")
        assert program.fired == 1
        torch.testing.assert_close(program(x), module(x).detach())


def lower_it(folder, **settings):
    arguments = {"target": "cuda", "archs": ["sm_90"], "directory": folder, "verify": False}
    model = nn.Conv2d(8, 16, 3, padding="same", dilation=2)
    return lower(model.eval(), (torch.randn(2, 8, 12, 12),), **arguments, **settings)


def test_it_lowers_to_cuda(tmp_path, deep):
    lower_it(tmp_path)
    (program,), (data,) = tmp_path.glob("*.pte"), tmp_path.glob("*.ptd")
    assert audit_program(program, data).ok


def test_without_the_plugin_it_does_not(tmp_path, deep):
    with pytest.raises(NotLowerableError, match="No choices"):
        lower_it(tmp_path, disable=[ID])
