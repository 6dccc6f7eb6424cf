"""A matrix product lowers for a GPU with few processors."""

import pytest
import torch
from torch import nn

from graftwork.backend.deviceless import deviceless
from graftwork.backend.patches import small_gpu_templates as patch
from graftwork.lowering import lower
from graftwork.plugins import torch_private
from graftwork.plugins.errors import NotLowerableError


def test_a_gpu_with_16_processors_counts_as_large_enough():
    utils = torch_private.inductor_utils()
    with deviceless("sm_87"):
        assert not utils.is_big_gpu(torch.device("cuda"))
        with patch.patch_compile():
            assert utils.is_big_gpu(torch.device("cuda"))
        assert not utils.is_big_gpu(torch.device("cuda"))


@pytest.mark.parametrize("enabled", [True, False])
def test_a_linear_layer_for_a_jetson(enabled, tmp_path, deep):
    arguments = {"target": "cuda", "archs": ["sm_87"], "directory": tmp_path, "verify": False}
    disable = [] if enabled else ["small-gpu-templates"]
    if enabled:
        lower(nn.Linear(64, 32), (torch.randn(16, 64),), disable=disable, **arguments)
        return
    with pytest.raises(NotLowerableError, match="addmm"):
        lower(nn.Linear(64, 32), (torch.randn(16, 64),), disable=disable, **arguments)
