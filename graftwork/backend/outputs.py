"""Outputs of a program as a runtime takes them: in tuples, and contiguous.

`return torch.max(x, 1)` is a `torch.return_types.max`, whose name neither ExecuTorch nor
AOTInductor can write down; `return_plain_tuples` makes a tuple of it.

`return x + 1, 3`: AOTInductor returns tensors and None only. `return_no_constants` takes the
constants out before it compiles, and `model_outputs` puts them back from the recorded signature.
It also makes a number of `x.shape[0]`, which a compiled library gives as a tensor.

`return x.t()`: ExecuTorch's CUDA runtime lands an output in a tensor whose layout was planned from
the program, and takes it from the delegate only where it is contiguous. `make_outputs_contiguous`
copies the others at the end of the program, so that the plan and the delegate agree.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, OutputKind, TensorArgument
from torch.utils import _pytree as pytree

from graftwork.backend.signature import Constant, Number, Signature
from graftwork.plugins import torch_private

__all__ = [
    "is_contiguous",
    "make_outputs_contiguous",
    "model_outputs",
    "return_no_constants",
    "return_plain_tuples",
]


def return_plain_tuples(program: ExportedProgram) -> None:
    """Have the program return tuples for `torch.return_types`, in place."""
    entry, *rest = program.module_call_graph
    signature = entry.signature
    if signature is None:
        return
    spec = signature.out_spec
    plain = _plain(spec)
    if plain != spec:
        signature = dataclasses.replace(signature, out_spec=plain)
        program.module_call_graph[:] = [dataclasses.replace(entry, signature=signature), *rest]


def _plain(spec: Any) -> Any:
    """The spec alone is read: a container made of anything but its own outputs may differ."""
    if spec.is_leaf():
        return spec
    children = [_plain(child) for child in spec.children()]
    if spec.type.__module__ == "torch.return_types":
        return pytree.treespec_tuple(children)
    return pytree.TreeSpec(spec.type, spec.context, children)


def return_no_constants(program: ExportedProgram) -> None:
    """Have the program return None in place of each constant, in place."""
    graph = program.graph_module.graph
    (end,) = [node for node in graph.nodes if node.op == "output"]
    results, specs = list(end.args[0]), program.graph_signature.output_specs
    for at, spec in enumerate(specs):
        if isinstance(spec.arg, ConstantArgument):
            results[at] = None
            specs[at] = dataclasses.replace(spec, arg=ConstantArgument(spec.arg.name, None))
    end.args = (tuple(results),)
    program.graph_module.recompile()


def model_outputs(signature: Signature, found: Sequence[Any]) -> list[Any]:
    """The flat outputs as the model gives them, of those that a run gave.

    A run gives None for a constant, or leaves all of them out.
    """
    outputs = signature.outputs
    if outputs is None:
        return list(found)
    if len(found) != len(outputs):
        rest = iter(found)
        found = [None if isinstance(item, Constant) else next(rest) for item in outputs]
    return [_as_in_model(item, value) for item, value in zip(outputs, found, strict=True)]


def _as_in_model(item: Constant | Number | None, value: Any) -> Any:
    if isinstance(item, Constant):
        return item.value if value is None else value
    if isinstance(item, Number) and isinstance(value, torch.Tensor):
        return _NUMBERS[item.kind](value.item())
    return value


_NUMBERS = {"int": int, "float": float, "bool": bool}


def make_outputs_contiguous(program: ExportedProgram) -> int:
    """Copy, in place in the program, every user output with other strides; returns how many."""
    graph = program.graph_module.graph
    (end,) = [node for node in graph.nodes if node.op == "output"]
    results, specs = list(end.args[0]), program.graph_signature.output_specs
    count = 0
    for at, (result, spec) in enumerate(zip(results, specs, strict=True)):
        value = getattr(result, "meta", {}).get("val")
        if spec.kind is not OutputKind.USER_OUTPUT or not isinstance(value, torch.Tensor):
            continue
        if is_contiguous(value):
            continue
        with graph.inserting_before(end):
            copied = graph.call_function(
                torch.ops.aten.clone.default,
                (result,),
                {"memory_format": torch.contiguous_format},
            )
        copied.meta = dict(result.meta)
        copied.meta["val"] = value.clone(memory_format=torch.contiguous_format)
        results[at] = copied
        specs[at] = dataclasses.replace(spec, arg=TensorArgument(name=copied.name))
        count += 1
    if count:
        end.args = (tuple(results),)
        program.graph_module.recompile()
    return count


def is_contiguous(value: torch.Tensor) -> bool:
    """Whether a tensor, or one that stands for it, is contiguous for every size; no guard."""
    expected: Any = 1
    for size, stride in reversed(list(zip(value.shape, value.stride(), strict=True))):
        if torch_private.statically_known_true(size == 1):
            continue
        if not torch_private.statically_known_true(stride == expected):
            return False
        expected = expected * size
    return True
