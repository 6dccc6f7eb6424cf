"""Copies through a boolean mask become `where`: no host read of the mask's count.

User code: `out[mask] = src[mask]`, `x[mask] *= 2`, `b[mask] += c`, `out[m] = f(src[m], other[m])`,
`x.masked_scatter(m, src[m])`. Each exports as `index(src, [mask])` followed by `index_put` (or
`masked_scatter`); both read the mask's count back to the host and wait for the GPU, and neither
can be recorded in a CUDA graph (vllm-project/vllm-omni#4562). Where the values come, under the
same mask, from a tensor shaped like the destination, every element goes back to its place, and
`where(mask, src, out)` is the same bit for bit.
"""

from __future__ import annotations

from collections.abc import Sequence

from graftwork.plugins import GraphRewrite, PluginInfo, Property, hookimpl

from .rewrite import rewrite


@hookimpl
def describe_plugin() -> PluginInfo:
    """Describe the plugin."""
    return PluginInfo(summary="copies through a boolean mask become where(mask, src, out)")


@hookimpl
def rewrite_graph(graph: GraphRewrite) -> None:
    """Rewrite the masked copies of one graph."""
    rewrite(graph)


@hookimpl
def list_properties() -> Sequence[Property]:
    """Masked copies equal eager bit for bit, and stay where they must."""
    from .properties import PROPERTIES

    return PROPERTIES
