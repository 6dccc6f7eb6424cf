"""Kernels compiled for every supported GPU on a machine with none, and anew for a test on one."""

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import triton
from machine_code import shared_layouts, unwritten_reads
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.experimental.gluon._runtime import GluonASTSource
from triton.runtime.jit import JITFunction

from graftwork.plugins.toolkit import gluon, kernels
from graftwork.shims_cuda.sort import block_kernels, radix_kernels
from graftwork.shims_cuda.stages import (
    atomic_sum,
    columns,
    extremum,
    few_writes,
    fold,
    grouping,
    last_writer,
    marks,
    mask,
    planes,
    tiles,
)
from graftwork.shims_cuda.unique import kernels as unique_kernels

TARGETS = {
    **{f"sm_{arch}": GPUTarget("cuda", arch, 32) for arch in (80, 86, 89, 90, 100, 120)},
    **{arch: GPUTarget("hip", arch, 64) for arch in ("gfx90a", "gfx942")},
}
_POINTERS = {
    torch.float64: "*fp64",
    torch.float32: "*fp32",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
    torch.uint8: "*u8",
    torch.bool: "*i1",
}


@pytest.fixture
def compile_everywhere(monkeypatch: pytest.MonkeyPatch) -> Callable[..., set[str]]:
    """``compile_everywhere(call)``: the names of the kernels that it compiled.

    ``call`` runs operators on CPU tensors. Its launches are recorded instead of run (so what it
    returns is not initialised), then compiled for each target with their device asserts on:
    every launch that differs in types or constants, or only the first one of each kernel, as
    for eight targets that is a matter of minutes. A kernel in Gluon is compiled for Hopper GPUs,
    in place of its stand-in. ``backend`` keeps to the targets of "cuda" or
    "hip".
    """

    def compile_launches(
        call: Callable[[], Any], every: bool = False, backend: str = ""
    ) -> set[str]:
        launches: dict[Any, Any] = {}
        with monkeypatch.context() as patch:
            patch.setattr(kernels, "interpreted", lambda kernel: _recorder(kernel, launches))
            patch.setattr(kernels, "is_interpreted", lambda tensor: False)
            call()
        assert launches, "the call launched no kernel"
        first = {kernel: launch for launch in reversed(launches.values()) for kernel in launch[:1]}
        for kernel, signature, constants, options in (launches if every else first).values():
            for name, target in TARGETS.items():
                behind = gluon.kernel_behind(kernel)
                if backend not in ("", target.backend) or (behind and target.arch != 90):
                    continue
                source = ASTSource(kernel, dict(signature), dict(constants))
                if behind is not None:
                    source = GluonASTSource(behind, dict(signature), dict(constants))
                switches = {"debug": behind is None, "sanitize_overflow": False, **options}
                binary = triton.compile(source, target=target, options=switches)
                machine_code = "cubin" if target.backend == "cuda" else "hsaco"
                assert binary.asm[machine_code], f"{kernel.fn.__name__} on {name}"
                if "wgmma" in binary.asm.get("ptx", ""):
                    where = f"{kernel.fn.__name__} on {name}, see machine_code.py: "
                    layouts, reads = shared_layouts(binary.asm["ptx"]), unwritten_reads(binary)
                    assert len(layouts) <= 1, f"{where}several layouts of shared memory {layouts}"
                    assert not reads, f"{where}reads of unwritten uniform registers {reads}"
        return {kernel.fn.__name__ for kernel, *_ in launches.values()}

    return compile_launches


@contextmanager
def _recorder(kernel: JITFunction, launches: dict[Any, Any]) -> Iterator[Any]:
    class Recorder:
        def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
            return self.record

        @staticmethod
        def record(*args: Any, **options: Any) -> None:
            bound = dict(zip(kernel.arg_names, args, strict=False))
            settings = {k: v for k, v in options.items() if k not in kernel.arg_names}
            bound |= {k: v for k, v in options.items() if k in kernel.arg_names}
            constexprs = {p.name for p in kernel.params if p.is_constexpr}
            constexprs |= {k for k, v in bound.items() if type(v) is int and v == 1}
            constants = {k: v for k, v in bound.items() if k in constexprs}
            signature = {k: "constexpr" if k in constants else _type(v) for k, v in bound.items()}
            key = (kernel, *signature.items(), *constants.items(), *settings.items())
            launches[key] = (kernel, signature, constants, settings)

    yield Recorder()


def _type(arg: object) -> str:
    if isinstance(arg, torch.Tensor):
        return _POINTERS[arg.dtype]
    if isinstance(arg, bool):
        return "i1"
    if isinstance(arg, int):
        return "i32" if -(2**31) <= arg < 2**31 else "i64"
    assert isinstance(arg, float), f"no Triton type known for {arg!r}"
    return "fp32"


@pytest.fixture
def one_kernel_a_dtype() -> Iterator[None]:
    """Compile no kernel anew for sizes that are 1 or multiples of 16, nor for alignment."""
    modules = (atomic_sum, columns, extremum, few_writes, fold, grouping, last_writer, marks)
    modules += (mask, planes, tiles, block_kernels, radix_kernels, unique_kernels)
    parameters = [
        parameter
        for module in modules
        for kernel in vars(module).values()
        if isinstance(kernel, JITFunction)
        for parameter in kernel.params
    ]
    before = [(p, p.do_not_specialize, p.do_not_specialize_on_alignment) for p in parameters]
    for p in parameters:
        p.do_not_specialize = p.do_not_specialize_on_alignment = not p.is_constexpr
    _clear_kernels(modules)
    yield
    for p, specialize, align in before:
        p.do_not_specialize, p.do_not_specialize_on_alignment = specialize, align
    _clear_kernels(modules)


def _clear_kernels(modules: tuple[types.ModuleType, ...]) -> None:
    for module in modules:
        for kernel in vars(module).values():
            if isinstance(kernel, JITFunction):
                kernel.device_caches.clear()
