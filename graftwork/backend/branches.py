"""Numbers inside the branches of `torch.cond`, made part of the branch's code.

User code `torch.cond(p, lambda x: x + 1, ...)` reaches a backend with the 1 as a CPU tensor
that the branch's graph holds as an attribute. Nothing moves such an attribute to the GPU, and
tracing the branch again stumbles over it. `inline_branch_constants` writes the number as a
`full` on the program's device instead.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch import fx

__all__ = ["inline_branch_constants"]


def inline_branch_constants(root: fx.GraphModule, device: torch.device | str) -> int:
    """Rewrite every one-number constant of the sub-graphs of `root`; returns how many."""
    count = 0
    for name, module in root.named_modules():
        if not name or not isinstance(module, fx.GraphModule):
            continue
        for node in list(module.graph.nodes):
            value = _attribute(module, node)
            if not isinstance(value, torch.Tensor) or value.dim() != 0:
                continue
            with module.graph.inserting_before(node):
                number = module.graph.call_function(
                    torch.ops.aten.full.default,
                    ([], value.item()),
                    {"dtype": value.dtype, "device": torch.device(device)},
                )
            number.meta = dict(node.meta)
            node.replace_all_uses_with(number)
            module.graph.erase_node(node)
            count += 1
        module.recompile()
    return count


def _attribute(module: fx.GraphModule, node: fx.Node) -> Any:
    if node.op != "get_attr":
        return None
    try:
        return operator.attrgetter(str(node.target))(module)
    except AttributeError:
        return None
