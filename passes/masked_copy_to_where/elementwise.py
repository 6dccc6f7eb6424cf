"""Which operators may stand between the pick and the put: `out[m] = f(src[m], 2.0, other[m])`.

`f` will be computed on every element instead of the picked ones, so it must work element by
element, draw no random numbers, write nothing, and never raise on an element nobody picked.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import fx
from torch._ops import OpOverload

from graftwork.plugins.toolkit.values import is_deterministic

aten = torch.ops.aten

# Element by element, but without ATen's `pointwise` tag.
_UNTAGGED = {
    aten._to_copy.default,
    aten.alias.default,
    aten.alias_copy.default,
    aten.copy.default,
    aten.detach.default,
    aten.detach_copy.default,
    aten.fill.Scalar,
    aten.fill.Tensor,
    aten.floor_divide.default,
    aten.full_like.default,
    aten.masked_fill.Tensor,
    aten.ones_like.default,
    aten.rsub.Tensor,
    aten.to.dtype,
    aten.where.ScalarOther,
    aten.where.ScalarSelf,
    aten.zeros_like.default,
}

# Divide integers: they raise, or trap, for a divisor of 0, and INT_MIN / -1 traps.
_DIVISIONS = {"div", "floor_divide", "fmod", "remainder"}

# `mvlgamma` checks its domain; the time a polynomial takes grows with the values of its degree.
_UNSAFE = {"mvlgamma"}
_UNSAFE_PART = "polynomial"


def unfit(node: fx.Node) -> str | None:
    """Why `node` may not be computed on unpicked elements too; None where it may."""
    target = node.target
    if not isinstance(target, OpOverload) or not _works_by_element(target):
        return f"{node.name} ({target}) is not pointwise"
    name = target._opname
    if name in _UNSAFE or _UNSAFE_PART in name or (name in _DIVISIONS and _may_trap(node)):
        return f"{node.name} ({target}) may fail on elements that the mask does not pick"
    return None


@cache
def _works_by_element(target: OpOverload) -> bool:
    returns = target._schema.returns
    return (
        (torch.Tag.pointwise in target.tags or target in _UNTAGGED)
        and is_deterministic(target)
        and len(returns) == 1
        and isinstance(returns[0].type, torch.TensorType)
    )


def _may_trap(node: fx.Node) -> bool:
    """Whether an integer division could meet a divisor of 0 or -1."""
    value = node.meta["val"]
    if value.is_floating_point() or value.is_complex():
        return False
    divisor = node.args[1] if len(node.args) > 1 else node.kwargs.get("other")
    return not isinstance(divisor, int) or divisor in (0, -1)
