"""The private names of torch that lowering without a GPU stands on, in one place.

Checked on the releases in `CHECKED`; on any other `check_release` refuses, since a name that
moved would not fail but leave a substitution without effect. Modules are imported on first use.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import torch

from graftwork.backend.deviceless.errors import DevicelessError

__all__ = [
    "CHECKED",
    "check_release",
    "cuda_interface",
    "ensure_cuda_device_guard",
    "has_cuda_build",
    "inductor_config",
]

CHECKED = ("2.13",)


def check_release() -> None:
    """Raise DevicelessError unless the substitutions were checked on this torch release."""
    release = ".".join(torch.__version__.split(".")[:2])
    if release not in CHECKED:
        raise DevicelessError(
            f"lowering without a GPU was checked on torch {', '.join(CHECKED)}, not on "
            f"{torch.__version__}; lower on a machine with a GPU, or with a checked release"
        )


def has_cuda_build() -> bool:
    """Whether torch was built with CUDA (then it has a device guard of its own)."""
    return bool(torch.cuda._is_compiled())


def ensure_cuda_device_guard() -> object:
    """Register the CUDA device guard of a CUDA build, without touching a device."""
    return torch._C._ensureCUDADeviceGuardSet()


def inductor_config() -> Any:
    """torch._inductor.config, for its `patch`."""
    import torch._inductor.config as config

    return config


def cuda_interface() -> type:
    """Dynamo's view of torch.cuda; it captured the functions when its class was made."""
    from torch._dynamo.device_interface import CudaInterface

    return CudaInterface


def worker_device_properties() -> dict[str, Any]:
    """Dynamo's memo of device properties, by device type."""
    from torch._dynamo.device_interface import caching_worker_device_properties

    return caching_worker_device_properties


def fake_tensor() -> ModuleType:
    """torch._subclasses.fake_tensor: FakeTensor, FakeTensorMode, init_gpu_context."""
    from torch._subclasses import fake_tensor

    return fake_tensor


def meta_describer() -> type:
    """What describes a real tensor so that a fake one can be made of it."""
    from torch._subclasses.meta_utils import MetaTensorDescriber

    return MetaTensorDescriber


def compile_fx() -> ModuleType:
    """torch._inductor.compile_fx: clone_preserve_strides."""
    from torch._inductor import compile_fx as module

    return module


def graph() -> ModuleType:
    """torch._inductor.graph: GraphLowering, getattr_recursive, unsupported_output_tensor."""
    from torch._inductor import graph as module

    return module


def ir() -> ModuleType:
    """torch._inductor.ir: Constant."""
    from torch._inductor import ir as module

    return module


def tensor_lowering() -> Any:
    """Inductor's lowering of torch.tensor, which inlines small constants."""
    from torch._inductor.lowering import tensor

    return tensor


def cpp_wrapper() -> type:
    """The writer of the library's C++ side."""
    from torch._inductor.codegen.cpp_wrapper_cpu import CppWrapperCpu

    return CppWrapperCpu


def python_wrapper() -> type:
    """The writer of the block that compiles kernels at lowering time."""
    from torch._inductor.codegen.wrapper import PythonWrapperCodegen

    return PythonWrapperCodegen


def triton_kernel() -> type:
    """The writer of a fused Triton kernel: inductor_meta_common."""
    from torch._inductor.codegen.triton import TritonKernel

    return TritonKernel


def uniform_value_folder() -> type:
    """The constant folder that makes real tensors on the graph's device."""
    from torch._inductor.fx_passes.joint_graph import UniformValueConstantFolder

    return UniformValueConstantFolder


def pad_mm() -> ModuleType:
    """torch._inductor.fx_passes.pad_mm: _should_pad, hint_symbols and helpers."""
    from torch._inductor.fx_passes import pad_mm as module

    return module


def algorithm_selector() -> type:
    """The chooser among templates: AlgorithmSelectorCache."""
    from torch._inductor.select_algorithm import AlgorithmSelectorCache

    return AlgorithmSelectorCache


def template_caller() -> type:
    """A Triton template with one configuration."""
    from torch._inductor.select_algorithm import TritonTemplateCaller

    return TritonTemplateCaller


def size_hint(expression: Any) -> int:
    """A concrete size for a symbolic one, for estimates only."""
    from torch._inductor.virtualized import V

    sizevars = V.graph.sizevars
    hint = getattr(sizevars, "optimization_hint", None) or sizevars.size_hint
    return int(hint(expression, fallback=1024))


def triton_heuristics() -> ModuleType:
    """torch._inductor.runtime.triton_heuristics: CachingAutotuner and compile results."""
    from torch._inductor.runtime import triton_heuristics as module

    return module


def triton_helpers() -> ModuleType:
    """torch._inductor.runtime.triton_helpers: set_driver_to_gpu."""
    from torch._inductor.runtime import triton_helpers as module

    return module


def device_memos() -> list[Any]:
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


def without_modes() -> Any:
    """A context without the dispatch modes that are active."""
    from torch.utils._python_dispatch import _disable_current_modes

    return _disable_current_modes()
