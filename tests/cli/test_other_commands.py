"""`plugins`, `verify`, `new`, and how fast help answers."""

import json
import os
import subprocess
import sys


def test_plugins_json_lists_every_plugin(graftwork):
    code, out, _ = graftwork("plugins", "--json", "--disable", "detach-copy")
    assert code == 0
    records = {record["id"]: record for record in json.loads(out)}
    wanted = {"id", "kind", "version", "distribution", "enabled", "reason"}
    assert all(wanted <= record.keys() for record in records.values())
    assert records["detach-copy"]["enabled"] is False
    assert records["detach-copy"]["reason"] == "disabled by this call"
    assert "aten.detach.default" in records["detach-copy"]["handles"]


def test_plugins_prints_a_table(graftwork):
    code, out, _ = graftwork("plugins")
    assert code == 0 and "detach-copy" in out and "decomposition" in out


def test_verify_prints_a_row_a_property(graftwork):
    code, out, _ = graftwork("verify", "detach-copy", "--examples", "3")
    assert code == 0
    assert "equal" in out and "0 failed" in out


def test_verify_json(graftwork):
    code, out, _ = graftwork("verify", "detach-copy", "--examples", "3", "--json")
    assert code == 0
    assert {record["passed"] for record in json.loads(out)} == {True}


def test_verify_refuses_an_unknown_id_and_no_examples(graftwork):
    code, _, err = graftwork("verify", "detach-copi")
    assert code == 2 and "did you mean detach-copy" in err
    code, _, err = graftwork("verify", "detach-copy", "--examples", "0")
    assert code == 2 and "at least 1" in err


def test_verify_on_a_gpu_that_is_not_there_is_a_wrong_request(graftwork, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    code, out, err = graftwork("verify", "detach-copy", "--device", "cuda")
    assert code == 2 and out == "" and "needs a GPU; this machine has none" in err


def test_scaffolded_packages_pass_their_own_tests_at_once(graftwork, tmp_path):
    for kind, name in (("decomposition", "my-op"), ("pass", "my-pass")):
        code, _, _ = graftwork("new", kind, name, "-o", "made")
        assert code == 0
    packages = [tmp_path / "made" / "graftwork-my-op", tmp_path / "made" / "graftwork-my-pass"]
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
    install += ["--no-build-isolation", "--target", str(site), *map(str, packages)]
    subprocess.run(install, check=True)
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *map(str, packages)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(site)},
    )
    assert run.returncode == 0, run.stdout + run.stderr
    assert "4 passed" in run.stdout


def test_new_refuses_a_bad_name_and_an_existing_folder(graftwork):
    code, _, err = graftwork("new", "pass", "My_Pass")
    assert code == 2 and "not kebab-case" in err
    assert graftwork("new", "pass", "mine", "-o", "made")[0] == 0
    code, _, err = graftwork("new", "pass", "mine", "-o", "made")
    assert code == 2 and "exists already" in err
    code, _, err = graftwork("new", "decomposition", "sort")
    assert code == 2 and "a plugin 'sort' is installed already" in err


def test_help_and_version_import_no_torch():
    for flag in ("--help", "--version"):
        script = (
            "import sys; sys.argv = ['graftwork', sys.argv[1]]\n"
            "from graftwork.cli.app import main\n"
            "try:\n    main()\nexcept SystemExit as left:\n"
            "    assert not left.code and 'torch' not in sys.modules and 'rich' not in sys.modules"
        )
        subprocess.run([sys.executable, "-c", script, flag], check=True, capture_output=True)


def test_version_costs_less_processor_time_than_promised():
    times = []
    for _ in range(5):
        start = sum(os.times()[2:4])
        subprocess.run(
            [sys.executable, "-m", "graftwork", "--version"], check=True, capture_output=True
        )
        times.append(sum(os.times()[2:4]) - start)
    assert min(times) < 0.3
