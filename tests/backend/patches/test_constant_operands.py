"""A matrix product with a constant matrix lowers to CUDA."""

import pytest
import torch
from torch import nn

from graftwork.backend.audit import audit_program
from graftwork.lowering import lower
from graftwork.plugins.errors import NotLowerableError


class FirstQueries(nn.Module):
    """As in DETR, whose decoder starts from zeros."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 48)

    def forward(self, x):
        return x + self.project(torch.zeros(40, 64))


class Positions(nn.Module):
    """No constant: every column its own number."""

    def __init__(self):
        super().__init__()
        self.project = nn.Linear(64, 48)

    def forward(self, x):
        return x + self.project(torch.arange(64).float().expand(40, 64))


def lower_it(model, folder, **settings):
    arguments = {"target": "cuda", "archs": ["sm_90"], "directory": folder, "verify": False}
    return lower(model, (torch.randn(40, 48),), **arguments, **settings)


def kernels(folder):
    (program,), (data,) = folder.glob("*.pte"), folder.glob("*.ptd")
    (library,) = audit_program(program, data).libraries
    return {code.kernel for code in library.kernels}


def test_it_lowers(tmp_path):
    lower_it(FirstQueries(), tmp_path)
    assert len(kernels(tmp_path)) == 2


def test_without_the_patch_the_kernel_does_not_compile(tmp_path, deep):
    with pytest.raises(NotLowerableError, match="autotuning|broadcast"):
        lower_it(FirstQueries(), tmp_path, disable=["constant-operands"])


@pytest.mark.parametrize("enabled", [True, False])
def test_other_operands_are_fused_as_before(enabled, tmp_path, deep):
    lower_it(Positions(), tmp_path, disable=[] if enabled else ["constant-operands"])
    assert len(kernels(tmp_path)) == 1
