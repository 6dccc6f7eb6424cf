"""Standard streams that are closed, full, or know few characters end no command in a traceback."""

import json
import os
import subprocess
import sys

import pytest


def shell(tmp_path, redirection, *arguments, **environment):
    path = os.pathsep.join(filter(None, sys.path))
    command = ["sh", "-c", f'"$0" -m graftwork "$@" {redirection}', sys.executable, *arguments]
    return subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path, **environment},
    )


@pytest.mark.parametrize("redirection", ["<&- >&-", ">&-"])
def test_a_closed_output_is_no_error(tmp_path, redirection):
    run = shell(tmp_path, redirection, "plugins")
    assert run.returncode == 0 and run.stderr == ""


def test_a_closed_error_stream_is_no_error(tmp_path):
    run = shell(tmp_path, "2>&-", "plugins", "--json")
    assert run.returncode == 0 and json.loads(run.stdout)


@pytest.mark.parametrize("flag", [[], ["--json"]])
def test_a_full_output_is_one_line(tmp_path, flag):
    run = shell(tmp_path, ">/dev/full", "plugins", *flag)
    assert run.returncode == 1
    assert run.stderr == "graftwork: cannot write to standard output: No space left on device\n"


def test_characters_that_a_stream_lacks_are_escaped(tmp_path):
    (tmp_path / "Modèle.txt").write_text("")
    run = shell(
        tmp_path,
        "",
        "inspect",
        "Modèle.txt",
        PYTHONIOENCODING="ascii",
        PYTHONUTF8="0",
        LC_ALL="C",
        PYTHONCOERCECLOCALE="0",
    )
    assert run.returncode == 2 and "Traceback" not in run.stderr
    assert "Mod" in run.stderr and "neither a .pte nor a .pt2 file" in run.stderr


def test_output_that_lacks_characters_escapes_them(tmp_path):
    run = shell(tmp_path, "", "new", "pass", "mine", "-o", "Modèle", PYTHONIOENCODING="ascii")
    assert run.returncode == 0 and r"wrote Mod\xe8le" in run.stdout
