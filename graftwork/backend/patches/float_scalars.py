"""`x * t.item()`: a float read from a tensor must reach the kernel with all of its digits.

Three places of Inductor lose some:

- A CPU kernel takes every such number as a `float`, also one read from a float64 tensor:
  t = 1/3 is computed as 0.3333333432674408, 1e-300 as 0 (pytorch/pytorch#170289). While this
  patch is held it is a `double`, which holds any float the program can read.
- On the GPU the library's code takes it as an `int64_t` on the way to the kernel, so that a scale
  of 1.5 is computed as 0. While this patch is held it has the type that the kernel takes.
- A user's Triton kernel takes a Python float as float64, where Triton's own launch gives it
  float32, so that `x * 0.1` differs from eager (pytorch/pytorch#190340). While this patch is held
  it is what the launch would give.
"""

from __future__ import annotations

import inspect
import re
import threading
from contextlib import AbstractContextManager
from typing import Any

from graftwork.backend.patches.shared import SharedPatch
from graftwork.backend.patching import Patches
from graftwork.plugins import PluginInfo, hookimpl, torch_private

_TYPES = {"fp32": "float", "fp64": "double"}
_PARAMETER = re.compile(r"(\s*)(?:int64_t|float) (\w+),")


@hookimpl
def describe_plugin() -> PluginInfo:
    """Float scalars keep their type and digits."""
    return PluginInfo(
        summary="a float read with .item() reaches a kernel with all of its digits",
        targets=frozenset({"aoti", "cuda"}),
    )


@hookimpl
def patch_compile() -> AbstractContextManager[None]:
    """Hold the patch."""
    return _patch.held()


def _apply(patches: Patches) -> None:
    common = torch_private.inductor_codegen_common()

    def cpp_argdefs(self: Any, *args: Any, **kwargs: Any) -> Any:
        definitions, call_args, types = stock_argdefs(self, *args, **kwargs)
        # Sizes come last, in the order of `sizevars`.
        first = len(definitions) - len(self.sizevars)
        for index, (outer, inner) in enumerate(self.sizevars.items(), start=first):
            if torch_private.is_unbacked_float(outer):
                definitions[index] = f"const double {inner}"
                types[index] = "const double"
        return definitions, call_args, types

    stock_argdefs = patches.set(common.KernelArgs, "cpp_argdefs", cpp_argdefs)

    _on_the_gpu(patches)
    inside = threading.local()

    def define_kernel(self: Any, *args: Any, **kwargs: Any) -> Any:
        inside.users_kernel = True
        try:
            return stock_define(self, *args, **kwargs)
        finally:
            inside.users_kernel = False

    stock_define = patches.set(
        torch_private.inductor_python_wrapper(), "define_user_defined_triton_kernel", define_kernel
    )

    def signature_of(arg: Any, **kwargs: Any) -> Any:
        signature = stock_signature(arg, **kwargs)
        return "fp32" if signature == "fp64" and _in(inside) else signature

    stock_signature = patches.set(
        torch_private.inductor_triton_utils(), "signature_of", signature_of
    )


def _on_the_gpu(patches: Patches) -> None:
    calls = torch_private.inductor_triton_calls()
    call = calls.DeferredTritonCallWrapper

    def float_type(kernel: str, name: str) -> str | None:
        meta = (calls.CudaKernelParamCache.get(kernel) or {}).get("triton_meta") or {}
        return _TYPES.get(str(meta.get("signature", {}).get(name)))

    def parameter(self: Any, name: str, arg_type: Any, *args: Any, **kwargs: Any) -> Any:
        stock: str = stock_parameter(self, name, arg_type, *args, **kwargs)
        kind = float_type(self.kernel_name, name)
        return (
            f"{kind} {name}" if kind and stock in (f"int64_t {name}", f"float {name}") else stock
        )

    def generate(self: Any, wrapper: Any) -> None:
        lines = wrapper.prefix._lines
        first = len(lines)
        stock_generate(self, wrapper)
        for at in range(first, len(lines)):
            found = isinstance(lines[at], str) and _PARAMETER.fullmatch(lines[at])
            kind = float_type(self.kernel_name, found[2]) if found else None
            if found and kind:
                lines[at] = f"{found[1]}{kind} {found[2]},"

    if hasattr(call, "_get_cpp_param_type"):
        stock_parameter = patches.set(call, "_get_cpp_param_type", parameter)
    else:  # torch 2.11 writes a parameter where it writes the function
        stock_generate = patches.set(call, "generate", generate)


def _in(inside: threading.local) -> bool:
    return bool(getattr(inside, "users_kernel", False))


def _is_needed() -> bool:
    """Whether this torch's source still has one of the two."""
    arguments = torch_private.inductor_codegen_common().KernelArgs.cpp_argdefs
    signature = torch_private.inductor_triton_utils().signature_of
    return "const float {inner}" in inspect.getsource(
        arguments
    ) or 'return "fp64"' in inspect.getsource(signature)


_patch = SharedPatch("float-scalars", _apply, _is_needed)
