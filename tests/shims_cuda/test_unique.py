"""unique: distinct elements and slices, over blocks, among NaN, beyond its reach, compiled."""

import operator

import pytest
import torch

from graftwork.lowering import lower
from graftwork.plugins import Declined, LoweringContext, rewrite_program
from graftwork.plugins.checking import find_plugin, select_plugin_alone
from graftwork.plugins.verification import assert_verified
from graftwork.shims_cuda import unique
from graftwork.shims_cuda.stages import mask as masks

EVERYTHING = {"return_inverse": True, "return_counts": True}


def assert_equal(ours, eager):
    for mine, theirs in zip(ours, eager, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=0, atol=0)


def test_properties_hold(examples):
    assert_verified("unique", examples=examples)


@pytest.mark.parametrize("tile", [8, 2048])
@pytest.mark.parametrize("values", [1, 3, 100])
def test_runs_go_on_from_stretch_to_stretch(values, tile, monkeypatch):
    monkeypatch.setattr(masks, "TILE", tile)
    monkeypatch.setattr(masks, "STRETCHES", 4)
    x = torch.arange(60).mul(37).remainder(values).view(3, 20)
    assert_equal(unique._unique(x, **EVERYTHING), torch.unique(x, **EVERYTHING))
    x = x.sort().values
    consecutive = torch.unique_consecutive(x, **EVERYTHING)
    assert_equal(unique._unique_consecutive(x, **EVERYTHING), consecutive)


def test_slices_are_compared_from_the_first_column_on():
    coordinates = torch.tensor([[3, 1, 0], [0, 9, 9], [3, 0, 9], [0, 9, 9], [3, 1, 0]])
    ours = unique._unique_dim(coordinates, 0, **EVERYTHING)
    assert_equal(ours, torch.unique(coordinates, dim=0, **EVERYTHING))
    assert ours[0].tolist() == [[0, 9, 9], [3, 0, 9], [3, 1, 0]]


def test_every_nan_is_an_element_of_its_own():
    x = torch.tensor([float("nan"), 1.0, float("nan"), -0.0, 0.0])
    values, inverse, counts = unique._unique(x, **EVERYTHING)
    assert values.isnan().tolist() == [False, False, True, True]
    assert inverse.tolist() == [2, 1, 3, 0, 0]
    assert counts.tolist() == [2, 1, 1, 1]


def test_slices_beyond_reach_are_declined():
    with pytest.raises(Declined, match="at most 64"):
        unique._unique_dim(torch.zeros(2, 65), 0)
    with pytest.raises(Declined, match="slices of 0 elements"):
        unique._unique_dim(torch.zeros(2, 0), 0)
    with pytest.raises(Declined, match="complex"):
        unique._unique(torch.zeros(2, dtype=torch.complex64))


def test_kernels_compile_for_every_gpu(compile_everywhere):
    first = torch.ones(8, dtype=torch.bool)
    offsets, order = torch.zeros(1, dtype=torch.int64), torch.arange(8)
    compiled = compile_everywhere(lambda: unique.runs(first, offsets, order, 8, True, True))
    assert compiled == {"write_runs"}


class Voxels(torch.nn.Module):
    """A point cloud's occupied cells, and the mean of the points in each."""

    def forward(self, points, features):
        cells, cell, counts = torch.unique((points * 4).long(), dim=0, **EVERYTHING)
        sums = features.new_zeros(cells.shape[0], features.shape[1])
        return cells, sums.index_add(0, cell, features) / counts[:, None]


COUNT = torch.export.Dim("count", min=0, max=1000)
CLOUD = (torch.rand(50, 3), torch.randn(50, 8))
SHAPES = ({0: COUNT}, {0: COUNT})


def test_a_program_says_how_many_there_are_at_most():
    """ExecuTorch plans memory by it: "Cannot evaluate a finite upper bound"."""
    program = torch.export.export(Voxels(), CLOUD, dynamic_shapes=SHAPES)
    selection = select_plugin_alone(find_plugin("unique"))
    context = LoweringContext(target="cuda", device="cuda")
    graph = rewrite_program(program, selection, context)[0].graph
    checks = graph.find_nodes(op="call_function", target=operator.le)
    assert 1000 in [check.args[1] for check in checks]


def test_voxels_of_a_point_cloud_lower_to_cuda(tmp_path, deep):
    settings = {"target": "cuda", "archs": ["sm_90"], "directory": tmp_path, "verify": False}
    lowered = lower(Voxels(), CLOUD, dynamic_shapes=SHAPES, **settings)
    assert {p.id: p.fired for p in lowered.report.plugins}["unique"] == 1
