"""A real lowering that is interrupted, or cannot write, leaves no artifact and no stray file."""

import os
import resource
import signal
import subprocess
import sys
import time

import pytest

SCRIPT = """
import torch, graftwork
graftwork.lower(
    torch.nn.Sequential(torch.nn.Linear(65, 33), torch.nn.GELU()),
    (torch.randn(40, 65),), target="cuda", archs={archs!r}, directory={out!r}, verify=False,
)
"""


@pytest.fixture
def start(tmp_path):
    """Start a lowering in its own process group, with a folder of its own for temporary files."""
    temporary, cache = tmp_path / "tmp", tmp_path / "cache"
    temporary.mkdir()
    started = []

    def begin(archs, limit=None):
        settings = {
            "TMPDIR": str(temporary),
            "TORCHINDUCTOR_CACHE_DIR": str(cache),
            "TRITON_CACHE_DIR": str(cache / "triton"),
        }
        script = SCRIPT.format(archs=archs, out=str(tmp_path / "out"))

        def limited():
            if limit is not None:
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

        process = subprocess.Popen(
            [sys.executable, "-c", script],
            env=os.environ | settings,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            preexec_fn=limited,
        )
        started.append(process)
        return process

    yield begin
    for process in started:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def nothing_is_left(tmp_path):
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "tmp").iterdir())


@pytest.mark.parametrize("archs", [["sm_90"], ["sm_80", "sm_90"]])
def test_an_interrupt_while_it_compiles(archs, start, tmp_path, deep):
    process = start(archs)
    give_up = time.monotonic() + 300
    while not list(tmp_path.glob("out/.graftwork-*/compile*/*/*")):
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < give_up
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    assert "KeyboardInterrupt" in output
    nothing_is_left(tmp_path)


def test_a_file_that_cannot_grow(start, tmp_path, deep):
    """As on a full disk: the compiler's files stop at 60 kB."""
    process = start(["sm_90"], limit=60_000)
    output, _ = process.communicate(timeout=500)
    assert process.returncode != 0
    assert "Error" in output.splitlines()[-1] or "refused" in output
    nothing_is_left(tmp_path)
