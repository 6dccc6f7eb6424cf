"""Build for several architectures at once, each in a process forked from this one.

What is imported and exported already is shared; a child compiles, leaves its files where it was
told to, and sends back what it has to say. `run_all(work, items)` gives the results in order, and
raises the first error. On a machine with one processor, where the GPU has been used (a forked
process cannot use it), beside other threads (what they have locked would stay locked in a forked
process), or where there is no fork, the work is done here, one item after another.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import torch

from graftwork.plugins.errors import GraftworkError, NotLowerableError

__all__ = ["run_all"]

Item = TypeVar("Item")
Result = TypeVar("Result")


def run_all(work: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """`[work(item) for item in items]`, in as many processes as there are processors.

    Raises:
        Exception: what `work` raised; a GraftworkError with its text where that cannot be sent.
    """
    at_once = min(len(items), _processors())
    if at_once < 2:
        return [work(item) for item in items]
    results: list[Result] = []
    with tempfile.TemporaryDirectory(prefix="graftwork-") as folder:
        running: dict[int, Path] = {}
        waiting = list(enumerate(items))
        paths = [Path(folder) / str(at) for at in range(len(items))]
        try:
            while waiting or running:
                while waiting and len(running) < at_once:
                    at, item = waiting.pop(0)
                    running[_fork(work, item, paths[at])] = paths[at]
                time.sleep(0.02)
                for pid in list(running):
                    ended, status = os.waitpid(pid, os.WNOHANG)
                    if ended:
                        _raise_if_failed(running.pop(pid), status)
        finally:
            for pid in running:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        for path in paths:
            results.append(pickle.loads(path.read_bytes())[1])
    return results


def _processors() -> int:
    used: bool = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]  # torch's
    if not hasattr(os, "fork") or sys.platform != "linux" or used or _has_other_threads():
        return 1
    return len(os.sched_getaffinity(0))


def _has_other_threads() -> bool:
    """Whether threads run beside this one; those that draw progress or watch do not count."""
    here = threading.current_thread()
    return any(thread is not here and not thread.daemon for thread in threading.enumerate())


def _fork(work: Callable[[Item], Result], item: Item, path: Path) -> int:
    with warnings.catch_warnings():
        # Python warns of threads, which do not survive; none of ours works on what is built here.
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid:
        return pid
    # The child: it must not come back to what its parent cleans up.
    try:
        torch.set_num_threads(1)  # OpenMP's threads do not survive a fork either
        try:
            said = pickle.dumps((None, work(item)))
        except BaseException as error:
            said = _pickled(error)
        beside = path.with_suffix(".part")
        beside.write_bytes(said)
        beside.rename(path)
    finally:
        os._exit(0)


def _pickled(error: BaseException) -> bytes:
    try:
        said = pickle.dumps((error, None))
        pickle.loads(said)
    except Exception:
        kind = error if isinstance(error, GraftworkError) else type(error).__name__
        return pickle.dumps((NotLowerableError(f"{kind}: {error}"), None))
    return said


def _raise_if_failed(path: Path, status: int) -> None:
    if not path.exists():
        raise NotLowerableError(f"a compiling process ended with status {status}")
    error = pickle.loads(path.read_bytes())[0]
    if error is not None:
        raise error
