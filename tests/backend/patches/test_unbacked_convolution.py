"""A convolution of as many images as a mask keeps equals eager in an AOTInductor package."""

import pytest
import torch
from torch import nn

from graftwork.backend.patches import unbacked_convolution as patch
from graftwork.lowering import lower
from graftwork.plugins import torch_private
from graftwork.plugins.errors import VerificationError


class Patches(nn.Module):
    """Patch embedding of the images that are not padding."""

    def __init__(self, memory_format=torch.contiguous_format):
        super().__init__()
        self.embed = nn.Conv2d(3, 32, 8, 8)
        self.memory_format = memory_format

    def forward(self, x, mask):
        kept = x[mask].to(memory_format=self.memory_format)
        return self.embed(kept).flatten(2).transpose(1, 2)


INPUTS = (torch.randn(3, 3, 32, 32), torch.tensor([True, False, True]))


def lower_it(folder, memory_format=torch.contiguous_format, **settings):
    model = Patches(memory_format).eval()
    return lower(model, INPUTS, target="aoti", directory=folder, **settings)


def test_it_equals_eager(tmp_path):
    lower_it(tmp_path)


def test_so_does_one_whose_input_is_channels_last(tmp_path, deep):
    lower_it(tmp_path, torch.channels_last)


def test_without_the_patch_it_does_not(tmp_path, deep):
    with pytest.raises(VerificationError):
        lower_it(tmp_path, disable=["unbacked-convolution"])


def convolution(dynamic):
    batch = torch.export.Dim("batch", min=2, max=9) if dynamic else None
    program = torch.export.export(
        nn.Conv2d(3, 32, 8, 8), (INPUTS[0],), dynamic_shapes=({0: batch},) if dynamic else None
    )
    return program.run_decompositions().module()


@pytest.mark.parametrize("dynamic", [False, True])
def test_other_convolutions_keep_the_layout_that_inductor_chooses(dynamic):
    decide = torch_private.inductor_graph().GraphLowering.decide_layout_opt
    module = convolution(dynamic)
    before = decide(module, is_inference=True)
    with patch.patch_compile():
        held = torch_private.inductor_graph().GraphLowering.decide_layout_opt
        assert held is not decide
        assert held(module, is_inference=True) == before
    assert torch_private.inductor_graph().GraphLowering.decide_layout_opt is decide
