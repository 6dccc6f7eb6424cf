"""`x.detach()` in inference code, which ExecuTorch's edge turns into `detach_copy`.

No gradient is recorded in an exported program, so `detach` is its input itself. `detach_copy`, for
which Inductor has no lowering, is a clone of it: the input may be a buffer that is written later.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch._ops import OpOverload

from graftwork.plugins import Case, PluginInfo, Property, hookimpl


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="detach becomes its input, detach_copy a clone of it")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The identity, and a clone."""
    return {
        torch.ops.aten.detach.default: lambda x: x,
        torch.ops.aten.detach_copy.default: _clone,
    }


def _clone(x: torch.Tensor) -> torch.Tensor:
    return x.clone(memory_format=torch.contiguous_format)


def detached(x: torch.Tensor, *, copy: bool) -> torch.Tensor:
    """The smallest program of the field, in either form of the operator."""
    return (torch.ops.aten.detach_copy(x) if copy else x.detach()) * 2


@hookimpl
def list_properties() -> Sequence[Property]:
    """Either form is its input."""
    cases = st.builds(
        lambda n, copy: Case(detached, (torch.randn(n, 3),), {"copy": copy}),
        st.integers(0, 5),
        st.booleans(),
    )
    return [Property("detached-equals-input", cases)]
