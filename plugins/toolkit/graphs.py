"""Walking and trimming the graphs of an exported program."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from torch import fx
from torch._ops import OpOverload


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


def is_pure(node: fx.Node) -> bool:
    """Whether the node may go once nothing reads it.

    Not pure: placeholders and outputs, checks, writes, random draws (dropping one changes the
    draws after it), and whatever is not an ATen or Python operator whose effects are known.
    """
    if node.op == "get_attr":
        return True
    known = isinstance(node.target, OpOverload) or is_scalar_function(node.target)
    return node.op == "call_function" and known and not node.is_impure()


def is_scalar_function(target: object) -> bool:
    """Whether `target` is a Python function of numbers, or takes one of several results.

    Such as `operator.ge`, `operator.getitem`, `math.floor`, `torch.sym_max`.
    """
    module = getattr(target, "__module__", None)
    name = getattr(target, "__name__", "")
    return module in ("_operator", "math") or (module == "torch" and name.startswith("sym_"))


def erase_unread(nodes: Iterable[fx.Node]) -> None:
    """Erase those of `nodes` that are pure and unread, then what only fed them, and so on back.

    Linear in the number of nodes looked at. A node that was erased before may be among `nodes`.
    """
    waiting = list(nodes)
    while waiting:
        node = waiting.pop()
        if node._erased or node.users or not is_pure(node):
            continue
        feeders = node.all_input_nodes
        node.graph.erase_node(node)
        waiting.extend(feeders)


def erase_with_feeders(node: fx.Node) -> None:
    """Erase an unread node, a check say, then the pure nodes that only fed it."""
    feeders = node.all_input_nodes
    node.graph.erase_node(node)
    erase_unread(feeders)


def copied_meta(node: fx.Node, value: Any) -> dict[str, Any]:
    """The `meta` of a new node that stands for `node`: its source line, and `value`."""
    passed_on = {"stack_trace", "nn_module_stack", "source_fn_stack", "torch_fn", "custom"}
    return {key: node.meta[key] for key in passed_on & node.meta.keys()} | {"val": value}
