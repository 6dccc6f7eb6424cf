"""`x[mask]`, `n.item()`, a padded product: calls that ExecuTorch's runtime lacks, by those it has.

The wrapper that Inductor writes around its kernels calls a few functions of libtorch for which
the runtime of ExecuTorch's CUDA delegate has another, so that the library would not load:

- A number read by the host is `aoti_torch_item_int64` and its like; the runtime reads bools
  only. While this patch is held the number is copied to a tensor in host memory and read there.
- A buffer that is allocated wider than it is used, so that padding it needs no copy, is narrowed
  with `aoti_torch_as_strided`; the runtime has `aoti_torch__reinterpret_tensor`.
"""

from __future__ import annotations

import inspect
import re
from contextlib import AbstractContextManager
from typing import Any

import torch

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private


@hookimpl
def describe_plugin() -> PluginInfo:
    """Calls that the runtime lacks, by those it has."""
    return PluginInfo(
        summary="numbers read by the host, and padded buffers, by calls that the runtime has",
        targets=frozenset({"cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    wrapper = torch_private.inductor_cpp_wrapper()

    def codegen_tensor_item(
        self: Any, dtype: torch.dtype, tensor: str, scalar: str, indented_buffer: Any = None
    ) -> None:
        if dtype == torch.bool:
            stock_item(self, dtype, tensor, scalar, indented_buffer)
            return
        writer = indented_buffer or self
        host, data = f"{scalar}_host", f"{scalar}_data"
        kind, device = self.codegen_dtype(dtype), self.codegen_device(torch.device("cpu"))
        cpp = torch_private.inductor_cpp_types()[dtype]
        half = dtype in (torch.float16, torch.bfloat16)
        for line in (
            f"AtenTensorHandle {host}_handle;",
            _checked(f"empty_strided(0, nullptr, nullptr, {kind}, {device}, &{host}_handle)"),
            f"RAIIAtenTensorHandle {host}({host}_handle);",
            _checked(f"copy_({host}, {tensor}, 0)"),
            f"void* {data};",
            _checked(f"get_data_ptr({host}, &{data})"),
            f"{'float' if half else cpp} {scalar} = *static_cast<{cpp}*>({data});",
        ):
            writer.writeline(line)

    stock_item = patches.set(wrapper, "codegen_tensor_item", codegen_tensor_item)

    def make_allocation(
        self: Any, name: str, device: Any, dtype: Any, shape: Any, *args: Any, **kwargs: Any
    ) -> str:
        before = len(self.wrapper_call._lines)
        made: str = stock_allocation(self, name, device, dtype, shape, *args, **kwargs)
        lines = self.wrapper_call._lines
        for at in range(before, len(lines)):
            if isinstance(lines[at], str):
                lines[at] = _AS_STRIDED.sub(
                    rf"aoti_torch__reinterpret_tensor(\1, {len(shape)}, \2, \3, 0, &", lines[at]
                )
        return made

    stock_allocation = patches.set(wrapper, "make_allocation", make_allocation)


_AS_STRIDED = re.compile(r"aoti_torch_as_strided\((\w+), (\w+), (\w+), &")


def _checked(call: str) -> str:
    return f"AOTI_TORCH_ERROR_CODE_CHECK(aoti_torch_{call});"


def _is_needed() -> bool:
    """Whether this torch's wrapper makes such a call."""
    wrapper: Any = torch_private.inductor_cpp_wrapper()
    return "aoti_torch_item_" in inspect.getsource(wrapper.codegen_tensor_item)


_patch = SharedPatch("runtime-calls", _apply, _is_needed)
