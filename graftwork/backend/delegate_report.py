"""Says why a CUDA delegate could not be made in terms of its graph: operators, lines, plugins.

The compiler and the audit speak of C++ functions: `at::_ops::topk::call`,
`aoti_torch_cuda_scatter_src_out`, `aoti_torch_dtype_float64`. Each stands for an operator, or for
a dtype that crosses a kernel's boundary; the graph says where it came from.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import fx

from graftwork.backend.audit import Finding, op_of_symbol
from graftwork.backend.cuda_options import CudaOptions
from graftwork.backend.unlowered import UnloweredReport
from graftwork.plugins.errors import NotLowerableError

__all__ = ["raise_refusals"]


def raise_refusals(
    options: CudaOptions, program: Any, missing: Iterable[str], findings: Sequence[Finding]
) -> None:
    """Raise one `NotLowerableError` for everything found about a delegate; nothing if nothing was.

    `missing` are the C++ operators that Inductor has no kernel for, `findings` the audit's.
    """
    missing = sorted(missing)
    report = UnloweredReport(options.selection(), options.context())
    for name in missing:
        op = _op_of_fallback(name)
        report.add(
            op,
            f"Inductor generates no kernel, and the ExecuTorch {options.release} runtime has none",
            _nodes(program, op),
        )
    others = []
    for finding in findings:
        if finding.kind != "symbol":
            others.append(str(finding))
            continue
        if finding.name in _FOLLOWS and len(findings) + len(missing) > 1:
            continue
        why = f"it calls {finding.name}, which ExecuTorch {options.release} lacks"
        dtype = _dtype_of(finding.name)
        if dtype is not None:
            report.add(*_refused_dtype(program, dtype, why))
            continue
        op = _op_of_fallback(finding.name)
        report.add(op, why, _nodes(program, op))
    if others and not report.entries:
        raise NotLowerableError("\n".join(others))
    report.raise_if_any()


def _dtype_of(symbol: str) -> torch.dtype | None:
    """The dtype that `aoti_torch_dtype_float64` stands for; None for any other function."""
    dtype = getattr(torch, symbol.removeprefix("aoti_torch_dtype_"), None)
    return dtype if isinstance(dtype, torch.dtype) else None


def _refused_dtype(
    program: Any, dtype: torch.dtype, why: str
) -> tuple[str, str, list[fx.Node], str]:
    """The report's entry for a dtype at a kernel's boundary: where it is, and what to do."""
    nodes = [n for n in program.graph_module.graph.nodes if _has_dtype(n, dtype)]
    calls = [node for node in nodes if node.op == "call_function"]
    readers = [user for node in nodes if node.op == "placeholder" for user in node.users]
    signature = program.graph_signature
    weights = {**signature.inputs_to_parameters, **signature.inputs_to_buffers}
    weights |= signature.inputs_to_lifted_tensor_constants
    named = [
        f"weight {weights[node.name]}" if node.name in weights else f"input {node.name}"
        for node in nodes
        if node.op == "placeholder"
    ]
    short = str(dtype).removeprefix("torch.")
    if named:
        why = f"{why} ({', '.join(named[:_SHOWN])}{', ...' if len(named) > _SHOWN else ''})"
    remedy = f"convert to another dtype what is {short} at a kernel's boundary"
    return f"{short} tensors", why, calls or readers, remedy


def _has_dtype(node: fx.Node, dtype: torch.dtype) -> bool:
    return getattr(node.meta.get("val"), "dtype", None) == dtype


_SHOWN = 5


def _op_of_fallback(name: str) -> str:
    """An operator's name, `aten::topk`, from what a wrapper calls for it."""
    match = re.fullmatch(r"at::_ops::(\w+?)(?:_out)?::call", name)
    if match is not None:
        return f"aten::{match.group(1)}"
    op = op_of_symbol(name)
    if op is None:
        return name
    namespace, base, *_ = op.split(".")
    return f"{namespace}::{base}"


# Functions that only a call to a missing kernel needs; that kernel is reported.
_FOLLOWS = frozenset(
    {"aoti_torch_proxy_executor_call_function", "aoti_torch_new_uninitialized_tensor"}
)

# What reaches the wrapper under another name than in the graph.
_WRITTEN_AS = {
    "aten::scatter_reduce": ("aten::scatter_add", "aten::scatter", "aten::index_add"),
    "aten::index_put": ("aten::index_put_", "aten::_unsafe_index_put", "aten::scatter_add"),
    "aten::scatter": ("aten::scatter_", "aten::scatter_add"),
    "aten::addmm": ("aten::linear",),
    "aten::mm": ("aten::linear", "aten::matmul"),
    "aten::bmm": ("aten::matmul", "aten::scaled_dot_product_attention"),
    "aten::_local_scalar_dense": ("aten::item",),
    "aten::nonzero": ("aten::index", "aten::index_put", "aten::masked_select"),
    "aten::_fft_r2c": ("aten::fft_rfft", "aten::fft_rfftn", "aten::fft_rfft2", "aten::stft"),
    "aten::_fft_c2c": ("aten::fft_fft", "aten::fft_fftn", "aten::fft_ifft"),
    "aten::_linalg_check_errors": ("aten::linalg_inv", "aten::linalg_cholesky", "aten::inverse"),
    "aten::convolution": ("aten::conv1d", "aten::conv2d", "aten::conv3d"),
}


def _nodes(program: Any, op: str) -> list[fx.Node]:
    found = _call_nodes(program)
    return found.get(op) or next(
        (found[other] for other in (*_WRITTEN_AS.get(op, ()), *_parts_of(op)) if other in found),
        [],
    )


def _parts_of(op: str) -> tuple[str, ...]:
    """The public operators that a private one is a part of: cdist of _cdist_forward."""
    namespace, _, name = op.partition("::")
    stem = re.sub(r"_(forward|ex|helper)$", "", name.removeprefix("_"))
    return (f"{namespace}::{name.removeprefix('_')}", f"{namespace}::{stem}")


def _call_nodes(program: Any) -> dict[str, list[fx.Node]]:
    found: dict[str, list[fx.Node]] = {}
    for module in program.graph_module.modules():
        if isinstance(module, fx.GraphModule):
            for node in module.graph.nodes:
                overload = getattr(node.target, "_op", node.target)
                schema = getattr(overload, "_schema", None)
                if node.op == "call_function" and schema is not None:
                    found.setdefault(str(schema.name), []).append(node)
    return found
