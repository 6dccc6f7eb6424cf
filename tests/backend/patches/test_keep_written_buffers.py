"""A program that counts its calls counts them."""

import pytest
import torch
from torch import fx, nn

from graftwork.backend.patches import keep_written_buffers as patch
from graftwork.plugins import torch_private


class Counter(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x + self.count


def three_calls(folder):
    x = torch.zeros(1)
    program = torch.export.export(Counter(), (x,))
    path = str(folder / "counter.pt2")
    torch._inductor.aoti_compile_and_package(program, package_path=path)
    loaded = torch._inductor.aoti_load_package(path)
    return [loaded(x).item() for _ in range(3)]


def test_each_call_sees_what_the_one_before_wrote(tmp_path):
    with patch.patch_compile():
        assert three_calls(tmp_path) == [1.0, 2.0, 3.0]


def test_without_it_the_first_update_is_returned_forever(tmp_path, deep):
    if not patch._is_needed():
        pytest.skip(f"torch {torch.__version__} does not fold written buffers")
    assert three_calls(tmp_path) == [1.0, 1.0, 1.0]


def graph_that(writes):
    graph = fx.Graph()
    counter = graph.get_attr("counter")
    view = graph.call_function(torch.ops.aten.view.default, (counter, [1]))
    added = graph.call_function(torch.ops.aten.add.Tensor, (view, 1))
    if writes:
        graph.call_function(torch.ops.aten.copy_.default, (view, added))
    graph.output(added)
    return graph


@pytest.mark.parametrize("writes", [True, False])
def test_a_write_through_a_view_is_seen_and_a_read_is_none(writes):
    assert patch.writes_a_buffer(graph_that(writes)) is writes


def test_nothing_stays_patched():
    module = torch_private.inductor_joint_graph()
    before = module.constant_fold_uniform_value
    with patch.patch_compile():
        assert module.constant_fold_uniform_value is not before
    assert module.constant_fold_uniform_value is before
