"""Several architectures compile at once, each in a process of its own."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

from graftwork.backend import in_parallel
from graftwork.backend.in_parallel import run_all
from graftwork.plugins.errors import InputError, NotLowerableError

stock_processors = in_parallel._processors


@pytest.fixture(autouse=True)
def two_processors(monkeypatch):
    if not hasattr(os, "fork"):
        pytest.skip("this system cannot fork")
    monkeypatch.setattr(in_parallel, "_processors", lambda: 2)


def test_results_come_in_order_from_other_processes():
    def work(item):
        time.sleep(0.2 if item == 0 else 0)
        return item, os.getpid(), float(torch.ones(1000, 100).matmul(torch.ones(100, 1)).sum())

    results = run_all(work, [0, 1, 2])
    assert [result[0] for result in results] == [0, 1, 2]
    assert {result[2] for result in results} == {100000.0}
    pids = {result[1] for result in results}
    assert len(pids) == 3
    assert os.getpid() not in pids


def test_one_item_or_one_processor_stays_here(monkeypatch):
    assert run_all(lambda item: os.getpid(), [0]) == [os.getpid()]
    monkeypatch.setattr(in_parallel, "_processors", lambda: 1)
    assert run_all(lambda item: os.getpid(), [0, 1]) == [os.getpid()] * 2


def test_beside_other_threads_nothing_is_forked(monkeypatch):
    """A lock that another thread holds would stay locked in the forked process."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    monkeypatch.setattr(in_parallel.threading, "enumerate", lambda: [threading.current_thread()])
    assert stock_processors() == 2
    monkeypatch.undo()
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with ThreadPoolExecutor(1) as pool:  # the main thread waits beside it
        assert pool.submit(stock_processors).result() == 1


def test_the_first_error_is_raised_and_the_others_are_ended(tmp_path):
    def work(item):
        if item == "bad":
            raise InputError("this one")
        time.sleep(60)
        (tmp_path / "late").touch()

    start = time.monotonic()
    with pytest.raises(InputError, match="this one"):
        run_all(work, ["slow", "bad"])
    assert time.monotonic() - start < 30
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_error_that_cannot_be_sent_comes_as_text():
    class Local(Exception):
        pass

    def work(item):
        raise Local(f"about {item}")

    with pytest.raises(NotLowerableError, match="Local: about [01]"):
        run_all(work, [0, 1])


def test_a_process_that_is_killed_is_said_to_be():
    with pytest.raises(NotLowerableError, match="ended with status"):
        run_all(lambda item: os.kill(os.getpid(), 9), [0, 1])
