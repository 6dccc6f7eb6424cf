"""The parts of Inductor that compile patches and the lowering without a GPU go by."""

from __future__ import annotations

from collections.abc import Mapping
from types import ModuleType
from typing import Any

import torch


def inductor_config() -> Any:
    """torch._inductor.config, for its `patch`."""
    import torch._inductor.config as config

    return config


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
