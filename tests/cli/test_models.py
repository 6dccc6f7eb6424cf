"""MODEL on the command line: what its file may be called, import, offer and do."""

import json
import sys

import pytest
import torch

from graftwork import lower as graftwork_lower
from graftwork.cli.models import load_model

IMPORTS_LATE = """
import torch

class Late(torch.nn.Module):
    def __init__(self):
        super().__init__()
        from {beside} import SCALE
        self.scale = SCALE

    def forward(self, x):
        from {beside}_too import SHIFT
        return x * self.scale + SHIFT

def example_inputs():
    return (torch.ones(3),)
"""

PLAIN = """
import torch

class Plain(torch.nn.Module):
    def forward(self, x):
        return x + 1

def example_inputs():
    return (torch.ones(3, 4),)
"""


def refused(graftwork, *arguments):
    """The one line of a request that was wrong."""
    code, out, err = graftwork(*arguments)
    assert code == 2 and out == ""
    (line,) = [line for line in err.splitlines() if not line.endswith("...")]
    return line


def test_a_model_imports_what_lies_beside_it_when_made_and_when_run(graftwork, tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "late_model.py").write_text(IMPORTS_LATE.format(beside="late_helper"))
    (folder / "late_helper.py").write_text("SCALE = 2")
    (folder / "late_helper_too.py").write_text("SHIFT = 3")
    assert graftwork("explain", "models/late_model.py:Late")[0] == 0


def test_a_module_imports_what_lies_in_the_working_directory_when_it_runs(graftwork, tmp_path):
    (tmp_path / "late_module.py").write_text(IMPORTS_LATE.format(beside="module_helper"))
    (tmp_path / "module_helper.py").write_text("SCALE = 2")
    (tmp_path / "module_helper_too.py").write_text("SHIFT = 3")
    assert graftwork("explain", "late_module:Late")[0] == 0


def test_a_file_may_change_the_search_path(graftwork, tmp_path):
    (tmp_path / "moves.py").write_text("import sys\nsys.path = sys.path[:1]\n" + PLAIN)
    assert graftwork("explain", "moves.py:Plain")[0] == 0


@pytest.mark.parametrize("name", ["json", "types"])
def test_a_file_named_like_a_module_in_use_leaves_that_alone(graftwork, tmp_path, name):
    before = sys.modules[name]
    (tmp_path / f"{name}.py").write_text(PLAIN)
    code, out, _ = graftwork("explain", f"{name}.py:Plain", "--json")
    assert code == 0 and json.loads(out)["target"] == "cpu"
    assert sys.modules[name] is before


def test_a_file_named_like_a_module_not_yet_in_use_leaves_that_alone(graftwork, tmp_path):
    sys.modules.pop("wave", None)
    uses = PLAIN.replace("        return x", "        import wave\n        return wave.open and x")
    (tmp_path / "wave.py").write_text(uses)
    assert graftwork("explain", "wave.py:Plain")[0] == 0


@pytest.mark.parametrize("where", ["        return x", "class Plain"])
def test_a_model_that_calls_exit_is_named(graftwork, tmp_path, where):
    indent = where[: -len(where.lstrip())]
    text = PLAIN.replace(where, f"{indent}import sys; sys.exit(0)\n{where}")
    (tmp_path / "leaves.py").write_text(text)
    line = refused(graftwork, "lower", "leaves.py:Plain", "-o", "out")
    assert "leaves.py:Plain ends the process: its code calls sys.exit()" in line
    assert not (tmp_path / "out").exists()


DYNAMIC = "{'x': {0: torch.export.Dim('rows', min=2, max=8)}}"


@pytest.mark.parametrize(
    "text",
    [
        f"dynamic_shapes = {DYNAMIC}",
        f"def dynamic_shapes():\n    return {DYNAMIC}",
        f"Plain.dynamic_shapes = {DYNAMIC}",
        "dynamic_shapes = ({0: torch.export.Dim('rows', min=2, max=8)},)",
    ],
)
def test_dynamic_shapes_are_a_value_or_a_function(graftwork, tmp_path, text):
    (tmp_path / "dynamic.py").write_text(f"{PLAIN}\n{text}\n")
    assert graftwork("lower", "dynamic.py:Plain", "-o", "out")[0] == 0
    torch.save((torch.ones(5, 4),), tmp_path / "five.pt")
    assert graftwork("run", "out/plain.pte", "--inputs", "five.pt")[0] == 0


def test_example_inputs_may_be_a_value(graftwork, tmp_path):
    (tmp_path / "value.py").write_text(PLAIN + "\nexample_inputs = (torch.ones(3),)\n")
    assert graftwork("explain", "value.py:Plain")[0] == 0


def test_dynamic_shapes_that_fail_are_named(graftwork, tmp_path):
    (tmp_path / "fails.py").write_text(PLAIN + "\ndef dynamic_shapes():\n    return {}[1]\n")
    line = refused(graftwork, "explain", "fails.py:Plain")
    assert "dynamic_shapes() of fails.py:Plain failed: KeyError: 1" in line


def test_a_saved_program_is_timed_on_its_own_inputs(graftwork, tmp_path):
    class Scaled(torch.nn.Module):
        def forward(self, x, *, scale):
            return x * scale

    inputs = (torch.ones(3),), {"scale": torch.ones(3)}
    torch.export.save(torch.export.export(Scaled(), *inputs), tmp_path / "saved.pt2")
    loaded = load_model("saved.pt2")
    assert torch.equal(loaded.inputs[0], torch.ones(3)) and list(loaded.kwargs) == ["scale"]
    assert graftwork("lower", "saved.pt2", "-o", "out", "--target", "aoti")[0] == 0
    code, out, _ = graftwork(
        "bench", "out/program.pt2", "--model", "saved.pt2", "--iterations", "1", "--json"
    )
    rows = json.loads(out)["rows"]
    assert code == 0 and rows[0]["name"] == "eager" and "failed" not in rows[0]


def test_a_saved_program_without_inputs_is_timed_on_drawn_ones(graftwork, tmp_path):
    program = torch.export.export(torch.nn.ReLU(), (torch.ones(3),))
    assert graftwork_lower(program, directory=tmp_path).artifact.name == "program.pte"
    program.example_inputs = None
    torch.export.save(program, tmp_path / "bare.pt2")
    assert load_model("bare.pt2").inputs == ()
    command = ["bench", "program.pte", "--model", "bare.pt2", "--iterations", "1"]
    assert graftwork(*command)[0] == 0
