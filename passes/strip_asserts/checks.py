"""The runtime checks an exported program can hold, in every form torch gives them.

A check is a plain operator, its functional form that threads a token from check to check
(`_functional_assert_async(cond, msg, token) -> token`), or any of these run by the `with_effects`
higher-order operator, which threads a token too.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import fx
from torch._ops import HigherOrderOperator

from graftwork.plugins.torch_private import symbolic_expression

Kind = Literal["tensor", "scalar", "range"]

_KINDS: dict[str, Kind] = {
    "aten::_assert_async": "tensor",
    "aten::_functional_assert_async": "tensor",
    "aten::_assert_tensor_metadata": "tensor",
    "aten::_assert_scalar": "scalar",
    "aten::_functional_assert_scalar": "scalar",
    "aten::sym_constrain_range": "range",
    "aten::sym_constrain_range_for_size": "range",
    "aten::_functional_sym_constrain_range": "range",
    "aten::_functional_sym_constrain_range_for_size": "range",
}
_EXPRESSION = re.compile(r"for expression (.*) on node '")


@dataclass(frozen=True, eq=False)
class Check:
    """One check.

    Attributes:
        node: the node that runs it.
        kind: `tensor` (reads its condition on the device), `scalar` (a symbolic condition, tested
            on the host) or `range` (declares the bounds of a symbolic integer).
        condition: what is tested, a node or a constant; for `range` the bounded integer.
        text: the condition in words: the message of a tensor check, else the expression.
        threads_token: whether it takes an effect token and hands one on.
    """

    node: fx.Node
    kind: Kind
    condition: Any
    text: str
    threads_token: bool = False

    @property
    def expression(self) -> Any:
        """The condition as a sympy expression; None for a tensor."""
        value = self.condition
        if isinstance(value, fx.Node):
            value = value.meta.get("val")
        return None if isinstance(value, torch.Tensor) else symbolic_expression(value)

    def has_reader(self) -> bool:
        """Whether anything but the next holder of the token reads the result."""
        if not self.threads_token:
            return bool(self.node.users)
        if not isinstance(self.node.target, HigherOrderOperator):
            return False
        return any(_picks(user) != 0 and user.users for user in self.node.users)

    def bypass_token(self) -> None:
        """Hand the token that comes in to whoever reads the one that goes out."""
        node = self.node
        if not self.threads_token:
            return
        if not isinstance(node.target, HigherOrderOperator):
            node.replace_all_uses_with(node.kwargs.get("dep_token", node.args[-1]))  # type: ignore[arg-type]
            return
        for user in list(node.users):
            if _picks(user) == 0:
                user.replace_all_uses_with(node.args[0])  # type: ignore[arg-type]
            node.graph.erase_node(user)


def find_checks(graph: fx.Graph) -> list[Check]:
    """Every check of the graph, in program order."""
    found = (_read_check(node) for node in graph.nodes if node.op == "call_function")
    return [check for check in found if check]


def _read_check(node: fx.Node) -> Check | None:
    target: Any = node.target
    args, kwargs = node.args, node.kwargs
    threads_token = False
    if isinstance(target, HigherOrderOperator) and target.__name__ == "with_effects":
        threads_token, target, args = True, args[1], args[2:]
    if not isinstance(target, torch._ops.OpOverload):
        return None
    kind = _KINDS.get(target._schema.name)
    if kind is None:
        return None
    names = (argument.name for argument in target._schema.arguments)
    values = {**dict(zip(names, args, strict=False)), **kwargs}
    threads_token |= "dep_token" in values
    condition = next(iter(values.values()))
    message = str(values.get("assert_msg") or "")
    message = message or target._schema.name.removeprefix("aten::")
    return Check(node, kind, condition, _text(kind, condition, message, values), threads_token)


def _text(kind: Kind, condition: Any, message: str, values: dict[str, Any]) -> str:
    if kind == "tensor":
        return message
    if kind == "range":
        low, high = values.get("min"), values.get("max")
        return f"{low} <= {condition} <= {high}".replace("None <= ", "").replace(" <= None", "")
    match = _EXPRESSION.search(message)
    return match[1] if match else message


def _picks(user: fx.Node) -> Any:
    """The index a `getitem` takes."""
    return user.args[1]
