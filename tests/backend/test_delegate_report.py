"""A refused delegate is told in the terms of its graph: operator or dtype, lines, the way out."""

import os
import stat

import pytest
import torch

from graftwork.backend import cuda_compose
from graftwork.backend.audit import Finding
from graftwork.backend.cuda_options import CudaOptions
from graftwork.backend.delegate_report import raise_refusals
from graftwork.plugins.errors import NotLowerableError

FLOAT64 = Finding("symbol", "aoti_torch_dtype_float64", "the audit's words")


class Scaled(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(3, dtype=torch.float64))

    def forward(self, x):
        return x * self.scale.float()


class Doubled(torch.nn.Module):
    def forward(self, x):
        return (x + 1).float()


def refusal(module, inputs, findings=(), missing=()):
    program = torch.export.export(module, inputs)
    with pytest.raises(NotLowerableError) as caught:
        raise_refusals(CudaOptions((), "sm_90", "1.5"), program, missing, findings)
    return str(caught.value)


def test_a_weight_of_a_dtype_that_cannot_cross_is_named_with_the_lines_that_read_it():
    message = refusal(Scaled(), (torch.randn(3),), [FLOAT64])
    assert "float64 tensors" in message
    assert "(weight scale)" in message
    assert "convert to another dtype what is float64" in message
    assert "test_delegate_report.py:24" in message
    assert "graftwork new" not in message


def test_so_is_an_input():
    message = refusal(Doubled(), (torch.randn(3).double(),), [FLOAT64])
    assert "(input x)" in message
    assert "test_delegate_report.py:29" in message


def test_an_operator_is_named_with_the_way_to_one_of_its_own():
    missing = ["at::_ops::histc::call"]
    message = refusal(Doubled(), (torch.randn(3),), [], missing)
    assert "aten::histc x0: Inductor generates no kernel" in message
    assert "graftwork new decomposition histc" in message


def test_a_finding_that_is_no_symbol_is_told_as_it_is():
    other = Finding("library", "libgomp.so.1", "method forward needs libgomp.so.1")
    assert refusal(Doubled(), (torch.randn(3),), [other]) == "method forward needs libgomp.so.1"


def test_a_library_that_cannot_be_stripped_stays_as_it_was(tmp_path, monkeypatch):
    tool = tmp_path / "strip"
    tool.write_text("#!/bin/sh\nexit 1\n")
    tool.chmod(tool.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    library = tmp_path / "library.so"
    library.write_bytes(b"\x7fELF")
    cuda_compose._strip(str(library))
    assert library.read_bytes() == b"\x7fELF"
