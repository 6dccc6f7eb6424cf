"""A signal that asks the process to end leaves nothing half-written behind."""

import os
import signal
import subprocess
import sys

import pytest


@pytest.mark.parametrize(("name", "code"), [("SIGTERM", 143), ("SIGHUP", 129), ("SIGINT", 130)])
def test_a_signal_while_it_builds_leaves_nothing(tmp_path, name, code):
    script = (
        "import os, signal, sys\n"
        "from graftwork.backend.targets import find_target\n"
        "from graftwork.cli.app import main\n"
        "def build(target, request):\n"
        "    assert request.directory.is_dir()\n"
        f"    os.kill(os.getpid(), signal.{name})\n"
        "    signal.pause()\n"
        "type(find_target('cpu')).build = build\n"
        "main()"
    )
    (tmp_path / "plain.py").write_text(
        "import torch\nmodel = torch.nn.ReLU()\nexample_inputs = (torch.ones(3),)\n"
    )
    command = [sys.executable, "-c", script, "lower", "plain.py:model", "-o", "out/sub"]
    path = os.pathsep.join(filter(None, sys.path))
    run = subprocess.run(
        command,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert run.returncode == code
    assert run.stderr.splitlines()[-1] == "graftwork: interrupted, nothing was written"
    assert [path.name for path in tmp_path.iterdir() if path.suffix != ".py"] == []


def test_an_ignored_signal_stays_ignored(graftwork, monkeypatch):
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        graftwork("plugins")
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
