"""`x.reshape(...)` where a view will not do, which functionalization writes as `_reshape_copy`.

Inductor calls ATen for `aten._reshape_copy` and ExecuTorch's CUDA delegate has no such kernel. It
is a contiguous copy viewed in the new shape.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch._ops import OpOverload
from torch.export import Dim

from graftwork.plugins import Case, PluginInfo, Property, Refusal, hookimpl
from graftwork.plugins.toolkit.symbolic import Size


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="_reshape_copy as a contiguous clone and a view")


@hookimpl
def list_decompositions() -> Mapping[OpOverload, Callable[..., object]]:
    """The one overload."""
    return {torch.ops.aten._reshape_copy.default: _reshape_copy}


def _reshape_copy(self: Tensor, size: Sequence[Size]) -> Tensor:
    """As ATen: one size may be -1; the result is contiguous and never an alias of `self`."""
    return self.clone(memory_format=torch.contiguous_format).view(size)


def reshaped(x: Tensor, *, size: tuple[int, ...], layout: str) -> Tensor:
    """The operator on a contiguous, transposed or sliced tensor."""
    if layout == "transposed":
        x = x.transpose(0, -1)
    elif layout == "sliced":
        x = x[:, 1:]
    copied: Tensor = torch.ops.aten._reshape_copy(x, size)
    return copied


def places_of_ones(x: Tensor) -> Tensor:
    """The operator on a data-dependent size: it has as many rows as `x` has non-zeros."""
    copied: Tensor = torch.ops.aten._reshape_copy(x.nonzero().t(), [-1])
    return copied


@st.composite
def _cases(draw: st.DrawFn) -> Case:
    layout = draw(st.sampled_from(("contiguous", "transposed", "sliced")))
    dtype = draw(st.sampled_from((torch.float32, torch.bfloat16, torch.int64, torch.bool)))
    rows, columns = draw(st.integers(0, 5)), draw(st.integers(1, 6))
    dynamic = draw(st.booleans())
    columns += layout == "sliced"
    kept = columns - (layout == "sliced")
    forms = [(-1,), (-1, kept), (kept, -1), (1, -1, kept), (-1, kept, 1)]
    if dynamic:
        # Export itself guards on a division of the rows for the others.
        forms = forms[: 1 if layout == "transposed" else 2]
    else:
        forms += [(rows * kept,), (kept, rows)]
    size = draw(st.sampled_from(forms))

    def inputs(rows: int) -> tuple[Tensor]:
        return (torch.randn(rows, columns).mul(3).to(dtype),)

    return Case(
        reshaped,
        # More rows than columns: ATen's operator compares the two when it is exported.
        inputs(rows + 7 * dynamic),
        {"size": size, "layout": layout},
        dynamic_shapes=(({0: Dim("rows", min=7, max=64)},),) if dynamic else None,
        more_inputs=tuple(map(inputs, draw(st.lists(st.integers(7, 20), max_size=2))))
        if dynamic
        else (),
    )


@hookimpl
def list_properties() -> Sequence[Property]:
    """Equal bit for bit, and laid out as ATen's."""
    unbacked = st.builds(
        lambda ones: Case(places_of_ones, (torch.tensor(ones),)),
        st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=4),
    )
    misfit = Case(reshaped, (torch.ones(2, 3),), {"size": (4, -1), "layout": "contiguous"})
    return [
        Property(
            "copies-equal-aten",
            _cases(),
            refused=[Refusal("a size that does not fit", misfit, Exception, "invalid for input")],
        ),
        Property("copies-of-data-dependent-sizes-equal-aten", unbacked),
    ]
