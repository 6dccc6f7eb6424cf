"""`graftwork lower`: what it prints, what it writes, what it refuses."""

import io
import json
import zipfile

import pytest


def zipped(name):
    """An archive with a compiled library and that entry, but for a saved program without one."""
    held = io.BytesIO()
    with zipfile.ZipFile(held, "w") as archive:
        archive.writestr(name, b"\xff")
        if "models" not in name:
            archive.writestr("a/data/aotinductor/model/l.so", b"")
    return held.getvalue()


def written(tmp_path):
    return sorted(p.name for p in tmp_path.rglob("*") if p.suffix in {".pte", ".pt2", ".ptd"})


def test_lower_json_has_what_scripts_need(graftwork, model_file, tmp_path):
    code, out, _ = graftwork("lower", f"{model_file}:Tiny", "-o", "out", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["artifact"].endswith("tiny.pte")
    assert record["target"] == "cpu"
    (plugin,) = [p for p in record["plugins"] if p["id"] == "detach-copy"]
    assert {"id", "version", "fired", "declined", "seconds"} <= plugin.keys()
    assert plugin["fired"] == 1
    assert record["outputs"][0]["max_abs_diff"] < 1e-5
    assert written(tmp_path) == ["tiny.pte"]


def test_lower_prints_tables_the_artifact_and_progress(graftwork, model_file):
    code, out, err = graftwork("lower", f"{model_file}:tiny", "-o", "out", "--report", "r.html")
    assert code == 0
    assert "detach-copy" in out and "against eager" in out and "out/tiny.pte" in out
    assert "graftwork: lower ..." in err


def test_a_lowering_that_fails_leaves_the_report_as_it_was(graftwork, model_file, tmp_path):
    (tmp_path / "r.html").write_text("before")
    code, _, _ = graftwork("lower", f"{model_file}:Spectrum", "-o", "out", "--report", "r.html")
    assert code == 1 and (tmp_path / "r.html").read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "tiny_model.py"]


def test_report_shows_what_fired_where_before_and_after(graftwork, model_file, tmp_path):
    graftwork("lower", f"{model_file}:Tiny", "-o", "out", "--report", "r.html")
    page = (tmp_path / "r.html").read_text()
    assert "rewrote: its input" in page
    assert "self.linear(x).detach() * 2" in page
    before, after = page.split("Before:")[1].split("After:")
    assert "aten.detach.default" in before and "aten.detach.default" not in after


def test_disabled_plugin_says_what_it_left(graftwork, model_file):
    code, out, _ = graftwork(
        "lower", f"{model_file}:Tiny", "-o", "out", "--disable", "detach-copy"
    )
    assert code == 0
    assert "disabled by this call; 1 place(s) kept as they were" in out
    assert "kept: aten.detach.default at" in out


def test_no_verify_says_that_nothing_was_compared(graftwork, model_file):
    code, out, _ = graftwork("lower", f"{model_file}:Tiny", "-o", "out", "--no-verify")
    assert code == 0
    assert "not compared with eager: not asked for" in out


def test_operator_nobody_handles_is_named_with_line_and_scaffold(graftwork, model_file, tmp_path):
    code, _, err = graftwork("lower", f"{model_file}:Spectrum", "-o", "out")
    assert code == 1
    assert "aten::linalg_inv_ex" in err
    assert "torch.linalg.inv(x @ x.T + torch.eye(3))" in err
    assert "graftwork new decomposition linalg-inv-ex" in err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("missing.py:Tiny", "no file missing.py"),
        ("tiny_model.py:Tinny", "tiny_model.py has no attribute 'Tinny'; did you mean Tiny"),
        ("tiny_model.py:NOT_A_MODULE", "is a int, not a torch.nn.Module"),
        ("tiny_model.py:NeedsSize", "cannot be made without arguments"),
        ("tiny_model.py", "is not FILE.py:NAME"),
        ("no.such.module:Tiny", "module no.such.module cannot be imported"),
        ("package.pt2", "package.pt2 is an AOTInductor package, so it is lowered already"),
        ("missing.pt2", "missing.pt2 cannot be loaded as an exported program: no such file"),
        ("broken.py:Tiny", "broken.py cannot be imported: SyntaxError"),
        ("no_inputs.py:Tiny", "offers no inputs; define example_inputs()"),
        ("bad_inputs.py:Tiny", "must return a tuple or a dict, not list"),
        ("failing_inputs.py:Tiny", "example_inputs() of failing_inputs.py:Tiny failed"),
        ("wrong_inputs.py:Tiny", "does not run in eager mode on the inputs given"),
    ],
)
def test_wrong_request_is_one_line_and_writes_nothing(
    graftwork, model_file, tmp_path, model, message
):
    body = model_file.read_text().split("def example_inputs")[0]
    (tmp_path / "broken.py").write_text("def")
    (tmp_path / "package.pt2").write_bytes(zipped("a/extra/graftwork.json"))
    (tmp_path / "no_inputs.py").write_text(body)
    (tmp_path / "bad_inputs.py").write_text(body + "def example_inputs():\n    return []\n")
    (tmp_path / "failing_inputs.py").write_text(body + "def example_inputs():\n    1 / 0\n")
    (tmp_path / "wrong_inputs.py").write_text(
        body + "def example_inputs():\n    return (torch.ones(3, 5),)\n"
    )
    code, out, err = graftwork("lower", model, "-o", "out")
    assert code == 2
    assert out == ""
    (line,) = [line for line in err.splitlines() if not line.endswith("...")]
    assert message in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--disable", "detach-copi"], "did you mean detach-copy"),
        (["--target", "tpu"], "no target 'tpu'; known: cpu, aoti, cuda"),
        (["--option", "detach-copy"], "is not ID.KEY=VALUE"),
        (["--option", "detach-copy.a=1"], "has no options"),
        (["--arch", "sm_90"], "target cpu takes no arch"),
        (["--name", "../up"], "is no file name"),
        (
            ["--report", "out/tiny.pte"],
            "--report out/tiny.pte must name a file that ends in .html",
        ),
        (["--target", "cuda", "--arch", "sm_75"], "architecture 'sm_75'; known: sm_80, "),
        (["--report", "folder.html"], "must name a file that ends in .html"),
        (["--report", "tiny_model.py/r.html"], "cannot write to tiny_model.py"),
    ],
)
def test_wrong_option_is_one_line_and_writes_nothing(
    graftwork, model_file, tmp_path, arguments, message
):
    (tmp_path / "folder.html").mkdir()
    code, _, err = graftwork("lower", f"{model_file}:Tiny", "-o", "out", *arguments)
    assert code == 2
    assert message in err
    assert not (tmp_path / "out").exists()


def test_unwritable_directory_is_named(graftwork, model_file, tmp_path):
    (tmp_path / "file").write_text("in the way")
    code, _, err = graftwork("lower", f"{model_file}:Tiny", "-o", "file/out")
    assert code == 2
    assert "cannot write to file/out" in err


def test_error_is_json_where_json_is_asked_for(graftwork, model_file):
    code, out, _ = graftwork("lower", f"{model_file}:Tinny", "-o", "out", "--json")
    assert code == 2
    assert json.loads(out)["error"]["kind"] == "InputError"


def test_explain_lists_candidates_and_writes_nothing(graftwork, model_file, tmp_path):
    code, out, _ = graftwork("explain", f"{model_file}:Tiny")
    assert code == 0
    assert "rewrote: its input" in out and ".detach() * 2" in out
    code, out, _ = graftwork("explain", f"{model_file}:Tiny", "--json", "--disable", "detach-copy")
    (plugin,) = [p for p in json.loads(out)["plugins"] if p["id"] == "detach-copy"]
    assert plugin["would_fire"] == 1 and plugin["fired"] == 0
    assert written(tmp_path) == []


def test_inspect_reads_the_plugin_set_back(graftwork, model_file, tmp_path):
    graftwork("lower", f"{model_file}:Tiny", "-o", "out", "--disable", "conv1d-to-conv2d")
    code, out, _ = graftwork("inspect", "out/tiny.pte", "--json")
    record = json.loads(out)
    assert code == 0
    assert record["methods"] == ["forward"] and record["delegates"] == ["XnnpackBackend"]
    made = {plugin["id"]: plugin["fired"] for plugin in record["made_by"]["plugins"]}
    assert made["detach-copy"] == 1 and "conv1d-to-conv2d" not in made
    code, out, _ = graftwork("inspect", "out/tiny.pte")
    assert "detach-copy" in out


def test_a_damaged_program_is_named(graftwork, model_file, tmp_path):
    graftwork("lower", f"{model_file}:Tiny", "-o", "out")
    path = tmp_path / "out" / "tiny.pte"
    data = path.read_bytes()
    start = data.index(b'{"archs"')
    size = json.JSONDecoder().raw_decode(data[start:].decode("latin-1"))[1]
    for damage in (b"[1]", b"{'", b"\xff"):
        path.write_bytes(data[:start] + damage.ljust(size) + data[start + size :])
        for command in ("inspect", "run"):
            code, _, err = graftwork(command, path)
            assert code == 2 and "tiny.pte is damaged: its manifest" in err


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("missing.pte", None, "no file missing.pte"),
        ("a.txt", b"x", "neither a .pte nor a .pt2"),
        ("a.pte", b"rubbish", "not a readable ExecuTorch program"),
        ("a.pt2", b"rubbish", "not a readable package"),
        ("zip.pt2", zipped("saved/models/model.json"), "zip.pt2 is not an AOTInductor package"),
        ("damaged.pt2", zipped("a/extra/graftwork.json"), "damaged.pt2 is damaged: its manifest"),
    ],
)
def test_inspect_refuses_what_it_cannot_read(graftwork, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    code, _, err = graftwork("inspect", name)
    assert code == 2 and message in err
