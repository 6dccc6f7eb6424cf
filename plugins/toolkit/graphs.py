"""Walking and trimming the graphs of an exported program."""

from __future__ import annotations

from collections.abc import Iterator

from torch import fx


def sub_graphs(root: fx.GraphModule) -> Iterator[tuple[str, fx.GraphModule]]:
    """Every graph module with its path, innermost first, the root (path `""`) last.

    Walks only sub-graphs that a `get_attr` node names, such as the branches of `torch.cond`; a
    module that several nodes name comes once.
    """
    found: list[tuple[str, fx.GraphModule]] = [("", root)]
    seen = {root}
    for path, module in found:
        for node in module.graph.find_nodes(op="get_attr"):
            child = getattr(module, str(node.target), None)
            if isinstance(child, fx.GraphModule) and child not in seen:
                seen.add(child)
                found.append((f"{path}.{node.target}" if path else str(node.target), child))
    yield from reversed(found)
