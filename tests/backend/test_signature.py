"""What an exported program takes and gives, as it is recorded in the artifact."""

import pytest
import torch
from torch.export import Dim, export

from graftwork.backend.signature import Constant, Input, Size, record_signature
from graftwork.plugins.torch_private import FakeTensorMode


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))
        self.register_buffer("table", torch.arange(6.0))

    def forward(self, frame, rows, *, times=3):
        self.count.add_(1)
        frame["x"].add_(1)
        return {"y": frame["x"] * self.table, "rest": (rows + 1, None, times)}


@pytest.fixture(scope="module")
def recorded():
    inputs = ({"x": torch.tensor([[-2.0] * 6] * 4)}, torch.tensor([[3, 9]] * 10).t())
    shapes = {
        "frame": {"x": {0: Dim("a", max=9)}},
        "rows": {1: 5 * Dim("fives", max=4)},
        "times": None,
    }
    program = export(Model(), inputs, {"times": 3}, dynamic_shapes=shapes)
    return record_signature(program.run_decompositions({}))


def test_inputs_have_dtype_sizes_layout_and_the_examples_extent(recorded):
    x, rows, times = recorded.inputs
    assert isinstance(x, Input) and x.name == "frame_x"
    assert (x.dtype, x.device, x.order) == ("float32", "cpu", (0, 1))
    assert isinstance(x.shape[0], Size) and (x.shape[0].low, x.shape[0].high) == (0, 9)
    assert x.shape[1] == 6 and x.example == (4, 6) and x.values == (-2.0, -2.0)
    assert rows.dtype == "int64" and rows.order == (1, 0) and rows.values == (3, 9)
    assert times == Constant("times", 3)


def test_a_multiple_is_one_and_holds_for_multiples_alone(recorded):
    size = recorded.inputs[1].shape[1]
    assert (size.times, size.plus, size.high) == (5, 0, 20)
    assert size.holds(15) and not size.holds(16) and not size.holds(25)


def test_outputs_constants_and_what_is_written_are_told(recorded):
    assert recorded.outputs == (None, None, Constant("", None), Constant("", 3))
    assert recorded.buffers == ("count",)
    assert [item.written for item in recorded.inputs[:2]] == [True, False]
    assert recorded.host_constants == ()


def test_an_input_with_gaps_keeps_its_strides_and_one_that_overlaps_any():
    class Add(torch.nn.Module):
        def forward(self, x, y):
            return x + y

    base = torch.zeros(4, 8)
    program = export(Add(), (base[:, ::2], torch.zeros(1).expand(4, 4)))
    gaps, overlaps = record_signature(program.run_decompositions({})).inputs
    assert (gaps.order, gaps.strides) == (None, (8, 2))
    assert (overlaps.order, overlaps.strides) == (None, None)


def test_host_constants_of_a_program_on_a_gpu_are_named():
    class Scale(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("table", torch.arange(4.0))

        def forward(self, x):
            return x * self.table.to(x.device) * torch.tensor(2.0)

    with FakeTensorMode():  # a GPU's tensor on any machine
        x = torch.empty(4, device="cuda")
    program = export(Scale(), (x,)).run_decompositions({})
    assert record_signature(program).host_constants == ("table",)
    assert record_signature(program, "cuda").host_constants == ()
