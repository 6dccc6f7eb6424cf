"""What is printed is shown as it is: brackets in source lines, paths and names are no markup."""

import pytest

MASKED = """
import torch

class Masked(torch.nn.Module):
    def forward(self, x, mask):
        out = torch.zeros_like(x)
        out[mask] = x[mask]
        return out

def example_inputs():
    return torch.ones(4), torch.tensor([True, False, True, True])
"""


def test_a_source_line_is_shown_with_its_brackets(graftwork, tmp_path):
    (tmp_path / "masked.py").write_text(MASKED)
    code, out, _ = graftwork("explain", "masked.py:Masked")
    assert code == 0 and "out[mask] = x[mask]" in out


@pytest.mark.parametrize("folder", ["n[v2]", "a[", "n:tada:"])
def test_every_command_shows_such_a_path(graftwork, model_file, folder):
    code, out, _ = graftwork("lower", f"{model_file}:Tiny", "-o", f"{folder}/b]")
    path = f"{folder}/b]/tiny.pte"
    assert code == 0 and f"artifact: {path}" in out
    for command in (["inspect"], ["run"], ["bench", "--iterations", "1", "--warmup", "0"]):
        code, out, err = graftwork(*command, path)
        assert code == 0 and path in out and path in err


def test_a_closing_tag_in_a_path_is_shown(graftwork, model_file):
    code, out, _ = graftwork("lower", f"{model_file}:Tiny", "-o", "a[/b]/m", "--name", "n")
    assert code == 0 and "artifact: a[/b]/m/n.pte" in out
    for command in ("inspect", "run"):
        code, out, _ = graftwork(command, "a[/b]/m/n.pte")
        assert code == 0 and "a[/b]/m/n.pte" in out


@pytest.mark.parametrize("columns", ["0", "wide"])
def test_columns_that_are_no_width_ask_for_none(graftwork, columns, monkeypatch):
    monkeypatch.setenv("COLUMNS", columns)
    code, out, _ = graftwork("plugins")
    assert code == 0 and "detach-copy" in out
    assert max(map(len, out.splitlines())) <= 120


def test_the_spinner_shows_such_a_path_too(graftwork, tmp_path, monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    code, _, err = graftwork("inspect", "a[/b]/m.pte")
    assert code == 2 and "no file a[/b]/m.pte" in err
