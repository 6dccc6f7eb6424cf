"""`graftwork run` and `graftwork bench`: what they take, print, save and refuse."""

import errno
import json

import numpy as np
import pytest
import torch

import graftwork as package

PAIR = """
import torch

class Pair(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, left, right):
        self.count.add_(1)
        return left + right, self.count + 0

def example_inputs():
    return torch.full((2, 3), 4.0), torch.tensor([1, 9, 5])
"""


@pytest.fixture(scope="module")
def artifact(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pair")
    source = folder / "pair.py"
    source.write_text(PAIR)
    space = {}
    exec(PAIR, space)
    lowered = package.lower(
        space["Pair"](), space["example_inputs"](), target="aoti", directory=folder
    )
    return lowered.artifact, f"{source}:Pair"


def test_run_draws_inputs_like_the_example(graftwork, artifact):
    code, out, _ = graftwork("run", artifact[0], "--json", "--calls", "3")
    record = json.loads(out)
    assert code == 0 and record["inputs"] == "drawn with seed 0"
    total, count = record["outputs"]
    assert total["shape"] == [2, 3] and 5 <= total["min"] <= total["max"] <= 13
    assert count["mean"] == 3
    again = json.loads(graftwork("run", artifact[0], "--json", "--seed", "1")[1])
    assert again["outputs"][0] != total


def test_run_prints_a_table_and_progress(graftwork, artifact):
    code, out, err = graftwork("run", artifact[0])
    assert code == 0 and "2x3" in out and "method forward on cpu" in out
    assert "graftwork: run forward ..." in err


LEFT, RIGHT = torch.ones(2, 3), torch.tensor([1, 2, 3])


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("tuple.pt", (LEFT, RIGHT)),
        ("list.pt", [LEFT, RIGHT]),
        ("names.pt", {"left": LEFT, "right": RIGHT}),
        ("names.npz", {"left": LEFT.numpy(), "right": RIGHT.numpy()}),
        ("order.npz", [LEFT.numpy(), RIGHT.numpy()]),
    ],
)
def test_run_takes_inputs_from_a_file_and_saves_the_outputs(
    graftwork, artifact, tmp_path, name, content
):
    if name.endswith(".pt"):
        torch.save(content, tmp_path / name)
    elif isinstance(content, dict):
        np.savez(tmp_path / name, **content)
    else:
        np.savez(tmp_path / name, *content)
    code, _, _ = graftwork("run", artifact[0], "--inputs", name, "--output", "out.pt")
    assert code == 0
    total, count = torch.load(tmp_path / "out.pt")
    assert torch.equal(total, LEFT + RIGHT) and count.item() == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--inputs", "missing.pt"], "no file missing.pt"),
        (["--inputs", "rubbish.pt"], "rubbish.pt cannot be read as inputs"),
        (["--inputs", "object.pt"], "object.pt cannot be read as inputs"),
        (["--inputs", "number.pt"], "number.pt holds a int, not a tuple, a dict or a tensor"),
        (["--inputs", "other.npz"], "other.npz holds a, b; method forward takes left, right"),
        (["--inputs", "text.pt"], "text.pt cannot be read as inputs: it was not written by torch"),
        (["--inputs", "typo.pt"], "typo.pt holds left, rihgt; method forward takes left, right"),
        (["--inputs", "self.pt"], "self.pt holds self; method forward takes left, right"),
        (["--inputs", "places.pt"], "places.pt holds 0, 1; method forward takes left, right"),
        (["--seed", "99999999999999999999"], "99999999999999999999 is not in the range"),
        (["--inputs", "wide.pt"], "input left: dim 1 is 4 and must be 3"),
        (["--method", "encode"], "has no method 'encode'; it has forward"),
        (["--data", "x.ptd"], "data is for a .pte"),
        (["--calls", "0"], "--calls must be at least 1"),
        (["--cuda-graphs"], "runs on the CPU; CUDA graphs are for programs on CUDA"),
        (["--output", "rubbish.pt/out.pt"], "cannot write to rubbish.pt"),
    ],
)
def test_a_wrong_request_is_one_line(graftwork, artifact, tmp_path, arguments, message):
    (tmp_path / "rubbish.pt").write_bytes(b"rubbish")
    torch.save({"left": artifact}, tmp_path / "object.pt")
    torch.save(3, tmp_path / "number.pt")
    (tmp_path / "text.pt").write_text('{"left": 1}')
    torch.save({"left": LEFT, "rihgt": RIGHT}, tmp_path / "typo.pt")
    torch.save({"self": LEFT}, tmp_path / "self.pt")
    torch.save({0: LEFT, 1: RIGHT}, tmp_path / "places.pt")
    np.savez(tmp_path / "other.npz", a=np.ones(2), b=np.ones(2))
    torch.save((torch.ones(2, 4), RIGHT), tmp_path / "wide.pt")
    code, out, err = graftwork("run", artifact[0], *arguments)
    assert code == 2 and out == ""
    line = err.splitlines()[-1]
    assert message in line and "Traceback" not in err


def test_an_output_that_does_not_fit_the_disk_leaves_the_old_file(
    graftwork, artifact, tmp_path, monkeypatch
):
    def fill(outputs, path):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "out.pt").write_text("before")
    monkeypatch.setattr(torch, "save", fill)
    code, _, err = graftwork("run", artifact[0], "--output", "out.pt")
    assert code == 2 and "cannot write out.pt: [Errno 28] No space left on device" in err
    assert (tmp_path / "out.pt").read_text() == "before"
    assert [path.name for path in tmp_path.iterdir()] == ["out.pt"]


def test_a_program_that_reports_an_error_is_one_line_and_code_1(graftwork, tmp_path):
    class Picks(torch.nn.Module):
        def forward(self, x, index):
            return x[index]

    lowered = package.lower(
        Picks(), (torch.ones(3), torch.tensor([0])), target="aoti", directory=tmp_path
    )
    torch.save((torch.ones(3), torch.tensor([7])), tmp_path / "past.pt")
    for command in ("run", "bench"):
        code, _, err = graftwork(command, lowered.artifact, "--inputs", "past.pt")
        assert code == 1 and "method forward failed" in err and "Traceback" not in err


def test_bench_times_the_artifact_beside_eager_and_torch_compile(graftwork, artifact):
    path, model = artifact
    code, out, _ = graftwork(
        "bench", path, "--model", model, "--iterations", "20", "--warmup", "2", "--json"
    )
    record = json.loads(out)
    assert code == 0 and record["iterations"] == 20 and record["torch"] == torch.__version__
    rows = {row["name"]: row for row in record["rows"]}
    assert list(rows) == ["eager", "torch.compile", "artifact"]
    for row in rows.values():
        assert 0 < row["minimum"] <= row["p50"] <= row["p90"] <= row["p99"]
        assert row["queued"] > 0 and row["memory"] is not None


def test_bench_prints_a_table_and_names_what_it_times(graftwork, artifact):
    code, out, err = graftwork("bench", artifact[0], "--iterations", "5", "--warmup", "0")
    assert code == 0 and "p50" in out and "artifact" in out
    assert "graftwork: time artifact ..." in err


def test_bench_refuses_no_iterations(graftwork, artifact):
    code, _, err = graftwork("bench", artifact[0], "--iterations", "0")
    assert code == 2 and "--iterations must be at least 1" in err
