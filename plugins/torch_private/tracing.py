"""Fake tensors, dispatch modes, and graphs traced by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Any

import torch
from torch import fx
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode


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


def untraced() -> AbstractContextManager[object]:
    """While active, what runs on fake tensors is not recorded by `trace_functional`.

    Stands for `torch.fx.experimental.proxy_tensor.disable_proxy_modes_tracing`.
    """
    from torch.fx.experimental.proxy_tensor import disable_proxy_modes_tracing

    return disable_proxy_modes_tracing()


def fake_tensor_module() -> ModuleType:
    """torch._subclasses.fake_tensor: FakeTensor, FakeTensorMode, init_gpu_context."""
    from torch._subclasses import fake_tensor

    return fake_tensor


def meta_tensor_describer() -> type:
    """What describes a real tensor so that a fake one can be made of it."""
    from torch._subclasses.meta_utils import MetaTensorDescriber

    return MetaTensorDescriber


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
