"""What all tests share: the deep profile, the seed, and plugins made on the spot."""

import types

import pytest
import torch

from graftwork.plugins import PluginInfo, hookimpl
from graftwork.plugins.registry import load_plugins


def pytest_addoption(parser):
    parser.addoption(
        "--deep", action="store_true", help="many more examples, and the slow lowerings"
    )
    parser.addoption("--seed", type=int, default=0, help="of the random tensors of every test")


@pytest.fixture(autouse=True)
def _seeded(request):
    """Equal random tensors on every run; ``--seed`` draws others."""
    torch.manual_seed(request.config.getoption("--seed"))


@pytest.fixture
def examples(request):
    """Examples per property: 10, or 200 in the deep profile."""
    return 200 if request.config.getoption("--deep") else 10


@pytest.fixture
def deep(request):
    """Skip the test outside the deep profile."""
    if not request.config.getoption("--deep"):
        pytest.skip("slow; runs with --deep")


class FakeEntryPoint:
    """An entry point that loads a module made on the spot, or raises."""

    def __init__(self, name, module, distribution="tests", version="1.0"):
        self.name = name
        self.value = f"made_on_the_spot:{name}"
        self.dist = types.SimpleNamespace(name=distribution, version=version)
        self._module = module

    def load(self):
        if isinstance(self._module, Exception):
            raise self._module
        return self._module


@pytest.fixture
def make_plugin():
    """Make an installed plugin from hook functions: `make_plugin("my-id", rewrite_graph=f)`."""

    def make(plugin_id, *, distribution="tests", error=None, info=None, **hooks):
        module = types.ModuleType(plugin_id.replace("-", "_"))
        described = PluginInfo(summary=plugin_id, **(info or {}))
        module.describe_plugin = hookimpl(lambda: described, specname="describe_plugin")
        for name, function in hooks.items():
            setattr(module, name, hookimpl(function, specname=name))
        (plugin,) = load_plugins([FakeEntryPoint(plugin_id, error or module, distribution)])
        return plugin

    return make
