"""Kernels compile into programs of dynamic sizes, on torch 2.11 too."""

import pytest
import torch
from functorch.compile import aot_function
from torch import fx

from graftwork.backend.patches import launches_traced_once as patch
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private
from graftwork.shims_cuda.scatter import scatter_src

LAUNCH = torch.ops.higher_order.triton_kernel_wrapper_functional


class Captured(Exception):
    """Carries the graph that a compiler is given out of it."""


def capture(module, inputs):
    raise Captured(module.graph)


def launches():
    """A graph of launches, with values as they were exported beside its own, as Inductor's has."""
    inputs = torch.zeros(5, 4), torch.zeros(6, 4, dtype=torch.int64), torch.zeros(6, 4)
    put = aot_function(lambda *given: scatter_src(given[0], 0, *given[1:]), capture, dynamic=True)
    with pytest.raises(Captured) as caught, torch.no_grad():
        put(*inputs)
    (graph,) = caught.value.args
    found = list(graph.find_nodes(op="call_function", target=LAUNCH))
    assert found
    for node in found:
        exported = fx.map_arg((node.args, node.kwargs), lambda arg: arg.meta["val"])
        node.meta["eager_input_vals"] = exported
    return graph


def decompose(graph):
    modes = (torch_private.fake_mode_of(node.meta.get("val")) for node in graph.nodes)
    with torch_private.inductor_graph().V.set_fake_mode(next(filter(None, modes))):
        torch_private.inductor_post_grad().decompose_triton_kernel_wrapper_functional(graph)


def test_a_launch_of_dynamic_sizes_is_made_in_place():
    graph = launches()
    with patch.patch_compile():
        decompose(graph)
    assert not graph.find_nodes(op="call_function", target=LAUNCH)


def test_the_values_as_exported_are_forgotten(monkeypatch):
    """Whatever the release: what would make it trace twice is gone."""
    seen = []
    module = torch_private.inductor_post_grad()
    name = "decompose_triton_kernel_wrapper_functional"
    monkeypatch.setattr(
        module, name, lambda graph: seen.extend(dict(node.meta) for node in graph.nodes)
    )
    graph, patches = launches(), Patches()
    patch._apply(patches)
    decompose(graph)
    patches.undo()
    assert seen
    assert all("eager_input_vals" not in meta for meta in seen)


def test_nothing_stays_patched():
    module = torch_private.inductor_post_grad()
    before = module.decompose_triton_kernel_wrapper_functional
    with patch.patch_compile():
        pass
    assert module.decompose_triton_kernel_wrapper_functional is before
