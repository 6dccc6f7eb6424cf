"""Marks every node a plugin makes with the plugin's id and version.

The mark stands in `meta["custom"]["graftwork"]`, which later re-tracing keeps, so that it can
still be read in the lowered program.
"""

from __future__ import annotations

from torch import fx

from .registry import Plugin

KEY = "graftwork"


def stamp(node: fx.Node, plugin: Plugin) -> None:
    """Mark one node."""
    node.meta["custom"] = {**node.meta.get("custom", {}), KEY: plugin.stamp}


def stamp_of(node: fx.Node) -> str | None:
    """`id@version` of the plugin that made the node, None for a node of the user's program."""
    value = node.meta.get("custom", {}).get(KEY)
    return value if isinstance(value, str) else None


def stamp_new_nodes(graph: fx.Graph, before: set[fx.Node], plugin: Plugin) -> None:
    """Mark the nodes of `graph` that are not in `before`; lend them a source line.

    A new node without a stack trace takes the one of its first user or input that has one.
    """
    for node in reversed(graph.nodes):
        if node in before:
            continue
        stamp(node, plugin)
        if not node.meta.get("stack_trace"):
            kin = (*node.users, *node.all_input_nodes)
            trace = next((k.meta["stack_trace"] for k in kin if k.meta.get("stack_trace")), None)
            if trace:
                node.meta["stack_trace"] = trace
