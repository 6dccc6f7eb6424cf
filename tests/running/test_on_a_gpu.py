"""CUDA graphs on a real GPU: captured, replayed, refused, given up, without a host read."""

import concurrent.futures
import copy
import logging

import pytest
import torch

import graftwork
from graftwork.plugins.errors import InputError
from graftwork.running.graphs import WARM_UPS

if not torch.cuda.is_available():
    pytest.skip("needs a GPU: graphs are captured on one", allow_module_level=True)


def draw(rows=4, columns=6):
    return torch.randn(rows, columns, device="cuda")


@pytest.fixture
def steps(on_gpu):
    return on_gpu["steps"]


@pytest.fixture
def masked(on_gpu):
    return on_gpu["masked"]


def test_replays_equal_eager_on_fresh_inputs_and_count_every_call_once(steps):
    model = copy.deepcopy(steps[0])
    program = graftwork.load(steps[1], cuda_graphs=True)
    states = []
    for _ in range(WARM_UPS + 5):
        x = draw()
        expected, found = model({"x": x}), program({"x": x})
        torch.testing.assert_close(found, expected)
        states.append(program.forward.graph)
    assert states == ["warming up"] * WARM_UPS + ["captured"] * 5


def test_results_of_one_replay_stand_when_the_next_is_made(steps):
    program = graftwork.load(steps[1], cuda_graphs=["forward"])
    for _ in range(WARM_UPS + 1):
        program({"x": draw()})
    first = program({"x": draw()})
    kept = copy.deepcopy(first)
    program({"x": draw()})
    torch.testing.assert_close(first, kept, rtol=0, atol=0)


def test_another_shape_of_as_many_bytes_is_refused_and_replays_go_on(steps):
    program = graftwork.load(steps[1], cuda_graphs=True)
    for _ in range(WARM_UPS + 1):
        program({"x": draw(4, 6)})
    with pytest.raises(InputError, match=r"input frame_x: dim 0 is 6, .* captured with 4"):
        program({"x": draw(6, 4)})
    assert program({"x": draw(4, 6)})["count"].item() == WARM_UPS + 2


def test_a_replay_on_another_stream_waits_for_the_one_before(steps):
    model = copy.deepcopy(steps[0])
    program = graftwork.load(steps[1], cuda_graphs=True)
    for _ in range(WARM_UPS + 4):
        x = draw()
        expected = model({"x": x})
        torch.cuda.synchronize()
        with torch.cuda.stream(torch.cuda.Stream()):
            found = program({"x": x})
        torch.cuda.synchronize()
        torch.testing.assert_close(found, expected)


def test_a_steady_state_call_reads_nothing_on_the_host(steps):
    program = graftwork.load(steps[1], cuda_graphs=True)
    x = {"x": draw()}
    for _ in range(WARM_UPS + 3):
        program(x)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profile:
        for _ in range(5):
            program(x)
    names = [event.name for event in profile.events()]
    assert any("GraphLaunch" in name for name in names)
    # The profiler waits for the GPU once itself, when it stops.
    waits = [name for name in names if "Synchronize" in name and "Device" not in name]
    assert not waits and not any("DtoH" in name for name in names)


def test_what_cannot_be_captured_runs_once_without_a_graph_and_gives_all_back(masked, caplog):
    model = copy.deepcopy(masked[0])
    program = graftwork.load(masked[1], cuda_graphs=True)
    for _ in range(WARM_UPS):
        x = draw()
        torch.testing.assert_close(program(x), model(x))
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated(), torch.cuda.memory_reserved()
    torch.cuda.manual_seed(5)
    expected_random = torch.rand(3, device="cuda")
    torch.cuda.manual_seed(5)
    with caplog.at_level(logging.INFO, "graftwork"):
        for _ in range(4):
            x = draw()
            torch.testing.assert_close(program(x), model(x))
    assert model.count.item() == WARM_UPS + 4
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith("method forward runs without a CUDA graph: it cannot be captured: ")
    assert program.forward.graph in line
    torch.cuda.manual_seed(5)
    assert torch.equal(torch.rand(3, device="cuda"), expected_random)
    del expected_random
    torch.cuda.empty_cache()
    assert (torch.cuda.memory_allocated(), torch.cuda.memory_reserved()) <= before


def test_a_graph_can_be_captured_after_one_that_could_not(masked, steps):
    failing = graftwork.load(masked[1], cuda_graphs=True)
    for _ in range(WARM_UPS + 1):
        failing(draw())
    program = graftwork.load(steps[1], cuda_graphs=True)
    for _ in range(WARM_UPS + 2):
        program({"x": draw()})
    assert program.forward.graph == "captured"


def test_a_thread_of_its_own_can_call_first(steps):
    program = graftwork.load(steps[1], cuda_graphs=True)
    x = {"x": draw()}
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        counts = list(pool.map(lambda _: program(x)["count"].item(), range(20)))
    assert sorted(counts) == list(range(1, 21))


def test_an_input_on_the_host_is_refused(steps):
    program = graftwork.load(steps[1])
    with pytest.raises(InputError, match="input frame_x must be on cuda:0, not on cpu"):
        program({"x": torch.ones(4, 6)})
