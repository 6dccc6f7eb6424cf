"""Rewrite a function by one installed plugin alone, and compare it with eager."""

import pytest
import torch

from graftwork.plugins import LoweringContext, rewrite_program
from graftwork.plugins.checking import find_plugin, select_plugin_alone


class Function(torch.nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, *inputs):
        return self.function(*inputs)


class Rewritten:
    """A program after one plugin: call it; `fired`, `declined` and `ops` say what became of it."""

    def __init__(self, plugin_id, function, inputs, dims=None, decompose=False, target="cpu"):
        dynamic = None if dims is None else (dims,)
        program = torch.export.export(
            Function(function), inputs, dynamic_shapes=dynamic, strict=False
        )
        if decompose:
            program = program.run_decompositions({})
        selection = select_plugin_alone(find_plugin(plugin_id))
        self.program, log = rewrite_program(program, selection, LoweringContext(target=target))
        self.fired = log.fired(plugin_id)
        self.declined = [event.detail for event in log.events if not event.rewrote]
        self.ops = [
            node.target
            for module in self.program.graph_module.modules()
            if isinstance(module, torch.fx.GraphModule)
            for node in module.graph.nodes
            if node.op == "call_function"
        ]
        self._module = self.program.module()

    def __call__(self, *inputs):
        with torch.no_grad():
            return self._module(*inputs)


@pytest.fixture
def rewrite():
    return lambda plugin_id, function, *inputs, **rest: Rewritten(
        plugin_id, function, inputs, **rest
    )
