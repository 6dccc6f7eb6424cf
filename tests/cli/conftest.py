"""Runs the command line in this process."""

import sys

import pytest

from graftwork.cli.app import main


@pytest.fixture
def graftwork(capfd, monkeypatch, tmp_path):
    """`graftwork("plugins", "--json")` gives (exit code, standard output, standard error)."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["graftwork", *map(str, arguments)])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return left.value.code, out, err

    return run


MODEL = """
import torch

class Tiny(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = torch.nn.Linear(4, 2)

    def forward(self, x):
        return self.linear(x).detach() * 2

class Spectrum(torch.nn.Module):
    def forward(self, x):
        return torch.linalg.inv(x @ x.T + torch.eye(3))

class NeedsSize(torch.nn.Module):
    def __init__(self, size):
        super().__init__()

NOT_A_MODULE = 3

def tiny():
    return Tiny()

def example_inputs():
    return (torch.ones(3, 4),)
"""


@pytest.fixture
def model_file(tmp_path):
    """A file with a small model and its inputs."""
    path = tmp_path / "tiny_model.py"
    path.write_text(MODEL)
    return path
