"""`x.detach()` in inference code, which ExecuTorch's edge turns into `detach_copy`.

No gradient is recorded in an exported program, so the result is the input itself; Inductor has no
lowering for `detach_copy` and portable ExecuTorch pays a copy for it.
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
    return PluginInfo(summary="detach and detach_copy become their input")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """Both forms are the identity."""
    return {
        torch.ops.aten.detach.default: _identity,
        torch.ops.aten.detach_copy.default: _identity,
    }


def _identity(x: torch.Tensor) -> torch.Tensor:
    return x


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
