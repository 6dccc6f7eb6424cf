"""The order of warm-ups, capture and replays, without a GPU: a recorder stands in for it."""

import contextlib
import gc
import logging
import threading
import types
import weakref

import pytest
import torch

from graftwork.backend.signature import Input, Signature
from graftwork.plugins.errors import InputError
from graftwork.running import cuda_capture
from graftwork.running.graphs import WARM_UPS, GraphedRun
from graftwork.running.program import Method
from graftwork.running.runtimes import RunnableMethod

X = torch.arange(12.0).reshape(3, 4)


class Counted:
    """A program that counts its runs in a buffer."""

    def __init__(self):
        self.count = 0
        self.recording = False

    def __call__(self, inputs):
        if not self.recording:
            self.count += 1
        return [inputs[0] + self.count]


class Recorder:
    """Captures by noting the program; a replay runs it. Fails where told to."""

    def __init__(self, program, failure=None):
        self.program = program
        self.failure = failure
        self.captures = 0
        self.replays = 0
        self.held = None

    def __call__(self, run, inputs):
        self.captures += 1
        self.program.recording = True
        try:
            run(inputs)
            if self.failure is not None:
                mine = torch.empty(1000)
                self.held = weakref.ref(mine)
                raise type(self.failure)(*self.failure.args)
        finally:
            self.program.recording = False

        def replay(inputs):
            self.replays += 1
            return run(inputs)

        return replay


def graphed(failure=None, why_not=""):
    program = Counted()
    recorder = Recorder(program, failure)
    return program, recorder, GraphedRun(program, recorder, "forward", ["x"], why_not)


def test_warm_ups_then_one_capture_then_replays_each_call_counted_once():
    program, recorder, run = graphed()
    for call in range(1, WARM_UPS + 5):
        assert torch.equal(run([X])[0], X + call)
        assert run.captured == (call > WARM_UPS)
    assert (recorder.captures, recorder.replays) == (1, 4)
    assert program.count == WARM_UPS + 4


def test_warm_ups_take_any_shape():
    _, recorder, run = graphed()
    for _ in range(WARM_UPS):
        run([X[:2]])
    run([X])
    assert recorder.captures == 1
    with pytest.raises(InputError):
        run([X[:2]])


@pytest.mark.parametrize("shape", [(4, 3), (3, 3), (12, 1)])
def test_a_replay_refuses_another_shape_also_of_as_many_bytes(shape):
    program, recorder, run = graphed()
    for _ in range(WARM_UPS + 1):
        run([X])
    dim = 0 if shape[0] != 3 else 1
    size, wanted = shape[dim], X.shape[dim]
    message = f"method forward, input x: dim {dim} is {size}, and its CUDA graph .* with {wanted};"
    with pytest.raises(InputError, match=message):
        run([torch.zeros(shape)])
    assert program.count == WARM_UPS + 1 and recorder.replays == 1
    assert torch.equal(run([X])[0], X + WARM_UPS + 2)


def test_what_cannot_be_captured_is_run_again_once_and_stays_without_a_graph(caplog):
    failure = RuntimeError("aoti_torch_item(x) failed at /home/me/x.cpp, line 7\nand more")
    program, recorder, run = graphed(failure)
    with caplog.at_level(logging.INFO, "graftwork"):
        for call in range(1, WARM_UPS + 4):
            assert torch.equal(run([X])[0], X + call)
    assert program.count == WARM_UPS + 3
    assert (recorder.captures, recorder.replays) == (1, 0)
    assert [record.getMessage() for record in caplog.records] == [
        "method forward runs without a CUDA graph: it cannot be captured: "
        "aoti_torch_item(x) failed"
    ]
    assert run([X[:1]])[0].shape == (1, 4)  # no shape was captured


def test_nothing_of_a_failed_capture_is_held_while_the_call_runs_again():
    program, recorder, run = graphed(RuntimeError("no"))
    for _ in range(WARM_UPS):
        run([X])
    seen = []
    stock = program.__class__.__call__

    class Looks(Counted):
        def __call__(self, inputs):
            if not self.recording:
                gc.collect()
                seen.append(recorder.held())
            return stock(self, inputs)

    program.__class__ = Looks
    run([X])
    assert seen == [None]


def test_an_error_of_the_program_itself_is_raised_by_the_call_without_a_graph():
    class Wrong(Counted):
        def __call__(self, inputs):
            raise ValueError("an index out of range")

    program = Wrong()
    run = GraphedRun(program, Recorder(program), "forward", ["x"])
    run._warm_ups = 0
    with pytest.raises(ValueError, match="an index out of range"):
        run([X])
    assert run.why_not == "it cannot be captured: an index out of range"


def test_an_interruption_is_no_reason_to_give_up_graphs():
    _, recorder, run = graphed(KeyboardInterrupt())
    for _ in range(WARM_UPS):
        run([X])
    with pytest.raises(KeyboardInterrupt):
        run([X])
    recorder.failure = None
    run([X])
    assert run.captured and not run.why_not


def test_a_constant_in_host_memory_means_no_capture_at_all(caplog):
    with caplog.at_level(logging.INFO, "graftwork"):
        program, recorder, run = graphed(why_not="its constant flag is in host memory")
    for _ in range(WARM_UPS + 2):
        run([X])
    assert (recorder.captures, program.count) == (0, WARM_UPS + 2)
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.endswith("without a CUDA graph: its constant flag is in host memory")


def method(program, capture=None, **facts):
    signature = Signature((Input("x", "float32", (3, 4), "cpu", **facts),), (None,), "", "")
    return Method("forward", RunnableMethod(program, "cpu", signature), capture)


def test_a_method_says_how_it_runs():
    program = Counted()
    runs = method(program, Recorder(program))
    states = []
    for _ in range(WARM_UPS + 2):
        runs(X)
        states.append(runs.graph)
    assert states == ["warming up"] * WARM_UPS + ["captured"] * 2
    assert method(program).graph == "off"


def test_a_failed_capture_is_gone_with_its_error(monkeypatch):
    """Its graph holds memory on the GPU until it is freed."""
    made = []

    class Graph:
        def __init__(self):
            made.append(weakref.ref(self))

        def reset(self):
            pass

    stand_in = types.SimpleNamespace(
        CUDAGraph=Graph,
        current_device=lambda: 0,
        default_generators=[types.SimpleNamespace(clone_state=object)],
        empty_cache=lambda: None,
        graph_pool_handle=object,
        synchronize=lambda: None,
    )
    monkeypatch.setattr(torch, "cuda", stand_in)
    monkeypatch.setattr(cuda_capture, "_record", lambda *_: ([], RuntimeError("no"), True))
    gc.disable()
    try:
        with contextlib.suppress(RuntimeError):
            cuda_capture.CudaCapture()(list, [X])
        (graph,) = made
        assert graph() is None
    finally:
        gc.enable()


def test_threads_take_turns():
    program = Counted()
    inside = []

    class Slow(Counted):
        def __call__(self, inputs):
            inside.append(1)
            assert len(inside) == 1
            threading.Event().wait(0.001)
            inside.pop()
            return super().__call__(inputs)

    program = Slow()
    runs = method(program)
    failures = []

    def work():
        try:
            for _ in range(20):
                runs(X)
        except AssertionError as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and program.count == 80


def test_a_replay_gives_none_for_an_output_that_is_none(monkeypatch):
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    graph = types.SimpleNamespace(replay=lambda: None)
    nothing, copied = cuda_capture.CudaReplay(graph, [X.clone()], [None, X], [])([X])
    assert nothing is None and torch.equal(copied, X) and copied is not X
