"""Gluon kernels compile where a program launches their stand-ins."""

import pytest
import triton

from graftwork.backend.patches import gluon_kernels as patch
from graftwork.plugins import torch_private
from graftwork.plugins.toolkit import gluon
from graftwork.shims_cuda.attention import forward_kernels, stand_in_kernels

pytestmark = pytest.mark.skipif(
    not gluon.available(), reason=f"Gluon of Triton {triton.__version__} was not checked"
)


def source(kernel):
    heuristics = torch_private.inductor_triton_heuristics()
    signature = {p.name: "constexpr" for p in kernel.params}
    constants = {p.name: 1 for p in kernel.params}
    return heuristics.ASTSource(kernel, signature, constants, {})


def test_the_kernel_is_compiled_in_place_of_its_stand_in():
    stand_in, other = stand_in_kernels.hopper_stand_in, forward_kernels.forward_kernel
    with patch.patch_compile():
        taken, kept = source(stand_in), source(other)
    assert taken.fn is gluon.kernel_behind(stand_in) and taken.ext == "ttgir"
    assert kept.fn is other and kept.ext == "ttir"
    assert source(stand_in).fn is stand_in


def test_it_is_compiled_in_this_process(monkeypatch):
    """Workers hold no patches."""
    compiler = torch_private.inductor_async_compile().AsyncCompile
    monkeypatch.setattr(compiler, "use_process_pool", classmethod(lambda cls: True))
    monkeypatch.setattr(
        compiler, "triton", lambda self, name, text, device_str: self.use_process_pool()
    )
    with patch.patch_compile():
        here = compiler.triton(compiler, "k", stand_in_kernels.hopper_stand_in.src, "cuda")
        elsewhere = compiler.triton(compiler, "k", forward_kernels.forward_kernel.src, "cuda")
    assert not here and elsewhere


def test_a_release_that_was_not_checked_is_left_alone(monkeypatch):
    monkeypatch.setattr(triton, "__version__", "99.1.0")
    assert not gluon.available()
