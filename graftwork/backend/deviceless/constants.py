"""Weights and buffers of a program whose GPU is not there: real CPU tensors, marked.

A constant keeps its bytes in CPU memory, and its storage is marked with the device it stands
for. Wherever torch asks where a constant lives (making a fake tensor of it, giving it to
Inductor's graph, writing the library's list of constants, ExecuTorch's list of weights), the
mark answers. A mark belongs to the storage, so every view of a marked tensor is marked.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import torch

from graftwork.backend.branches import inline_branch_constants
from graftwork.backend.deviceless.marks import CUDA, Marks
from graftwork.backend.deviceless.session import Session
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private

__all__ = ["apply", "move_program"]

CPU = torch.device("cpu")


def apply(patches: Patches, session: Session) -> None:
    """Have the marks answer for as long as the patches stand."""
    marks = session.marks
    patches.at_end(marks.clear)
    _fake_tensors(patches, marks)
    _inductor_graph(patches, marks)
    _cpp_wrapper(patches, marks)
    _constant_folding(patches)
    _executorch(patches, session, marks)


def move_program(program: Any, marks: Marks, device: torch.device = CUDA) -> Any:
    """Move an exported program to a device that is not there, in place.

    Constants stay where they are and get marked; fake tensors and device arguments are moved.
    """
    for name, value in list(program.state_dict.items()):
        marked = marks.set(value.detach(), device)
        if isinstance(value, torch.nn.Parameter):
            marked = torch.nn.Parameter(marked, requires_grad=False)
        program._state_dict[name] = marked
    for name, value in list(program.constants.items()):
        if isinstance(value, torch.Tensor):
            program._constants[name] = marks.set(value.detach(), device)
    program._example_inputs = None
    place = str(device).split(":")[0]
    for module in program.graph_module.modules():
        if not isinstance(module, torch.fx.GraphModule):
            continue
        for node in module.graph.nodes:
            if "device" in node.kwargs:
                node.kwargs = {**node.kwargs, "device": place}
            if node.op == "call_function" and node.target is torch.ops.aten.to.device:
                node.args = (node.args[0], place, *node.args[2:])
            if "val" in node.meta:
                node.meta["val"] = _move_fakes(node.meta["val"], device)
    program.validate()
    return program


def _move_fakes(value: Any, device: torch.device) -> Any:
    fake = torch_private.fake_tensor_module().FakeTensor

    def move(leaf: Any) -> Any:
        if not isinstance(leaf, fake):
            return leaf
        with torch.no_grad(), leaf.fake_mode:
            return leaf.detach().to(device)

    return torch.utils._pytree.tree_map(move, value)


def _fake_tensors(patches: Patches, marks: Marks) -> None:
    describer = torch_private.meta_tensor_describer()

    def describe_tensor(self: Any, tensor: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        described = original(self, tensor, *args, **kwargs)
        device = marks.get(tensor)
        return described if device is None else dataclasses.replace(described, device=device)

    original = patches.set(describer, "describe_tensor", describe_tensor)

    def clone_preserve_strides(tensor: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        copy: torch.Tensor = clone(tensor, *args, **kwargs)
        device = marks.get(tensor)
        return copy if device is None else marks.set(copy, device)

    clone = patches.set(
        torch_private.inductor_compile_fx(), "clone_preserve_strides", clone_preserve_strides
    )


def _inductor_graph(patches: Patches, marks: Marks) -> None:
    graph, ir, config = (
        torch_private.inductor_graph(),
        torch_private.inductor_ir(),
        torch_private.inductor_config(),
    )
    lowering = graph.GraphLowering

    def get_attr(self: Any, target: str, args: Any, kwargs: Any) -> Any:
        value = graph.getattr_recursive(self.module, target)
        device = marks.get(value)
        if device is None:
            return stock_get_attr(self, target, args, kwargs)
        kept = (
            config.aot_inductor.use_runtime_constant_folding
            or config.always_keep_tensor_constants
            or graph.unsupported_output_tensor(value)
            or target in self.mutated_named_buffers
        )
        if not kept:
            with torch_private.no_dispatch():
                if value.shape == ():
                    return ir.Constant(value=value.item(), dtype=value.dtype, device=device)
                if self.can_inline_constant(value):
                    inline = torch_private.inductor_tensor_lowering()
                    return inline(value.tolist(), dtype=value.dtype, device=device)
        return self.add_tensor_constant(value, target)

    stock_get_attr = patches.set(lowering, "get_attr", get_attr)

    def add_tensor_constant(self: Any, data: torch.Tensor, name: str | None = None) -> Any:
        box = stock_add(self, data, name)
        device = marks.get(data)
        if device is not None:
            box.data.data.layout.device = device
        return box

    stock_add = patches.set(lowering, "add_tensor_constant", add_tensor_constant)

    def constant_name(self: Any, name: str, device_override: torch.device | None) -> str:
        value = self.constants[name]
        device = marks.get(value) or value.device
        if device_override is None or _same_device(device, device_override):
            return name
        # The stock function would copy to the device; here a marked or unmarked clone is one.
        with torch_private.without_dispatch_modes():
            copy = value.clone()
        if device_override.type != "cpu":
            marks.set(copy, device_override)
        index = device_override.index or 0
        return str(self.allocate_non_dup_const_name(f"{name}_{device_override.type}{index}", copy))

    patches.set(lowering, "constant_name", constant_name)


def _same_device(a: torch.device, b: torch.device) -> bool:
    return a.type == b.type and (a.index or 0) == (b.index or 0)


def _cpp_wrapper(patches: Patches, marks: Marks) -> None:
    """Have the library's list of constants name the device that each stands for.

    The constructor asks the graph for a constant and then writes its tensor's device, so the
    constant asked for last is the one whose device is being written.
    """
    wrapper, lowering = (
        torch_private.inductor_cpp_wrapper(),
        torch_private.inductor_graph().GraphLowering,
    )
    last: list[torch.Tensor | None] = []

    def codegen_model_constructor(self: Any, *args: Any, **kwargs: Any) -> Any:
        last.append(None)
        try:
            return constructor(self, *args, **kwargs)
        finally:
            last.pop()

    def get_original_value_of_constant(self: Any, name: str) -> torch.Tensor:
        value: torch.Tensor = value_of(self, name)
        if last:
            last[-1] = value
        return value

    def codegen_device(self: Any, device: torch.device) -> str:
        if last and last[-1] is not None and device.type == "cpu":
            device = marks.get(last[-1]) or device
        return str(stock_device(self, device))

    constructor = patches.set(wrapper, "codegen_model_constructor", codegen_model_constructor)
    stock_device = patches.set(wrapper, "codegen_device", codegen_device)
    value_of = patches.set(
        lowering, "get_original_value_of_constant", get_original_value_of_constant
    )


class _OnCpu(torch_private.TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Makes on the CPU the real tensors that Inductor would make on the GPU for itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        def move(leaf: Any) -> Any:
            return CPU if isinstance(leaf, torch.device) and leaf.type == "cuda" else leaf

        args, kwargs = torch.utils._pytree.tree_map(move, (args, kwargs or {}))
        return func(*args, **kwargs)


def _constant_folding(patches: Patches) -> None:
    folder = torch_private.inductor_uniform_value_folder()
    for name in ("__init__", "run"):
        stock = getattr(folder, name)

        def on_cpu(self: Any, *args: Any, _stock: Any = stock, **kwargs: Any) -> Any:
            with _OnCpu():  # type: ignore[no-untyped-call]  # torch leaves it untyped
                return _stock(self, *args, **kwargs)

        patches.set(folder, name, on_cpu)


def _executorch(patches: Patches, session: Session, marks: Marks) -> None:
    try:
        from executorch.backends.cuda import cuda_backend
        from executorch.backends.cuda.passes.move_cond_predicate_to_cpu import (
            MoveCondPredicateToCpuPass,
        )
    except ImportError:
        return
    backend = cuda_backend.CudaBackend

    def move_program_to_device(cls: Any, program: Any, device: str, compile_specs: Any) -> Any:
        inline_branch_constants(program.graph_module, CUDA)
        return move_program(program, marks)

    patches.set(backend, "move_program_to_device", classmethod(move_program_to_device))

    def weight_device(tensor: torch.Tensor) -> int:
        on_gpu = (marks.get(tensor) or tensor.device).type == "cuda"
        return int(
            cuda_backend.AOTI_DEVICE_TYPE_CUDA if on_gpu else cuda_backend.AOTI_DEVICE_TYPE_CPU
        )

    patches.set(cuda_backend, "_aoti_device_type_for_weight", weight_device)
    # Stock: whether the installed torch and toolkit can; here: whether it was asked for.
    patches.set(backend, "_setup_cuda_environment_for_fatbin", staticmethod(lambda: session.ptx))

    def move_predicates(self: Any, program: Any) -> Any:
        result = stock_pass(self, program)
        buffers = program.graph_signature.inputs_to_buffers
        for node in program.graph_module.graph.nodes:
            name = buffers.get(node.name) if node.op == "placeholder" else None
            value = node.meta.get("val")
            if name not in program.constants or not isinstance(value, torch.Tensor):
                continue
            constant = program.constants[name]
            if value.device.type == "cpu" and marks.get(constant) is not None:
                program._constants[name] = constant.clone()  # a storage without a mark
        return result

    stock_pass = patches.set(MoveCondPredicateToCpuPass, "__call__", move_predicates)
