"""Small models lowered once for all tests of the runner."""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim

import graftwork

X, Y = torch.randn(4, 6), torch.ones(4, 2, dtype=torch.int64)


class Nested(nn.Module):
    """A written buffer, nested inputs and outputs, a dynamic size that two inputs share."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(6, 3)
        self.register_buffer("count", torch.zeros(1))

    def forward(self, frame, scale, *, times=2):
        self.count.add_(1)
        y = self.linear(frame["x"]) * self.count * times
        return {"y": y, "rest": (frame["rows"][0] + 1, self.count + 0)}


class Writes(nn.Module):
    """Writes its input, which stands in memory with its channels last."""

    def forward(self, x, half):
        x.add_(1)
        return x * 2, half.view(-1, 2).sum(1)


NESTED = ({"x": X, "rows": [Y]}, None)
ROWS = Dim("rows", min=2, max=16)
NESTED_SHAPES = {
    "frame": {"x": {0: ROWS}, "rows": [{0: ROWS}]},
    "scale": None,
    "times": None,
}
WRITES = (torch.zeros(1, 2, 3, 5).to(memory_format=torch.channels_last), torch.ones(8))
WRITES_SHAPES = ({}, {0: 2 * Dim("pairs", max=8)})

TARGETS = {"cpu": ".pte", "aoti": ".pt2"}


@pytest.fixture(scope="session")
def artifacts(tmp_path_factory):
    """`artifacts["nested", "cpu"]` is the .pte of `Nested`; built when first asked for."""
    folder = tmp_path_factory.mktemp("artifacts")
    torch.manual_seed(0)
    models = {
        "nested": (Nested(), NESTED, {"times": 2}, NESTED_SHAPES),
        "writes": (Writes(), WRITES, {}, WRITES_SHAPES),
    }

    class Built(dict):
        def __missing__(self, key):
            name, target = key
            model, inputs, kwargs, shapes = models[name]
            self[key] = graftwork.lower(
                model,
                inputs,
                kwargs=kwargs,
                dynamic_shapes=shapes,
                target=target,
                directory=folder / target,
            ).artifact
            return self[key]

    built = Built()
    built.models = {name: entry[0] for name, entry in models.items()}
    return built


class Steps(nn.Module):
    """Counts its calls in a buffer; both sizes are dynamic."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, frame):
        self.count.add_(1)
        y = torch.relu(frame["x"]) * self.count + frame["x"].sum()
        return {"y": y, "count": self.count + 0}


class Masked(nn.Module):
    """Its output's size is read on the host, which no graph can record; counts its calls."""

    def __init__(self):
        super().__init__()
        self.register_buffer("count", torch.zeros(1))

    def forward(self, x):
        self.count.add_(1)
        return x[x > 0] * 2, self.count + 0


@pytest.fixture(scope="session")
def on_gpu(tmp_path_factory):
    """(model, artifact) of `Steps` and of `Masked`, lowered on the GPU of this machine."""
    folder = tmp_path_factory.mktemp("gpu")
    x = torch.randn(4, 6, device="cuda")
    shapes = ({"x": {0: Dim("rows", max=64), 1: Dim("columns", max=64)}},)
    built = {}
    for model, inputs, dynamic in ((Steps(), ({"x": x},), shapes), (Masked(), (x,), None)):
        lowered = graftwork.lower(
            copy.deepcopy(model).cuda(),
            inputs,
            target="aoti",
            settings={"device": "cuda"},
            dynamic_shapes=dynamic,
            disable=["masked-copy-to-where", "index-put"],
            directory=folder,
            verify=False,
        )
        built[type(model).__name__.lower()] = (model.cuda(), lowered.artifact)
    return built


@pytest.fixture
def temporary(tmp_path, monkeypatch):
    """The temporary directory of the test, empty."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    return folder
