"""Parts of one buffer are outputs of their own."""

import pytest
import torch
from torch import nn

from graftwork.lowering import lower
from graftwork.plugins import torch_private


class Parts(nn.Module):
    def forward(self, x):
        y = x * 2
        left, right = (x + 3).split(3, 1)
        return y[8:], y.t(), left, right


@pytest.mark.parametrize("enabled", [True, False])
def test_no_output_is_a_view(enabled, tmp_path, monkeypatch, deep):
    """As views they fail at the first execution: SlimTensor storage_offset must be 0."""
    code = []
    graph = torch_private.inductor_graph().GraphLowering
    stock = graph.codegen_with_cpp_wrapper

    def codegen(self):
        result = stock(self)
        code.append(str(result[0].value))
        return result

    monkeypatch.setattr(graph, "codegen_with_cpp_wrapper", codegen)
    lower(
        Parts(),
        (torch.randn(16, 6),),
        target="cuda",
        archs=["sm_90"],
        directory=tmp_path,
        disable=[] if enabled else ["own-outputs"],
        verify=False,
    )
    views = [
        line for line in code[0].splitlines() if "output_handles[" in line and "= var_" in line
    ]
    assert bool(views) is not enabled
