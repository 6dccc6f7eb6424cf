"""What a lowered method takes and gives, recorded in the artifact so that a runner can check it.

Exported programs keep this in fake tensors and symbolic sizes; an artifact keeps it as JSON. A
size is a number, or a `Size` with its range and, where it is one symbol or a multiple of one, the
relation by which sizes of several inputs must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import InputKind, OutputKind
from torch.utils import _pytree as pytree

from graftwork.plugins.torch_private import FakeTensor, size_in_symbols

__all__ = ["Constant", "Input", "Signature", "Size", "dense_order", "record_signature"]


@dataclass(frozen=True)
class Size:
    """A size that differs from call to call: `times * symbol + plus`, from `low` to `high`.

    `symbol` is empty where the size is another expression, and `high` None where it has no bound.
    """

    symbol: str
    times: int
    plus: int
    low: int
    high: int | None

    def holds(self, size: int) -> bool:
        """Whether a concrete size is in the range and a multiple where it must be one."""
        return self.low <= size and (self.high is None or size <= self.high) and self.fits(size)

    def fits(self, size: int) -> bool:
        """Whether the symbol would be a whole number for this size."""
        return not self.symbol or (size - self.plus) % self.times == 0

    def value(self, size: int) -> int:
        """The symbol's value where this size is `size`."""
        return (size - self.plus) // self.times


@dataclass(frozen=True)
class Input:
    """One tensor that a method takes.

    Attributes:
        name: as the exported program names it.
        dtype: such as `float32`.
        shape: a number or a `Size` for each dim.
        device: `cpu` or `cuda`.
        order: the dims from the slowest to the fastest in memory, for a dense input; else None.
        strides: the strides it was exported with, for one that is not dense; else None.
        written: whether the method writes it in place.
        example: the shape it was exported with.
        values: the smallest and the largest finite value of the example, where there was one.
    """

    name: str
    dtype: str
    shape: tuple[int | Size, ...]
    device: str
    order: tuple[int, ...] | None = None
    strides: tuple[int, ...] | None = None
    written: bool = False
    example: tuple[int, ...] | None = None
    values: tuple[float, float] | None = None


@dataclass(frozen=True)
class Constant:
    """An input or output that is the same in every call: None, a number, a text."""

    name: str
    value: Any


@dataclass(frozen=True)
class Signature:
    """One method's inputs and outputs, flat, with the trees they come from and go to.

    Attributes:
        inputs: the leaves of `in_spec`, which is over (args, kwargs); None in place of all of
            them where an artifact does not say.
        outputs: the leaves of `out_spec`, None for a tensor; None in place of all of them too.
        in_spec, out_spec: as pytree's `treespec_dumps` writes them, empty where a user's own
            container cannot be written down; the leaves are then taken and given as they are.
        buffers: the buffers that the method writes.
        host_constants: constants that stay in host memory although the method runs on a GPU.
    """

    inputs: tuple[Input | Constant, ...] | None
    outputs: tuple[Constant | None, ...] | None
    in_spec: str
    out_spec: str
    buffers: tuple[str, ...] = ()
    host_constants: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready record."""
        return {
            "inputs": [_input_to_json(item) for item in self.inputs or ()],
            "outputs": [
                None if item is None else {"constant": item.value} for item in self.outputs or ()
            ],
            "in_spec": self.in_spec,
            "out_spec": self.out_spec,
            "buffers": list(self.buffers),
            "host_constants": list(self.host_constants),
        }

    @classmethod
    def from_json(cls, record: Mapping[str, Any]) -> Signature:
        """The signature that `to_json` wrote."""
        return cls(
            tuple(_input_from_json(item) for item in record["inputs"]),
            tuple(
                None if item is None else Constant("", item["constant"])
                for item in record["outputs"]
            ),
            record["in_spec"],
            record["out_spec"],
            tuple(record["buffers"]),
            tuple(record["host_constants"]),
        )


def record_signature(program: ExportedProgram, device: str = "") -> Signature:
    """Read a program's signature.

    Args:
        program: an exported program, functional: only that names what is written in place.
        device: where the artifact will run, if that is not where the program's tensors are.
    """
    values = {node.name: node.meta.get("val") for node in program.graph.nodes}
    written = set(program.graph_signature.user_inputs_to_mutate.values())
    examples = _examples(program)
    inputs: list[Input | Constant] = []
    for spec in program.graph_signature.input_specs:
        if spec.kind is not InputKind.USER_INPUT:
            continue
        name, value = spec.arg.name, values.get(spec.arg.name)
        example = examples[len(inputs)] if len(inputs) < len(examples) else None
        if isinstance(value, torch.Tensor):
            shape = tuple(_size(size, program.range_constraints) for size in value.shape)
            inputs.append(_describe(name, value, shape, example, device, name in written))
        else:
            inputs.append(Constant(name, _plain(getattr(spec.arg, "value", example))))
    outputs = [
        None if (value := _constant_output(spec)) is _NO_CONSTANT else Constant("", value)
        for spec in program.graph_signature.output_specs
        if spec.kind in (OutputKind.USER_OUTPUT, OutputKind.LOSS_OUTPUT)
    ]
    on_gpu = any(isinstance(item, Input) and item.device == "cuda" for item in inputs)
    return Signature(
        tuple(inputs),
        tuple(outputs),
        _dumped(program.call_spec.in_spec),
        _dumped(program.call_spec.out_spec),
        tuple(sorted(set(program.graph_signature.buffers_to_mutate.values()))),
        tuple(_host_constants(program)) if on_gpu and not device else (),
    )


def _describe(
    name: str,
    value: torch.Tensor,
    shape: tuple[int | Size, ...],
    example: Any,
    device: str,
    written: bool,
) -> Input:
    known = example if isinstance(example, torch.Tensor) else None
    symbolic = any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride()))
    measured = known if symbolic else value
    order = strides = None
    if measured is not None:
        order = dense_order(measured)
        if order is None and not symbolic and _is_one_to_one(value):
            strides = tuple(int(stride) for stride in value.stride())
    return Input(
        name,
        str(value.dtype).removeprefix("torch."),
        shape,
        device or value.device.type,
        order,
        strides,
        written,
        tuple(known.shape) if known is not None else None,
        _extent(known),
    )


def _size(size: Any, ranges: Mapping[Any, Any]) -> int | Size:
    if not isinstance(size, torch.SymInt):
        return int(size)
    return Size(*size_in_symbols(size, ranges))


def dense_order(tensor: torch.Tensor) -> tuple[int, ...] | None:
    """The dims from slowest to fastest, where a tensor fills its memory without gaps."""
    sizes, strides = tensor.shape, tensor.stride()
    order = sorted(range(tensor.dim()), key=lambda dim: (-strides[dim], sizes[dim] == 1, dim))
    if tensor.is_contiguous():
        return tuple(range(tensor.dim()))
    expected = 1
    for dim in reversed(order):
        if sizes[dim] != 1 and strides[dim] != expected:
            return None
        expected *= sizes[dim]
    return tuple(order)


def _is_one_to_one(tensor: torch.Tensor) -> bool:
    """Whether no two elements share memory, so that another tensor can be copied in."""
    reach = 1
    dims = [d for d in range(tensor.dim()) if tensor.shape[d] != 1]
    for dim in sorted(dims, key=tensor.stride):
        if tensor.stride(dim) < reach:
            return False
        reach = tensor.stride(dim) * tensor.shape[dim]
    return True


def _extent(example: torch.Tensor | None) -> tuple[float, float] | None:
    if example is None or isinstance(example, FakeTensor) or example.is_complex():
        return None
    values = example.detach().to("cpu")
    values = values.double() if values.is_floating_point() else values.long()
    values = values[values.isfinite()]
    return (values.min().item(), values.max().item()) if values.numel() else None


def _examples(program: ExportedProgram) -> Sequence[Any]:
    return pytree.tree_leaves(program.example_inputs) if program.example_inputs else ()


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


_NO_CONSTANT = object()


def _constant_output(spec: Any) -> Any:
    return _plain(spec.arg.value) if hasattr(spec.arg, "value") else _NO_CONSTANT


def _dumped(spec: Any) -> str:
    try:
        return str(pytree.treespec_dumps(spec))
    except Exception:  # a container registered without a name to write it down by
        return ""


def _host_constants(program: ExportedProgram) -> Sequence[str]:
    """Names of the tensors in host memory that the program holds.

    A number that nothing writes is left out: the compiler puts it into the code.
    """
    kinds = (InputKind.PARAMETER, InputKind.BUFFER, InputKind.CONSTANT_TENSOR)
    held = {**program.state_dict, **program.constants}
    found = set()
    for spec in program.graph_signature.input_specs:
        tensor = held.get(spec.target or "") if spec.kind in kinds else None
        number = spec.kind is InputKind.CONSTANT_TENSOR and getattr(tensor, "ndim", 1) == 0
        if isinstance(tensor, torch.Tensor) and tensor.device.type == "cpu" and not number:
            found.add(str(spec.target))
    return sorted(found)


def _input_to_json(item: Input | Constant) -> dict[str, Any]:
    if isinstance(item, Constant):
        return {"name": item.name, "constant": item.value}
    record: dict[str, Any] = {
        "name": item.name,
        "dtype": item.dtype,
        "shape": [size if isinstance(size, int) else vars(size) for size in item.shape],
        "device": item.device,
        "written": item.written,
    }
    for key in ("order", "strides", "example", "values"):
        value = getattr(item, key)
        record[key] = None if value is None else list(value)
    return record


def _input_from_json(record: Mapping[str, Any]) -> Input | Constant:
    if "dtype" not in record:
        return Constant(record["name"], record["constant"])
    shape = tuple(size if isinstance(size, int) else Size(**size) for size in record["shape"])
    lists = {
        key: None if record[key] is None else tuple(record[key])
        for key in ("order", "strides", "example", "values")
    }
    return Input(
        record["name"],
        record["dtype"],
        shape,
        record["device"],
        lists["order"],
        lists["strides"],
        record["written"],
        lists["example"],
        lists["values"],
    )
