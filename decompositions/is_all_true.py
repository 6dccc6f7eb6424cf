"""`aten._is_all_true`, which vision-language models reach through checks on their masks.

ExecuTorch and Inductor have no kernel for it; over bool it is `all`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload

from graftwork.plugins import Case, PluginInfo, Property, Refusal, hookimpl


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="_is_all_true as all")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The one overload."""
    return {torch.ops.aten._is_all_true.default: _is_all_true}


def _is_all_true(self: Tensor) -> Tensor:
    """A 0-d bool; True for an empty tensor. ATen itself refuses anything but bool."""
    return self.all()


def all_true(x: Tensor) -> Tensor:
    """The operator alone."""
    answer: Tensor = torch.ops.aten._is_all_true(x)
    return answer


def _mask(shape: list[int], false_at: int | None) -> Tensor:
    mask = torch.ones(shape, dtype=torch.bool)
    if false_at is not None and mask.numel():
        mask.view(-1)[false_at % mask.numel()] = False
    return mask


@hookimpl
def list_properties() -> Sequence[Property]:
    """Masks of any rank, empty ones included; another dtype is an error, as in ATen."""
    shapes = st.lists(st.integers(0, 4), max_size=3)
    masks = st.builds(_mask, shapes, st.none() | st.integers(0, 99))
    numbers = Case(all_true, (torch.ones(2),))
    return [
        Property(
            "answers-equal-aten",
            masks.map(lambda mask: Case(all_true, (mask,))),
            refused=[Refusal("numbers", numbers, Exception, "kBool|bool")],
        )
    ]
