"""`pytest --graftwork`: a wrong id is one line that says what to write."""

import os
import subprocess
import sys

import pytest


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--graftwork=sotr"], "no plugin 'sotr'"),
        (["--graftwork", "test_a.py"], "--graftwork after the paths"),
    ],
)
def test_a_wrong_id_is_a_usage_error(tmp_path, arguments, message):
    (tmp_path / "test_a.py").write_text("def test_a():\n    pass\n")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    assert run.returncode == pytest.ExitCode.USAGE_ERROR
    assert "INTERNALERROR" not in run.stdout and message in run.stderr
