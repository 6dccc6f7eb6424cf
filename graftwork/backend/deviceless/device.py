"""torch.cuda, and what Dynamo and the linker ask about the machine, answered for the target."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import torch

from graftwork.backend.deviceless.gpus import Gpu
from graftwork.backend.deviceless.session import Session
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private

__all__ = ["apply", "properties"]


def apply(patches: Patches, session: Session) -> None:
    """Substitute the answers about devices; memos of earlier answers are dropped on both sides."""
    for memo in torch_private.inductor_device_memos():
        patches.now_and_at_end(memo.cache_clear)
    patches.now_and_at_end(lambda: torch_private.dynamo_device_properties().pop("cuda", None))
    _torch_cuda(patches, session.gpu)
    _environment(patches, session)
    # Creating a fake CUDA tensor would initialise the driver.
    fake = torch_private.fake_tensor_module()
    patches.set(fake.FakeTensorMode, "avoid_device_init", property(lambda self: True))
    patches.set(fake, "init_gpu_context", lambda device: None)

    def run_fallback_kernel(mode: Any, func: Any, flat_args: Any, *rest: Any) -> Any:
        # Stock: what has no fake implementation is run on real tensors of the device.
        for argument in flat_args:
            if isinstance(argument, fake.FakeTensor) and argument.device.type == "cuda":
                raise NotImplementedError(
                    f"{func} has no fake implementation, and there is no GPU to run it on for its "
                    "result's shape; a decomposition of it is needed"
                )
        return stock(mode, func, flat_args, *rest)

    stock = patches.set(fake, "run_fallback_kernel", run_fallback_kernel)
    _convolution_layout(patches)


def properties(gpu: Gpu) -> Any:
    """What torch.cuda.get_device_properties says of `gpu`."""
    major, minor = gpu.capability
    return SimpleNamespace(
        name=gpu.name,
        major=major,
        minor=minor,
        multi_processor_count=gpu.sms,
        total_memory=gpu.memory,
        shared_memory_per_block=49152,
        shared_memory_per_block_optin=gpu.shared_per_block,
        shared_memory_per_multiprocessor=gpu.shared_per_sm,
        regs_per_multiprocessor=65536,
        max_threads_per_multi_processor=gpu.threads_per_sm,
        max_threads_per_block=1024,
        warp_size=32,
        L2_cache_size=gpu.l2,
        is_integrated=0,
        gcnArchName="",
        clock_rate=int(gpu.clock_ghz * 1e6),
        memory_clock_rate=2600000,
        memory_bus_width=5120,
        pci_bus_id=0,
        uuid="0",
    )


def _torch_cuda(patches: Patches, gpu: Gpu) -> None:
    # A bfloat16 scatter on sm_80, attention patterns, TMA and TF32 take other roads when no GPU
    # is available, so the answer has to be yes.
    described = properties(gpu)
    modern = gpu.capability >= (8, 0)
    stream = SimpleNamespace(cuda_stream=0, stream_id=0, device_index=0, device_type=1)
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "is_initialized": lambda: False,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "synchronize": lambda device=None: None,
        "get_device_properties": lambda device=None: described,
        "get_device_capability": lambda device=None: gpu.capability,
        "get_device_name": lambda device=None: gpu.name,
        "is_bf16_supported": lambda including_emulation=True: modern,
        "is_tf32_supported": lambda: modern,
        "current_stream": lambda device=None: stream,
        "get_rng_state": lambda device="cuda": torch.zeros(16, dtype=torch.uint8),
        "set_rng_state": lambda new_state, device="cuda": None,
        "_exchange_device": lambda device: 0,
        "_maybe_exchange_device": lambda device: 0,
    }
    for name, answer in answers.items():
        patches.set(torch.cuda, name, answer)
    interface = torch_private.dynamo_cuda_interface()
    for name in (
        "is_available",
        "device_count",
        "current_device",
        "set_device",
        "synchronize",
        "get_device_properties",
        "is_bf16_supported",
        "current_stream",
    ):
        patches.set(interface, name, staticmethod(answers[name]))
    patches.set(interface, "exchange_device", staticmethod(lambda device: 0))
    patches.set(interface, "maybe_exchange_device", staticmethod(lambda device: 0))
    patches.set(interface, "get_raw_stream", staticmethod(lambda device=0: 0))
    # A CPU build of torch has no such function.
    patches.set(torch._C, "_cuda_getCurrentRawStream", lambda device=0: 0, may_be_absent=True)


def _convolution_layout(patches: Patches) -> None:
    """Give a convolution's result the layout that it has where cuDNN is: as its operands.

    Without, a trace says "contiguous", and every convolution of channels-last images is followed
    by a kernel that turns its result, which the norm and activation after it do not fuse into.
    """

    def layout(input: torch.Tensor, weight: torch.Tensor, backend: Any) -> torch.memory_format:
        if input.device.type != "cuda":
            answer: torch.memory_format = stock(input, weight, backend)
            return answer
        wanted = {4: torch.channels_last, 5: torch.channels_last_3d}.get(weight.dim())
        formats = map(torch_private.suggest_memory_format, (input, weight))
        if wanted is None or wanted not in formats or torch.float64 in (input.dtype, weight.dtype):
            return torch.contiguous_format
        return wanted

    stock = patches.set(torch._C, "_conv_determine_backend_memory_format", layout)


def _environment(patches: Patches, session: Session) -> None:
    from torch.utils import cpp_extension

    home = str(session.toolkit.home)
    patches.set(torch.version, "cuda", session.toolkit.version)
    patches.set(cpp_extension, "CUDA_HOME", home)
    patches.environment("CUDA_HOME", home)
    before = os.environ.get("LIBRARY_PATH")
    path = str(session.stubs) if not before else f"{session.stubs}:{before}"
    patches.environment("LIBRARY_PATH", path)
