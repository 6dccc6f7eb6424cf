"""Values that no input changes are computed once, before a program is built.

The windows and weights of a resize, position grids, causal masks: `torch.arange` and what is
computed from it alone. ExecuTorch would compute them anew in every call, one kernel after the
other, and its own passes take time for every node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import fx
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.utils import _pytree as pytree

from graftwork.plugins.torch_private import FakeTensor, fake_mode_of

LARGEST = 2**16  # bytes; what is larger is cheaper to compute than to store
_UNDEFINED = ("empty", "empty_like", "empty_strided", "empty_permuted", "new_empty")


def fold_constants(program: ExportedProgram) -> ExportedProgram:
    """A program whose input-independent values are constants; `program` itself where it has none.

    `program` is functional and on the CPU. Folds nodes of the root graph that are pure, of static
    shape and at most `LARGEST` bytes, and whose value comes from such nodes and lifted constants
    alone. A node without tensor inputs, `full` say, stays where other nodes need it: it is one
    kernel either way. The given program's graph is edited; its constants are not.
    """
    values = _known_values(program)
    needed = [node for node in values if _is_worth_storing(node, values)]
    if not needed:
        return program
    constants = dict(program.constants)
    specs = {spec.arg.name: spec for spec in program.graph_signature.input_specs}
    graph = program.graph
    first_input = _first_user_input(program)
    mode = fake_mode_of([node.meta["val"] for node in needed])
    assert mode is not None
    for node in needed:
        name = _free_name("folded", constants)
        constants[name] = values[node]
        with graph.inserting_before(first_input):
            constant = graph.placeholder(name)
        constant.meta = {**node.meta, "val": mode.from_tensor(values[node], static_shapes=True)}
        node.replace_all_uses_with(constant)
        specs[constant.name] = InputSpec(
            InputKind.CONSTANT_TENSOR, TensorArgument(constant.name), name, None
        )
    for node in reversed(values):
        if node.op != "placeholder" and not node.users:
            graph.erase_node(node)
    signature = program.graph_signature
    signature.input_specs = [specs[n.name] for n in graph.find_nodes(op="placeholder")]
    program.graph_module.recompile()
    return ExportedProgram(
        root=program.graph_module,
        graph=graph,
        graph_signature=signature,
        state_dict=program.state_dict,
        range_constraints=program.range_constraints,
        module_call_graph=program.module_call_graph,
        example_inputs=program.example_inputs,
        constants=constants,
        verifiers=program.verifiers,
    )


def _known_values(program: ExportedProgram) -> dict[fx.Node, Any]:
    """Every node whose value is known before the program runs, in graph order."""
    lifted = program.graph_signature.inputs_to_lifted_tensor_constants
    values: dict[fx.Node, Any] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder" and node.name in lifted:
            if _is_small(node.meta.get("val")):
                values[node] = program.constants[lifted[node.name]]
        elif _is_foldable(node, values):
            args, kwargs = pytree.tree_map_only(fx.Node, values.get, (node.args, node.kwargs))
            with torch.no_grad():
                value = node.target(*args, **kwargs)
            values[node] = value.contiguous()  # ExecuTorch stores no expanded tensor
    return values


def _is_foldable(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    target = node.target
    return (
        node.op == "call_function"
        and isinstance(target, torch._ops.OpOverload)
        and all(source in values for source in node.all_input_nodes)
        and not node.is_impure()
        and target._schema.name.split("::")[-1] not in _UNDEFINED
        and _is_small(node.meta.get("val"))
    )


def _is_small(value: object) -> bool:
    """Whether a node's value is one tensor of static shape and few bytes."""
    return (
        isinstance(value, FakeTensor)
        and not value._has_symbolic_sizes_strides
        and value.numel() * value.element_size() <= LARGEST
    )


def _is_worth_storing(node: fx.Node, values: dict[fx.Node, Any]) -> bool:
    """Whether a known value is read by what is not known, and took some computing."""
    return (
        node.op != "placeholder"
        and bool(node.all_input_nodes)
        and any(reader not in values for reader in node.users)
        and not any(reader.op == "output" for reader in node.users)
    )


def _first_user_input(program: ExportedProgram) -> fx.Node:
    """The node before which constants stand."""
    inputs = set(program.graph_signature.user_inputs)
    nodes: Sequence[fx.Node] = list(program.graph.nodes)
    return next(node for node in nodes if node.op != "placeholder" or node.name in inputs)


def _free_name(stem: str, taken: dict[str, Any]) -> str:
    number = len(taken)
    while f"{stem}_{number}" in taken:
        number += 1
    return f"{stem}_{number}"
