"""A number read from a tensor keeps its digits on the way into a kernel."""

import types

import pytest
import torch
from torch import nn

from graftwork.backend.patches import float_scalars as patch
from graftwork.plugins import torch_private

VALUES = (1 / 3, 1e-300, 16777217.0, -0.0, float("inf"))


class Scale(nn.Module):
    def forward(self, t):
        return torch.ones(3, dtype=torch.float64) * t.item()


def compiled(folder):
    program = torch.export.export(Scale(), (torch.tensor(1.5, dtype=torch.float64),))
    path = str(folder / "scale.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    return torch._inductor.aoti_load_package(path)


def test_a_float64_read_with_item_is_exact(tmp_path):
    """pytorch/pytorch#170289: 1/3 became 0.3333333432674408, 1e-300 became 0."""
    with patch.patch_compile():
        program = compiled(tmp_path)
    for value in VALUES:
        result = program(torch.tensor(value, dtype=torch.float64))
        assert torch.equal(result, torch.full((3,), value, dtype=torch.float64))


def test_without_it_digits_are_lost(tmp_path, deep):
    if not patch._is_needed():
        pytest.skip(f"torch {torch.__version__} keeps them")
    assert compiled(tmp_path)(torch.tensor(1 / 3, dtype=torch.float64))[0] != 1 / 3


def test_a_users_kernel_takes_a_python_float_as_its_launch_would():
    """pytorch/pytorch#190340: it was typed float64, and x * 0.1 differed from eager."""
    utils, common = torch_private.inductor_triton_utils(), torch_private.inductor_codegen_common()
    wrapper = torch_private.inductor_python_wrapper()
    seen = {}

    class Wrapper(wrapper):
        def __init__(self):
            pass

    def define(self):
        seen["user"] = utils.signature_of(common.SizeArg("scale", 0.1), size_dtype=None)

    graph = torch_private.inductor_graph()
    stock = wrapper.define_user_defined_triton_kernel
    wrapper.define_user_defined_triton_kernel = define
    try:
        with patch.patch_compile(), _current_device(graph):
            Wrapper().define_user_defined_triton_kernel()
            seen["own"] = utils.signature_of(common.SizeArg("scale", 0.1), size_dtype=None)
    finally:
        wrapper.define_user_defined_triton_kernel = stock
    assert seen["user"] == "fp32"
    assert seen["own"] == "fp64"


def _current_device(graph):
    return graph.V.set_graph_handler(types.SimpleNamespace(current_device=torch.device("cuda")))


@pytest.mark.parametrize(("kind", "parameter"), [("fp64", "double"), ("fp32", "float")])
def test_on_the_gpu_a_float_is_no_integer_on_its_way_to_the_kernel(kind, parameter, monkeypatch):
    """A scale of 1.5 was computed as 0: the library took it as an int64_t."""
    import sympy

    calls = torch_private.inductor_triton_calls()
    if not hasattr(calls.DeferredTritonCallWrapper, "_get_cpp_param_type"):
        pytest.skip(f"torch {torch.__version__} writes the parameter elsewhere")
    known = {"triton_meta": {"signature": {"ks0": kind, "ks1": "i64", "x": "*fp32"}}}
    monkeypatch.setattr(calls.CudaKernelParamCache, "get", lambda name: known)
    call = calls.DeferredTritonCallWrapper("call_k", "k", {}, [])
    with patch.patch_compile():
        assert call._get_cpp_param_type("ks0", sympy.Symbol) == f"{parameter} ks0"
        assert call._get_cpp_param_type("ks1", sympy.Symbol) == "int64_t ks1"
        assert call._get_cpp_param_type("x", torch.float32) == "const x_type_& x"
    assert call._get_cpp_param_type("ks0", sympy.Symbol) == "int64_t ks0"


@pytest.mark.parametrize(("kind", "parameter"), [("fp64", "double"), ("fp32", "float")])
def test_nor_where_torch_211_writes_the_parameter(kind, parameter, monkeypatch):
    from graftwork.backend.patching import Patches

    class Call:
        kernel_name = "k"

        def generate(self, wrapper):
            wrapper.prefix._lines += ["void call_k(", "    int64_t ks0,", "    int64_t ks1,"]

    calls = torch_private.inductor_triton_calls()
    known = {"triton_meta": {"signature": {"ks0": kind, "ks1": "i64"}}}
    monkeypatch.setattr(calls.CudaKernelParamCache, "get", lambda name: known)
    monkeypatch.setattr(calls, "DeferredTritonCallWrapper", Call)
    earlier = "    int64_t ks0,"  # another kernel's
    wrapper = types.SimpleNamespace(prefix=types.SimpleNamespace(_lines=[earlier]))
    patches = Patches()
    patch._on_the_gpu(patches)
    Call().generate(wrapper)
    patches.undo()
    written = ["void call_k(", f"    {parameter} ks0,", "    int64_t ks1,"]
    assert wrapper.prefix._lines == [earlier, *written]
