"""One small program for every plugin lowers for two architectures, and its audit is clean."""

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings

from graftwork.lowering import lower
from graftwork.plugins import installed_plugins, torch_private
from graftwork.plugins.reference import run_eager

PLUGINS = [
    plugin
    for plugin in installed_plugins()
    if plugin.distribution == "graftwork"
    and plugin.serves("cuda")
    and plugin.implements("list_properties")
]


def first_case(plugin):
    """The first drawn example in which the plugin has something to do."""
    found = []

    for declared in plugin.call("list_properties"):

        @settings(
            max_examples=60,
            deadline=None,
            database=None,
            derandomize=True,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(declared.cases)
        def draw(case):
            if not found and case.fires != 0 and _suits(case):
                found.append(case)

        draw()
        if found:
            return found[0]
    pytest.skip(f"{plugin.id} declares no case in which it fires")


def _suits(case):
    # Of an empty tensor nothing is left to compile. The ExecuTorch 1.5 runtime has no float64 at a
    # kernel's boundary, and ExecuTorch takes no input with a stride of 0.
    tensors = [x for x in case.inputs if isinstance(x, torch.Tensor)]
    if any(
        x.numel() == 0 or x.dtype == torch.float64 or not x.is_contiguous() or 0 in x.stride()
        for x in tensors
    ):
        return False
    # Nothing provides linalg_solve_triangular, of some distributions.
    with Names() as called:
        run_eager(case.module(), case.inputs, installed_plugins())
    return not any("linalg" in name for name in called.names)


class Names(torch_private.TorchDispatchMode):
    """Which operators run."""

    def __init__(self):
        super().__init__()
        self.names = set()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.add(str(function))
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize("plugin", PLUGINS, ids=lambda plugin: plugin.id)
def test_a_program_that_needs_the_plugin_lowers_clean(plugin, tmp_path, deep):
    case = first_case(plugin)
    report = lower(
        case.module(),
        case.inputs,
        dynamic_shapes=case.dynamic_shapes,
        target="cuda",
        archs=["sm_80", "sm_90"],
        directory=tmp_path,
        name="program",
        verify=False,
    ).report
    for arch in ("sm_80", "sm_90"):
        for library in report.details[arch]["libraries"]:
            assert all(name.startswith(arch) for name in library["archs"])
