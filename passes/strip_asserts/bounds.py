"""Checks that only bound a size, and what it takes to be rid of one.

Erasing `u0 <= 3` is not enough: the symbol's range says the same, and the compiler writes the
check again from it, or plans memory for three elements (pytorch/pytorch#192857). So the size gets
a new symbol, which carries the range that its operator gives it and no more, and every value
computed from it is computed anew; where one comes out differently the program relies on the
bound, which then stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import sympy
import torch
from torch import fx
from torch._ops import HigherOrderOperator
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from graftwork.plugins.torch_private import (
    FakeTensorMode,
    fake_mode_of,
    new_symbols,
    run_on_fakes,
    symbol_range,
    symbolic_expression,
    unbacked_bindings,
    unbacked_symbols,
)

from .checks import Check

_BOUNDS = (sympy.Le, sympy.Lt, sympy.Ge, sympy.Gt)


def bounded_symbols(check: Check) -> frozenset[Any]:
    """The unbacked symbols a check bounds; empty for a check that does anything else.

    A bound compares polynomials of sizes; an equality, or a remainder, is no bound.
    """
    expression = check.expression
    if check.kind == "range":
        sound = isinstance(expression, sympy.Symbol)
    else:
        sound = isinstance(expression, _BOUNDS) and not expression.atoms(
            sympy.core.function.Application
        )
    return unbacked_symbols(check.condition.meta["val"]) if sound else frozenset()


class Sizes:
    """The unbacked sizes of one graph, and the bounds they can do without."""

    def __init__(
        self, graph: fx.Graph, nested: bool, finite: bool, checks: Iterable[Check]
    ) -> None:
        """`nested`: a sub-graph; `finite`: the target plans memory by a size's upper bound."""
        self._nested = nested
        self._finite = finite
        self._related = {
            symbol for check in checks if not _is_plain(check) for symbol in bounded_symbols(check)
        }
        self._makers: dict[Any, fx.Node] = {}
        self._readers: dict[Any, list[fx.Node]] = {}
        self._in_shapes: set[Any] = set()
        self._values: dict[fx.Node, Any] = {}
        self._names: dict[Any, Any] = {}
        for node in graph.nodes:
            value = node.meta.get("val")
            self._makers.update(dict.fromkeys(unbacked_bindings(node), node))
            for symbol in unbacked_symbols(value):
                self._readers.setdefault(symbol, []).append(node)
                if not isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
                    self._in_shapes.add(symbol)

    def free(self, symbol: Any) -> str | None:
        """Take off a symbol's bounds all but what its operator gives; else say why they stay.

        The graph changes with `commit`.
        """
        if symbol not in self._in_shapes:
            return "a bound on a value, not on a size"
        maker = self._makers.get(symbol)
        if maker is None:
            return "the size comes from outside this graph"
        mode = _mode_of(maker)
        if mode is None:
            return "the graph's values are not fake tensors"
        try:
            with new_symbols(mode):
                return self._free(symbol, maker, mode)
        except (RuntimeError, KeyError) as error:
            reason = (str(error).strip() or type(error).__name__).splitlines()[0]
            return f"what is computed from the size relies on the bound ({reason})"

    def commit(self, program: ExportedProgram) -> None:
        """Write the new symbols, and the values computed from them, into the graph."""
        for node, value in self._values.items():
            node.meta["val"] = value
        for symbol, new in self._names.items():
            maker = self._makers[symbol]
            bound = unbacked_bindings(maker)
            maker.meta["unbacked_bindings"] = {
                new if key == symbol else key: path for key, path in bound.items()
            }
            program.range_constraints.pop(symbol, None)
            mode = _mode_of(maker)
            if mode is not None:
                program.range_constraints[new] = symbol_range(new, mode)

    def _free(self, symbol: Any, maker: fx.Node, mode: FakeTensorMode) -> str | None:
        value, made = _run(maker, self._value, mode)
        fresh = {path: key for key, path in made.items()}
        names = {key: fresh[path] for key, path in unbacked_bindings(maker).items()}
        old, new = symbol_range(symbol, mode), symbol_range(names[symbol], mode)
        if old == new and symbol not in self._related:
            return None
        if self._finite and _is_finite(old) and not _is_finite(new):
            return "the target plans memory by the bound"
        values = {maker: value}
        for node in self._readers[symbol]:
            if self._leaves(node):
                return "the size enters or leaves a sub-graph"
            if node is not maker:
                values[node], _ = _run(node, lambda n: values.get(n, self._value(n)), mode)
            if _layout(self._value(node), names) != _layout(values[node], {}):
                return f"the shape of '{node.name}' relies on the bound"
        self._values.update(values)
        self._names.update(names)
        return None

    def _value(self, node: fx.Node) -> Any:
        return self._values[node] if node in self._values else node.meta["val"]

    def _leaves(self, node: fx.Node) -> bool:
        return any(
            isinstance(user.target, HigherOrderOperator) or (self._nested and user.op == "output")
            for user in node.users
        )


def _run(
    node: fx.Node, value_of: Callable[[fx.Node], Any], mode: FakeTensorMode
) -> tuple[Any, dict[Any, Any]]:
    """A node's value computed anew, and the symbols it makes with the path to each."""
    args = fx.map_arg(node.args, value_of)
    kwargs = fx.map_arg(node.kwargs, value_of)
    return run_on_fakes(cast("Callable[..., Any]", node.target), args, kwargs, mode)


def _mode_of(node: fx.Node) -> FakeTensorMode | None:
    return fake_mode_of([one.meta.get("val") for one in (node, *node.all_input_nodes)])


def _is_plain(check: Check) -> bool:
    """Whether a bound compares one symbol with a number, which the symbol's range says as well."""
    if check.kind == "range":
        return True
    sides = getattr(check.expression, "args", ())
    numbers = [side for side in sides if isinstance(side, sympy.Integer)]
    return len(numbers) == 1 and any(isinstance(side, sympy.Symbol) for side in sides)


def _is_finite(bounds: Any) -> bool:
    return isinstance(bounds.upper, sympy.Integer)


def _layout(value: Any, names: Mapping[Any, Any]) -> list[object]:
    """What a value's readers know of it: dtypes, sizes and strides; nothing of a condition."""

    def renamed(item: Any) -> Any:
        expression = symbolic_expression(item)
        return expression.xreplace(names) if isinstance(expression, sympy.Basic) else expression

    known: list[object] = []
    for leaf in pytree.tree_leaves(value):
        if isinstance(leaf, torch.Tensor):
            known.append((leaf.dtype, *map(renamed, leaf.shape), *map(renamed, leaf.stride())))
        elif not isinstance(leaf, (bool, torch.SymBool)):
            known.append(renamed(leaf))
    return known
