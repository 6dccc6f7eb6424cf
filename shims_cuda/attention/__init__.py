"""`varlen_attn` and `scaled_dot_product_attention` as Triton kernels, compiled into the program.

Both hold O(tokens) memory, read no length back to the host and can be recorded in a CUDA graph.
Packed attention takes every window, in the meaning of flash attention 2 (option `window`),
grouped heads, `seqused_k` and paged keys; a NaN stays in its own sequence.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from torch._ops import OpOverload

from graftwork.plugins import LoweringContext, PluginInfo, Property, hookimpl
from graftwork.plugins.toolkit.packed import VARLEN_ATTN, reference_of

from .dense import SDPA, attend_dense
from .packed import attend_packed


@dataclass(frozen=True)
class AttentionOptions:
    """Options of the attention kernels.

    Attributes:
        float32: how float32 inputs are multiplied: `ieee` in full precision and range, `tf32` on
            tensor cores with 10 bits of mantissa, `tf32x3` there in three parts, close to exact.
        window: what a window means where flash attention 2 and 3 disagree, on a query sequence
            longer than max_k + 1: `flash2` as version 2 reads it, `exact` as it is written (an
            open side is open).
    """

    float32: Literal["ieee", "tf32", "tf32x3"] = "ieee"
    window: Literal["flash2", "exact"] = "flash2"


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(
        summary="varlen_attn and scaled_dot_product_attention as Triton kernels",
        options=AttentionOptions,
    )


@hookimpl
def list_kernels(
    options: AttentionOptions, context: LoweringContext
) -> Mapping[OpOverload, Callable[..., Any]]:
    """Packed and dense attention."""
    packed = functools.partial(
        attend_packed,
        archs=context.archs,
        precision=options.float32,
        flash2=options.window == "flash2",
    )
    dense = functools.partial(attend_dense, archs=context.archs, precision=options.float32)
    return {VARLEN_ATTN: packed, SDPA: dense}


@hookimpl
def list_references() -> Mapping[OpOverload, Callable[..., Any]]:
    """What stands in for eager where it has no kernel: attention sequence by sequence."""
    return {VARLEN_ATTN: reference_of}


@hookimpl
def list_properties() -> Sequence[Property]:
    """Properties, refused inputs and benchmark sizes."""
    from .properties import properties

    return properties()
