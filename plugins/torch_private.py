"""The one file that imports torch's private and experimental modules.

Checked on torch 2.11.0 and 2.13.0; `tests/plugins/test_torch_private.py` fails loudly
when a name moves. Each function says what it stands for; heavy modules are imported inside.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

CHECKED_RELEASES = ("2.11", "2.13")
_ENVIRONMENT = threading.Lock()
_NO_SYMBOLS: frozenset[Any] = frozenset()

__all__ = [
    "CHECKED_RELEASES",
    "FakeTensor",
    "FakeTensorMode",
    "TorchDispatchMode",
    "aoti_package_loader",
    "dispatch_mode_is_active",
    "dynamo_cuda_interface",
    "dynamo_device_properties",
    "ensure_cuda_device_guard",
    "fake_mode_of",
    "fake_tensor_module",
    "forget_pending_symbols",
    "free_tensor_handles",
    "give_back_pool",
    "has_cuda_build",
    "inductor_algorithm_selector",
    "inductor_async_compile",
    "inductor_codegen_common",
    "inductor_compile_fx",
    "inductor_config",
    "inductor_cpp_builder",
    "inductor_cpp_types",
    "inductor_cpp_wrapper",
    "inductor_device_memos",
    "inductor_fusion_result",
    "inductor_graph",
    "inductor_ir",
    "inductor_joint_graph",
    "inductor_lowerings",
    "inductor_nvcc_options",
    "inductor_pad_mm",
    "inductor_pattern_matcher",
    "inductor_post_grad",
    "inductor_python_wrapper",
    "inductor_scheduler",
    "inductor_size_hint",
    "inductor_template_caller",
    "inductor_tensor_lowering",
    "inductor_triton_calls",
    "inductor_triton_helpers",
    "inductor_triton_heuristics",
    "inductor_triton_kernel",
    "inductor_triton_utils",
    "inductor_uniform_value_folder",
    "inductor_utils",
    "inductor_vector_extensions",
    "is_unbacked_float",
    "meta_tensor_describer",
    "new_symbols",
    "no_dispatch",
    "rename_symbols",
    "run_on_fakes",
    "size_hint",
    "size_in_symbols",
    "statically_known_true",
    "suggest_memory_format",
    "symbol_range",
    "symbolic_expression",
    "tensor_handles",
    "trace_functional",
    "unbacked_bindings",
    "unbacked_symbols",
    "unguarded",
    "untraced",
    "upper_bound",
    "without_dispatch_modes",
]


def trace_functional(function: Callable[..., Any], inputs: Sequence[Any]) -> fx.GraphModule:
    """Trace `function` on fake tensors and symbolic scalars into an ATen graph.

    Composite operators are decomposed to their parts; every node has `meta["val"]`. Stands for
    `torch.fx.experimental.proxy_tensor.make_fx` under the inputs' own fake mode.
    """
    from torch.fx.experimental.proxy_tensor import make_fx

    mode = fake_mode_of(inputs)
    with torch.no_grad():
        if mode is None:
            with FakeTensorMode():
                return make_fx(function, tracing_mode="fake")(*inputs)
        with mode:
            return make_fx(function, tracing_mode="fake", _allow_non_fake_inputs=True)(*inputs)


def statically_known_true(condition: bool | torch.SymBool) -> bool:
    """Whether a symbolic condition holds for every size in range; adds no guard.

    Stands for `torch.fx.experimental.symbolic_shapes.statically_known_true`.
    """
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    return statically_known_true(condition)


def suggest_memory_format(tensor: torch.Tensor) -> torch.memory_format:
    """The memory format ATen gives a result like `tensor`; adds no guard on unbacked strides.

    Stands for `torch._prims_common.suggest_memory_format`.
    """
    from torch._prims_common import suggest_memory_format

    return suggest_memory_format(tensor)


def fake_mode_of(values: Any) -> FakeTensorMode | None:
    """The fake mode that the fake tensors among `values` (any pytree) belong to."""
    for value in torch.utils._pytree.tree_leaves(values):
        if isinstance(value, FakeTensor):
            return value.fake_mode
    return None


def forget_pending_symbols(mode: FakeTensorMode | None) -> None:
    """Forget symbols that a finished pass made and never bound to a node's output.

    The next trace under `mode` would raise PendingUnbackedSymbolNotFound at its first node, for
    symbols that are none of its own.
    """
    if mode is not None and mode.shape_env is not None:
        mode.shape_env.pending_fresh_unbacked_symbols.clear()


def symbolic_expression(value: Any) -> Any:
    """The sympy expression of a symbolic scalar; a plain number is itself."""
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return value.node.expr
    return value


def untraced() -> AbstractContextManager[object]:
    """While active, what runs on fake tensors is not recorded by `trace_functional`.

    Stands for `torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing`.
    """
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    return disable_proxy_modes_tracing()


def unbacked_bindings(node: fx.Node) -> Mapping[Any, Any]:
    """The unbacked symbols a node brings into being, with the path to each in its output."""
    return node.meta.get("unbacked_bindings") or {}


def rename_symbols(value: Any, names: Mapping[Any, Any], mode: FakeTensorMode) -> Any:
    """Replace symbols in a fake tensor's sizes and strides, or in a symbolic integer."""

    def scalar(item: Any) -> Any:
        if not isinstance(item, torch.SymInt) or mode.shape_env is None:
            return item
        return mode.shape_env.create_symintnode(item.node.expr.xreplace(dict(names)), hint=None)

    def rename(item: Any) -> Any:
        if not isinstance(item, FakeTensor):
            return scalar(item)
        sizes, strides = map(scalar, item.shape), map(scalar, item.stride())
        with mode:
            return torch.empty_strided(
                tuple(sizes), tuple(strides), dtype=item.dtype, device=item.device
            )

    return torch.utils._pytree.tree_map(rename, value)


def has_cuda_build() -> bool:
    """Whether torch was built with CUDA (then it has a device guard of its own)."""
    return bool(torch.cuda._is_compiled())


def ensure_cuda_device_guard() -> None:
    """Register the CUDA device guard of a CUDA build, without touching a device."""
    torch._C._ensureCUDADeviceGuardSet()


def inductor_config() -> Any:
    """torch._inductor.config, for its `patch`."""
    import torch._inductor.config as config

    return config


def dynamo_cuda_interface() -> type:
    """Dynamo's view of torch.cuda; it captured the functions when its class was made."""
    from torch._dynamo.device_interface import CudaInterface

    return CudaInterface


def dynamo_device_properties() -> dict[str, Any]:
    """Dynamo's memo of device properties, by device type."""
    from torch._dynamo.device_interface import caching_worker_device_properties

    return caching_worker_device_properties


def fake_tensor_module() -> ModuleType:
    """torch._subclasses.fake_tensor: FakeTensor, FakeTensorMode, init_gpu_context."""
    from torch._subclasses import fake_tensor

    return fake_tensor


def meta_tensor_describer() -> type:
    """What describes a real tensor so that a fake one can be made of it."""
    from torch._subclasses.meta_utils import MetaTensorDescriber

    return MetaTensorDescriber


def inductor_compile_fx() -> ModuleType:
    """torch._inductor.compile_fx: clone_preserve_strides."""
    from torch._inductor import compile_fx as module

    return module


def inductor_graph() -> ModuleType:
    """torch._inductor.graph: GraphLowering, getattr_recursive, unsupported_output_tensor."""
    from torch._inductor import graph as module

    return module


def inductor_ir() -> ModuleType:
    """torch._inductor.ir: Constant."""
    from torch._inductor import ir as module

    return module


def inductor_lowerings() -> dict[Any, Any]:
    """torch._inductor.lowering.lowerings: what each overload becomes."""
    from torch._inductor.lowering import lowerings

    table: dict[Any, Any] = lowerings
    return table


def inductor_tensor_lowering() -> Any:
    """Inductor's lowering of torch.tensor, which inlines small constants."""
    from torch._inductor.lowering import tensor

    return tensor


def is_unbacked_float(symbol: Any) -> bool:
    """Whether a symbol stands for a float that the program reads from a tensor."""
    from torch.utils._sympy.symbol import SymT, symbol_is_type

    return bool(symbol_is_type(symbol, SymT.UNBACKED_FLOAT))


def inductor_cpp_wrapper() -> type:
    """The writer of the library's C++ side."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    return CppWrapperCpu


def inductor_cpp_types() -> Mapping[torch.dtype, str]:
    """The C++ type of each dtype in the library's wrapper."""
    from torch._inductor.codegen.cpp_utils import DTYPE_TO_CPP

    types: Mapping[torch.dtype, str] = DTYPE_TO_CPP
    return types


def inductor_triton_calls() -> ModuleType:
    """How the library calls a Triton kernel: DeferredTritonCallWrapper, CudaKernelParamCache."""
    from torch._inductor.codegen import cpp_wrapper_gpu as module

    return module


def inductor_nvcc_options() -> ModuleType:
    """torch._inductor.codegen.cuda.compile_utils: _nvcc_arch_as_compile_option."""
    from torch._inductor.codegen.cuda import compile_utils as module

    return module


def inductor_python_wrapper() -> type:
    """The writer of the block that compiles kernels at lowering time."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    return PythonWrapperCodegen


def inductor_triton_kernel() -> Any:
    """The writer of a fused Triton kernel: inductor_meta_common."""
    from torch._inductor.codegen.triton import TritonKernel

    return TritonKernel


def inductor_uniform_value_folder() -> type:
    """The constant folder that makes real tensors on the graph's device."""
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    return UniformValueConstantFolder


def inductor_pad_mm() -> ModuleType:
    """torch._inductor.fx_passes.pad_mm: _should_pad and helpers."""
    from torch._inductor.fx_passes import pad_mm as module

    return module


def inductor_algorithm_selector() -> type:
    """The chooser among templates: AlgorithmSelectorCache."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    return AlgorithmSelectorCache


def inductor_fusion_result() -> Any:
    """torch._inductor.scheduler.FusionResult, what Scheduler.speedup_by_fusion answers with."""
    from torch._inductor.scheduler import FusionResult

    return FusionResult


def inductor_scheduler() -> type:
    """Scheduler: check_prologue_fusion_heuristics_fusable, speedup_by_fusion, compile_kernel."""
    from torch._inductor.scheduler import Scheduler

    return Scheduler


def inductor_template_caller() -> type:
    """A Triton template with one configuration."""
    from torch._inductor.select_algorithm import TritonTemplateCaller

    return TritonTemplateCaller


def inductor_size_hint(expression: Any) -> int:
    """A concrete size for a symbolic one, for estimates only."""
    from torch._inductor.virtualized import V

    sizevars: Any = V.graph.sizevars
    hint = getattr(sizevars, "optimization_hint", None) or sizevars.size_hint
    return int(hint(expression, fallback=1024))


def inductor_triton_heuristics() -> ModuleType:
    """torch._inductor.runtime.triton_heuristics: CachingAutotuner and compile results."""
    from torch._inductor.runtime import triton_heuristics as module

    return module


def inductor_triton_helpers() -> ModuleType:
    """torch._inductor.runtime.triton_helpers: set_driver_to_gpu."""
    from torch._inductor.runtime import triton_helpers as module

    return module


def inductor_device_memos() -> list[Any]:
    """Every memo of a question about the GPU: to be dropped on both sides of the block."""
    import torch._inductor.codegen.cuda.cuda_env as cuda_env
    import torch._inductor.utils as utils
    import torch.utils._triton as triton_utils
    from torch._inductor.runtime.hints import DeviceProperties

    names = (
        "get_gpu_type",
        "is_big_gpu",
        "get_max_num_sms",
        "using_b200",
        "get_backend_num_stages",
        "get_device_tflops",
        "get_gpu_dram_gbps",
        "_triton_supported_fp8_dtypes",
        "tlx_only_cuda_options",
    )
    memos = [getattr(utils, name, None) for name in names]
    memos += [*vars(triton_utils).values(), *vars(cuda_env).values(), DeviceProperties.create]
    return [memo for memo in memos if hasattr(memo, "cache_clear")]


def no_dispatch() -> Any:
    """A context in which tensor functions act on the real tensors."""
    from torch.utils._mode_utils import no_dispatch as context

    return context()


def dispatch_mode_is_active() -> bool:
    """Whether a TorchDispatchMode watches what operators are called."""
    return torch._C._len_torch_dispatch_stack() > 0


def without_dispatch_modes() -> Any:
    """A context without the dispatch modes that are active."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()


def inductor_joint_graph() -> ModuleType:
    """torch._inductor.fx_passes.joint_graph: constant_fold_uniform_value."""
    from torch._inductor.fx_passes import joint_graph as module

    return module


def inductor_post_grad() -> ModuleType:
    """torch._inductor.fx_passes.post_grad: decompose_triton_kernel_wrapper_functional."""
    from torch._inductor.fx_passes import post_grad as module

    return module


def inductor_pattern_matcher() -> ModuleType:
    """torch._inductor.pattern_matcher: Match.replace_by_example."""
    from torch._inductor import pattern_matcher as module

    return module


def inductor_cpp_builder() -> ModuleType:
    """torch._inductor.cpp_builder: the C++ command line, _get_openmp_args."""
    from torch._inductor import cpp_builder as module

    return module


def inductor_utils() -> ModuleType:
    """torch._inductor.utils: is_big_gpu."""
    from torch._inductor import utils as module

    return module


def inductor_vector_extensions() -> ModuleType:
    """torch._inductor.cpu_vec_isa: valid_vec_isa_list, those that this machine runs."""
    from torch._inductor import cpu_vec_isa as module

    return module


def inductor_async_compile() -> ModuleType:
    """torch._inductor.async_compile: AsyncCompile, which compiles kernels or has it done."""
    from torch._inductor import async_compile as module

    return module


def inductor_codegen_common() -> ModuleType:
    """torch._inductor.codegen.common: KernelArgs, what a kernel is given."""
    from torch._inductor.codegen import common as module

    return module


def inductor_triton_utils() -> ModuleType:
    """torch._inductor.codegen.triton_utils: signature_of."""
    from torch._inductor.codegen import triton_utils as module

    return module


def upper_bound(size: Any) -> int | None:
    """The largest value a size can take: itself, or a symbolic one's bound, None without one.

    Stands for `ShapeEnv.bound_sympy`.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    upper = size.node.shape_env.bound_sympy(size.node.expr).upper
    return int(upper) if upper.is_Integer else None


def size_hint(size: Any) -> int:
    """A concrete size for a possibly symbolic one, for estimates only; adds no guard.

    Stands for `SymInt.node.hint`; 1024 for a size that only a run knows.
    """
    if not isinstance(size, torch.SymInt):
        return int(size)
    return int(size.node.hint) if size.node.has_hint() else 1024


def size_in_symbols(
    size: torch.SymInt, ranges: Mapping[Any, Any]
) -> tuple[str, int, int, int, int | None]:
    """A symbolic size as (symbol, times, plus, low, high), with `times * symbol + plus`.

    The symbol's name is empty where the size is another expression; `high` is None without a
    bound. `ranges` are an exported program's range constraints. Stands for `SymInt.node` and
    `ShapeEnv.bound_sympy`.
    """
    expression = size.node.expr
    bounds = ranges.get(expression) or size.node.shape_env.bound_sympy(expression)
    low = int(bounds.lower) if bounds.lower.is_Integer else 0
    high = int(bounds.upper) if bounds.upper.is_Integer else None
    symbols = list(expression.free_symbols)
    if len(symbols) == 1 and expression.is_polynomial(symbols[0]):
        parts = expression.as_poly(symbols[0]).all_coeffs()
        if len(parts) == 2 and all(part.is_Integer for part in parts) and parts[0] > 0:
            return str(symbols[0]), int(parts[0]), int(parts[1]), low, high
    return "", 1, 0, low, high


@contextmanager
def unguarded(mode: FakeTensorMode | None) -> Iterator[None]:
    """Run operators on fake tensors of `mode` without leaving guards on their symbolic sizes.

    Stands for `ShapeEnv.suppress_guards`.
    """
    if mode is None:
        yield
    elif mode.shape_env is None:
        with mode:
            yield
    else:
        with mode, mode.shape_env.suppress_guards():
            yield


def unbacked_symbols(value: Any) -> frozenset[Any]:
    """The unbacked integer symbols in the sizes and strides of a tensor, or in a symbolic number.

    Looks into any pytree. Stands for `ShapeEnv.is_unbacked_symint`.
    """
    if isinstance(value, torch.Tensor) and not value._has_symbolic_sizes_strides:
        return _NO_SYMBOLS
    found: set[Any] = set()
    for leaf in torch.utils._pytree.tree_leaves(value):
        items = (*leaf.shape, *leaf.stride()) if isinstance(leaf, torch.Tensor) else (leaf,)
        for item in items:
            if isinstance(item, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                symbols = item.node.expr.free_symbols
                found.update(filter(item.node.shape_env.is_unbacked_symint, symbols))
    return frozenset(found)


def symbol_range(symbol: Any, mode: FakeTensorMode) -> Any:
    """The range (`lower`, `upper`) that the mode's shape environment knows of a symbol."""
    assert mode.shape_env is not None
    return mode.shape_env.var_to_range[symbol]


@contextmanager
def new_symbols(mode: FakeTensorMode) -> Iterator[None]:
    """Within, the first read of a tensor's values makes a new symbol, and further reads share it.

    A fake tensor remembers the symbol that was read from it for as long as its mode's `epoch`
    lasts.
    """
    mode.epoch += 1
    try:
        yield
    finally:
        mode.epoch += 1


def run_on_fakes(
    target: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    mode: FakeTensorMode,
) -> tuple[Any, dict[Any, Any]]:
    """Call an operator under a fake mode: the value, and the unbacked symbols it makes.

    Symbols come with the path to each in the value, as in `meta["unbacked_bindings"]`. Stands for
    `torch.fx.experimental.symbolic_shapes.compute_unbacked_bindings`.
    """
    from torch.fx.experimental.symbolic_shapes import compute_unbacked_bindings

    with mode, torch.no_grad():
        value = target(*args, **kwargs)
    return value, compute_unbacked_bindings(mode.shape_env, value) or {}


_address = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)
_capsule = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)


def tensor_handles(tensors: Sequence[torch.Tensor]) -> list[int]:
    """Addresses of new tensor objects that alias `tensors`, as AOTInductor's C interface takes.

    Whoever is given one must free it. Stands for `torch._C._aoti`.
    """
    capsules = torch._C._aoti.unsafe_alloc_void_ptrs_from_tensors(list(tensors))
    return [_address(capsule, None) for capsule in capsules]


def free_tensor_handles(handles: Sequence[int | None]) -> list[torch.Tensor]:
    """The tensors behind handles of AOTInductor's C interface, which then are no more.

    Stands for `torch._C._aoti`.
    """
    capsules = [_capsule(handle, None, None) for handle in handles]
    return list(torch._C._aoti.alloc_tensors_by_stealing_from_void_ptrs(capsules))


def give_back_pool(device: int, pool: Any) -> None:
    """Close a graph's memory pool after a capture that broke off before it closed the pool.

    Stands for `torch._C._cuda_endAllocateToPool` and `_cuda_releasePool`; a release of torch that
    does so itself makes them fail, which is as good.
    """
    for close in (torch._C._cuda_endAllocateToPool, torch._C._cuda_releasePool):
        with suppress(RuntimeError):
            close(device, pool)


def aoti_package_loader(path: Path, model: str, folder: Path) -> Any:
    """A model of a .pt2 package through torch's own loader, which unpacks it into `folder`.

    Its errors leave the files behind, hence a folder of the caller's. Stands for
    `torch._C._aoti.AOTIModelPackageLoader`, which unpacks where TMPDIR says.
    """
    with _ENVIRONMENT:
        before = os.environ.get("TMPDIR")
        os.environ["TMPDIR"] = os.fspath(folder)
        try:
            return torch._C._aoti.AOTIModelPackageLoader(os.fspath(path), model, False, 1, -1)
        finally:
            if before is None:
                del os.environ["TMPDIR"]
            else:
                os.environ["TMPDIR"] = before
