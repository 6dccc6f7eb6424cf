"""A value that as_strided reads is stored with the strides it was traced with."""

import torch
from torch import nn

from graftwork.backend.deviceless import deviceless, move_to_gpu
from graftwork.backend.patches import fixed_strides as patch
from graftwork.plugins import torch_private


class Flat(nn.Module):
    """A large enough value, stored, and read flat: Inductor would pad its first stride."""

    def forward(self, x):
        y = x.sin().contiguous()
        y = torch.ops.aten.as_strided_copy(y, y.shape, y.stride())
        return y.flatten()[torch.arange(0, 2520, 7, device=x.device)] * 2


def wrapper(tmp_path, held):
    """The C++ that Inductor writes for the GPU."""
    program = torch.export.export(Flat(), (torch.randn(2, 3, 14, 30),))
    texts = []
    graph = torch_private.inductor_graph().GraphLowering
    stock = graph.codegen_with_cpp_wrapper

    def codegen(self):
        result = stock(self)
        texts.append(str(result[0].value))
        raise Stop

    class Stop(Exception):
        pass

    graph.codegen_with_cpp_wrapper = codegen
    try:
        with deviceless("sm_90"):
            moved = move_to_gpu(program)
            options = {"aot_inductor.output_path": str(tmp_path)}
            inputs = tuple(
                node.meta["val"] for node in moved.graph.nodes if node.op == "placeholder"
            )
            try:
                if held:
                    with patch.patch_compile():
                        torch._inductor.aot_compile(moved.module(), inputs, options=options)
                else:
                    torch._inductor.aot_compile(moved.module(), inputs, options=options)
            except Exception:
                if not texts:
                    raise
    finally:
        graph.codegen_with_cpp_wrapper = stock
    (text,) = texts
    return text


def test_a_value_read_by_strides_is_not_padded(tmp_path):
    assert "1280L" not in wrapper(tmp_path, held=True)


def test_without_the_patch_it_is(tmp_path, deep):
    assert "1280L" in wrapper(tmp_path, held=False)
