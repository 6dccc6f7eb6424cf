"""Applies a selection's passes, decompositions and kernels to one exported program.

This is what enabling a plugin means; the backend adds targets around it, and the verification kit
calls it with one plugin alone.
"""

from __future__ import annotations

import copy
import gc
import operator
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram

from .blame import blamed_on
from .context import LoweringContext
from .expansion import expand_operators
from .log import RewriteLog
from .registry import Plugin
from .selection import Choice, Selection
from .stamps import stamp_new_nodes
from .toolkit.graphs import sub_graphs
from .turns import TORCH_TURN


@dataclass(frozen=True)
class GraphRewrite:
    """One graph offered to one plugin's `rewrite_graph`.

    Attributes:
        graph_module: the graph's module; its sub-graphs are attributes of it.
        path: where it stands, such as `true_graph_0`; empty for the root.
        program: the exported program it belongs to (signature, range constraints, constants).
        context: the facts of the lowering.
    """

    graph_module: fx.GraphModule
    path: str
    program: ExportedProgram
    context: LoweringContext
    _plugin: Plugin
    _log: RewriteLog

    @property
    def graph(self) -> fx.Graph:
        """The graph to edit in place."""
        return self.graph_module.graph

    def claim(self, node: fx.Node, what: str) -> bool:
        """Announce a rewrite of `node`; edit only if this answers True.

        `what` says what the node becomes, such as `where(mask, src, out)`.
        """
        return self._log.claim(self._plugin, node, what, self.path)

    def decline(self, node: fx.Node, reason: str) -> None:
        """Say why a candidate was left untouched."""
        self._log.decline(self._plugin, node, reason, self.path)


def rewrite_program(
    program: ExportedProgram, selection: Selection, context: LoweringContext
) -> tuple[ExportedProgram, RewriteLog]:
    """Rewrite a copy of `program` with the enabled plugins: passes, then operators.

    The program given is left as it was. In-place operators are made functional first.

    Raises:
        PluginFailedError: a plugin raised, or broke the graph.
        PluginClashError: two enabled plugins claim one operator.
    """
    choices = [choice for choice in selection.enabled if choice.plugin.serves(context.target)]
    log = RewriteLog(limit=context.application_limit)
    with TORCH_TURN, _collector_paused():
        program = _own_copy(program)
        for choice in choices:
            if choice.plugin.implements("rewrite_graph"):
                _apply_pass(program, choice, context, log)
        expand_operators(program, choices, context, log)
        _renew_signature(program)
        if log.applications:
            # Once, at the end: writing a graph's code takes longer than most passes over it.
            for _, module in sub_graphs(program.graph_module):
                module.recompile()
    return program, log


def _apply_pass(
    program: ExportedProgram, choice: Choice, context: LoweringContext, log: RewriteLog
) -> None:
    plugin = choice.plugin
    for path, module in sub_graphs(program.graph_module):
        before = set(module.graph.nodes)
        first_event = len(log.events)
        view = GraphRewrite(module, path, program, context, plugin, log)
        with log.timed(plugin), blamed_on(plugin, "rewrite_graph"):
            plugin.call("rewrite_graph", graph=view, options=choice.options, context=context)
        if any(event.rewrote for event in log.events[first_event:]):
            with blamed_on(plugin, "rewrite_graph (the graph it left is not sound)"):
                module.graph.lint()
                stamp_new_nodes(module.graph, before, plugin)


@contextmanager
def _collector_paused() -> Iterator[None]:
    """Hold the cyclic garbage collector back.

    Its full passes walk every node alive each time, which makes the rewriting of a large graph
    grow faster than the graph.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _own_copy(program: ExportedProgram) -> ExportedProgram:
    """A program whose graphs may be edited, functional; weights are shared, not copied."""
    if any(
        _writes_in_place(node)
        for _, g in sub_graphs(program.graph_module)
        for node in g.graph.nodes
    ):
        functional: ExportedProgram = program.run_decompositions({})
        return functional
    root, graph = _own_graph(program.graph_module, {})
    own = ExportedProgram(
        root=root,
        graph=graph,
        graph_signature=copy.deepcopy(program.graph_signature),
        state_dict=program.state_dict,
        range_constraints=dict(program.range_constraints),
        module_call_graph=list(program.module_call_graph),
        example_inputs=program.example_inputs,
        constants=program.constants,
        verifiers=program.verifiers,
    )
    own.graph_module.meta.update(program.graph_module.meta)
    return own


def _own_graph(
    module: fx.GraphModule, copies: dict[fx.GraphModule, fx.GraphModule]
) -> tuple[dict[str, Any], fx.Graph]:
    """A copy of the graph, with what its `get_attr` nodes name: sub-graphs copied, tensors not.

    `copies` holds the sub-graphs copied so far: one that two nodes share stays shared.
    """
    named: dict[str, Any] = {}
    for target in dict.fromkeys(str(n.target) for n in module.graph.find_nodes(op="get_attr")):
        value = operator.attrgetter(target)(module)
        if isinstance(value, fx.GraphModule):
            if value not in copies:
                copies[value] = fx.GraphModule(*_own_graph(value, copies))
                copies[value].meta.update(value.meta)
            value = copies[value]
        named[target] = value
    graph = copy.deepcopy(module.graph)
    for old, new in zip(module.graph.nodes, graph.nodes, strict=True):
        # A copied graph renames an argument called like a Python built-in, such as `input`; the
        # signature knows it by the name it had.
        new.name = old.name
    return named, graph


def _writes_in_place(node: fx.Node) -> bool:
    return isinstance(node.target, torch._ops.OpOverload) and node.target._schema.is_mutable


def _renew_signature(program: ExportedProgram) -> None:
    """Give the signature's outputs the names of the nodes that are returned now."""
    returned = program.graph.output_node().args[0]
    specs = program.graph_signature.output_specs
    assert isinstance(returned, (tuple, list))
    for spec, value in zip(specs, returned, strict=True):
        if isinstance(value, fx.Node) and hasattr(spec.arg, "name"):
            spec.arg = replace(spec.arg, name=value.name)
