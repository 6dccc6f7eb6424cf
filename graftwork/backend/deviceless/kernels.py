"""Triton without a GPU: kernels are compiled for the target, checked against it, never launched.

Which configuration of a kernel is taken, with nothing to benchmark: for the kernels that
Inductor writes, the one its heuristics name when autotuning is off; for a GEMM or convolution
template the cost model's (gemm_cost.py); for a user's autotuned kernel the first, in its
author's order, that fits the GPU without spilling registers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch

from graftwork.backend.deviceless.decisions import KernelChoice, TemplateChoice
from graftwork.backend.deviceless.gemm_cost import GemmShape, Tile, estimate_us, fits
from graftwork.backend.deviceless.gpus import Gpu
from graftwork.backend.deviceless.session import Session
from graftwork.backend.elf import kernel_resources
from graftwork.backend.patching import Patches
from graftwork.plugins import torch_private

__all__ = ["apply"]


def apply(patches: Patches, session: Session) -> None:
    """Substitute Triton's driver, and every place that would benchmark."""
    import triton

    gpu = session.gpu
    config = triton.runtime.driver
    patches.set(config, "_active", _driver(gpu))
    patches.set(torch_private.inductor_triton_helpers(), "set_driver_to_gpu", lambda: None)
    heuristics = torch_private.inductor_triton_heuristics()
    patches.set(
        heuristics.StaticTritonCompileResult,
        "can_statically_launch",
        staticmethod(lambda *args, **kwargs: None),
    )
    patches.set(heuristics.CachingAutotuner, "_dynamic_scale_rblock", lambda self: None)
    patches.set(heuristics.CachingAutotuner, "run", _compile_instead_of_running(session))
    patches.set(
        torch_private.inductor_nvcc_options(), "_nvcc_arch_as_compile_option", session.image_arch
    )
    _plain_heuristics(patches)
    _template_choice(patches, session)
    _fake_autotune_block(patches)


def _driver(gpu: Gpu) -> Any:
    """A Triton driver that knows the target, and loads no binary.

    Built on Triton's own base class where it can be, so that what a release adds is there.
    """
    from triton.backends.compiler import GPUTarget
    from triton.backends.nvidia.driver import ty_to_cpp

    major, minor = gpu.capability
    target = GPUTarget("cuda", major * 10 + minor, 32)
    limits = {
        "max_shared_mem": gpu.shared_per_block,
        "max_num_regs": 65536,
        "multiprocessor_count": gpu.sms,
        "warpSize": 32,
        "sm_clock_rate": int(gpu.clock_ghz * 1e6),
        "mem_clock_rate": 2600000,
        "mem_bus_width": 5120,
    }

    def load_binary(name: str, cubin: bytes, shared: int, device: int) -> Any:
        registers, stack = kernel_resources(cubin)
        threads = 1024 if not registers else min(1024, 65536 // registers // 32 * 32)
        # No module, so that nothing is unloaded from a GPU when the kernel is dropped.
        return None, 1, registers, stack // 4, threads

    return SimpleNamespace(
        get_current_target=lambda: target,
        get_current_device=lambda: 0,
        set_current_device=lambda device: None,
        get_current_stream=lambda device=None: 0,
        get_device_capability=lambda device=None: gpu.capability,
        get_active_torch_device=lambda: torch.device("cuda", 0),
        get_device_interface=lambda: torch.cuda,
        map_python_to_cpp_type=ty_to_cpp,
        launcher_cls=lambda source, metadata: lambda *args, **kwargs: None,
        utils=SimpleNamespace(
            get_device_properties=lambda device: dict(limits), load_binary=load_binary
        ),
    )


def _compile_instead_of_running(session: Session) -> Any:
    def run(
        self: Any, *args: Any, stream: Any = 0, benchmark_run: bool = False, **kwargs: Any
    ) -> None:
        if not self.launchers:
            self.precompile()
        candidates = list(self.launchers)
        launcher = _choose_launcher(candidates)
        self.launchers = [launcher]
        registers, stack = kernel_resources(launcher.bin.asm["cubin"])
        session.decisions.kernels.append(
            KernelChoice(
                kernel=str(self.inductor_meta.get("kernel_name")),
                config=str(launcher.config),
                candidates=len(candidates),
                shared=int(launcher.shared),
                registers=registers,
                stack=stack,
            )
        )
        if session.ptx and not _make_portable(launcher.bin.asm):
            session.arch_specific = True
        if launcher.store_cubin:
            self.save_gpu_kernel(stream, launcher)

    return run


def _choose_launcher(launchers: Sequence[Any]) -> Any:
    """The first in the author's order that spills no registers; else the one that spills least."""

    def spilled(launcher: Any) -> int:
        return kernel_resources(launcher.bin.asm["cubin"])[1]

    for launcher in launchers:
        if spilled(launcher) == 0:
            return launcher
    return min(launchers, key=spilled)


# Instructions that exist on one architecture only; PTX with none of them runs on later ones too.
_ARCH_SPECIFIC = re.compile(r"\b(wgmma|setmaxnreg|tcgen05|cp\.reduce\.async\.bulk)\b")


def _make_portable(asm: Any) -> bool:
    """Drop the "a" from the PTX's target where nothing in it needs it; whether that was so.

    Triton asks for sm_90a always, and such PTX is refused by every later GPU.
    """
    text = asm["ptx"]
    if _ARCH_SPECIFIC.search(text):
        return False
    asm["ptx"] = re.sub(r"(\.target\s+sm_\d+)a\b", r"\1", text, count=1)
    return True


def _plain_heuristics(patches: Patches) -> None:
    """Have Inductor's own kernels come with the one configuration of a build without autotuning.

    `max_autotune` itself has to stay on: it is what offers the templates.
    """
    kernel = torch_private.inductor_triton_kernel()
    stock = kernel.inductor_meta_common

    def inductor_meta_common(*args: Any) -> dict[str, Any]:
        return {**stock(), "max_autotune": False, "max_autotune_pointwise": False}

    patches.set(kernel, "inductor_meta_common", staticmethod(inductor_meta_common))


def _template_choice(patches: Patches, session: Session) -> None:
    selector, caller = (
        torch_private.inductor_algorithm_selector(),
        torch_private.inductor_template_caller(),
    )

    def choose(self: Any, name: str, choices: Any, *args: Any, **kwargs: Any) -> Any:
        templates = [choice for choice in choices if isinstance(choice, caller)]
        if templates and len(choices) > 1:
            choices = [_choose_template(name, templates, session)]
        return stock(self, name, choices, *args, **kwargs)

    stock = patches.set(selector, "__call__", choose)


def _choose_template(name: str, templates: Sequence[Any], session: Session) -> Any:
    gpu = session.gpu
    shape = _gemm_shape(name, templates[0])
    if shape is None:
        return templates[0]
    priced = [
        (estimate_us(shape, tile, gpu), index)
        for index, tile in enumerate(map(_tile, templates))
        if tile is not None and fits(shape, tile, gpu)
    ]
    if not priced:
        return templates[0]
    cost, best = min(priced)
    session.decisions.templates.append(
        TemplateChoice(
            name=name,
            m=shape.m,
            n=shape.n,
            k=shape.k,
            batch=shape.batch,
            dtype=shape.dtype,
            config=str(_tile(templates[best])),
            candidates=len(templates),
            estimate_us=round(cost, 2),
        )
    )
    return templates[best]


def _tile(choice: Any) -> Tile | None:
    info = choice.log_info
    numbers = re.findall(r"-?\d+", str(info.get("tile_shape", "")))
    if len(numbers) != 3 or int(numbers[0]) <= 0:
        return None
    block_m, block_k, block_n = (int(number) for number in numbers)
    return Tile(block_m, block_n, block_k, int(info["num_stages"]), int(info["num_warps"]))


def _gemm_shape(name: str, choice: Any) -> GemmShape | None:
    """The product that a template computes: output M by N, summed over K; None for others."""
    sizes = [
        [torch_private.inductor_size_hint(size) for size in node.get_size()]
        for node in choice.input_nodes
    ]
    output = [torch_private.inductor_size_hint(size) for size in choice.layout.size]
    dtype = str(choice.layout.dtype).removeprefix("torch.")
    tf32 = choice.log_info.get("allow_tf32") == "True"
    window = re.findall(r"\bKERNEL_[DHW]=(\d+)", choice.description)
    if window:
        groups = int((re.findall(r"\bGROUPS=(\d+)", choice.description) or ["1"])[0])
        kernel = math.prod(map(int, window))
        pixels = output[0]
        for size in output[2:]:
            pixels *= size
        filters, summed = output[1] // groups, sizes[0][1] // groups * kernel
        return GemmShape(pixels, filters, summed, groups, dtype, tf32, gathered=True)
    matrices = [size for size in sizes if len(size) == len(output)]
    if len(matrices) < 2 or len(output) not in (2, 3):
        return None
    a, b = matrices[-2], matrices[-1]
    if a[-1] != b[-2]:
        return None
    batch = output[0] if len(output) == 3 else 1
    aligned = a[-1] % 8 == 0 and b[-1] % 8 == 0
    return GemmShape(a[-2], b[-1], a[-1], batch, dtype, tf32, aligned)


def _fake_autotune_block(patches: Patches) -> None:
    """Run the block that compiles the kernels on fake tensors: it allocates its inputs on CUDA."""
    wrapper = torch_private.inductor_python_wrapper()

    def block(self: Any) -> Any:
        fake_mode = torch_private.fake_tensor_module().FakeTensorMode
        with torch_private.without_dispatch_modes(), fake_mode(allow_non_fake_inputs=True):
            return stock(self)

    stock = patches.set(wrapper, "generate_and_run_autotune_block", block)
