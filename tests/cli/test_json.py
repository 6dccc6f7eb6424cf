"""`--json` prints one JSON document on standard output, whatever happens."""

import json

import pytest
import torch

import graftwork as package

LOUD = """
import os
import torch

print("imported")

class Loud(torch.nn.Module):
    def __init__(self):
        super().__init__()
        os.write(1, b"made")

    def forward(self, x, bound=float("inf")):
        print("called")
        return x + 1, bound

def example_inputs():
    return (torch.ones(3), float("inf"))
"""


def strict(text):
    """Parsed as JSON has it, without Python's own Infinity and NaN."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (["lower", "--no-such"], "NoSuchOption"),
        (["lower"], "MissingParameter"),
        (["run", "a.pte", "--calls", "many"], "BadParameter"),
        (["nothing"], "NoSuchCommand"),
    ],
)
def test_a_usage_error_is_json(graftwork, arguments, kind):
    code, out, err = graftwork(*arguments, "--json")
    record = strict(out)
    assert code == record["exit_code"] == 2 and err == ""
    assert record["error"]["kind"] == kind and record["error"]["message"]


@pytest.mark.parametrize(
    ("raised", "kind", "exit_code"),
    [(KeyboardInterrupt(), "Interrupted", 130), (ZeroDivisionError("x"), "ZeroDivisionError", 1)],
)
def test_an_interruption_and_an_unforeseen_error_are_json(
    graftwork, monkeypatch, raised, kind, exit_code
):
    def fail(*args, **kwargs):
        raise raised

    monkeypatch.setattr("graftwork.cli.plugins.select_plugins", fail)
    code, out, err = graftwork("plugins", "--json")
    record = strict(out)
    assert code == record["exit_code"] == exit_code and record["error"]["kind"] == kind
    assert ("Traceback" in err) == (exit_code == 1)


def test_what_a_model_prints_goes_to_standard_error(graftwork, tmp_path):
    (tmp_path / "loud.py").write_text(LOUD)
    code, out, err = graftwork("explain", "loud.py:Loud", "--json")
    assert code == 0 and strict(out)["target"] == "cpu"
    assert "imported" in err and "made" in err and "called" in err
    code, out, _ = graftwork("explain", "loud.py:Loud")
    assert code == 0 and "imported" not in out and "made" not in out


def test_numbers_that_json_lacks_are_texts(graftwork, tmp_path):
    class Bounded(torch.nn.Module):
        def forward(self, x, bound):
            return x / 0, bound, -bound, x * 0 / 0, x[:0]

    inputs = (torch.ones(3), float("inf"))
    lowered = package.lower(Bounded(), inputs, directory=tmp_path)
    code, out, _ = graftwork("inspect", lowered.artifact, "--json")
    (_, bound) = strict(out)["made_by"]["signatures"]["forward"]["inputs"]
    assert code == 0 and "Infinity" in bound.values()
    code, out, _ = graftwork("run", lowered.artifact, "--json")
    quotient, bound, negative, nothing, empty = strict(out)["outputs"]
    assert code == 0 and quotient["max"] == bound["value"] == "Infinity"
    assert negative["value"] == "-Infinity" and nothing["mean"] == "NaN"
    assert empty["mean"] is None
