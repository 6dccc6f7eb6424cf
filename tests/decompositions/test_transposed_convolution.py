"""transposed-convolution: phases of the result are channels of plain convolutions."""

import pytest
import torch
from torch import nn

from graftwork.backend.audit import audit_program
from graftwork.lowering import lower
from graftwork.plugins.errors import NotLowerableError
from graftwork.plugins.verification import assert_verified

ID = "transposed-convolution"


def test_properties_hold(examples):
    assert_verified(ID, examples=examples)


@pytest.mark.parametrize(
    ("kernel", "stride", "convolutions"), [(2, 2, 1), (4, 2, 1), (3, 2, 4), (3, 1, 1), (1, 2, 1)]
)
def test_no_tap_is_multiplied_by_an_inserted_zero(kernel, stride, convolutions, rewrite):
    """As many taps in all as the kernel has, and no convolution for phases without any."""
    module, x = nn.ConvTranspose2d(3, 5, kernel, stride).eval(), torch.randn(2, 3, 6, 7)
    program = rewrite(ID, lambda x: module(x), x, target="cuda")
    found = program.program.graph.find_nodes(
        op="call_function", target=torch.ops.aten.convolution.default
    )
    kernels = [node.args[1].meta["val"].shape for node in found]
    assert len(found) == convolutions
    assert sum(shape.numel() for shape in kernels) == module.weight.numel()
    torch.testing.assert_close(program(x), module(x).detach())


def lower_it(folder, **settings):
    arguments = {"target": "cuda", "archs": ["sm_90"], "directory": folder, "verify": False}
    model = nn.ConvTranspose2d(8, 16, 3, 2, padding=1, output_padding=1)
    return lower(model.eval(), (torch.randn(2, 8, 12, 12),), **arguments, **settings)


def test_it_lowers_to_cuda(tmp_path, deep):
    lower_it(tmp_path)
    (program,), (data,) = tmp_path.glob("*.pte"), tmp_path.glob("*.ptd")
    assert audit_program(program, data).ok


def test_without_the_plugin_it_does_not(tmp_path, deep):
    with pytest.raises(NotLowerableError, match="No choices"):
        lower_it(tmp_path, disable=[ID])
