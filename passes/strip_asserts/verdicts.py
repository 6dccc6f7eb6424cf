"""Which checks go under a policy, which stay, and why."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

from torch import fx

from graftwork.plugins import GraphRewrite

from .bounds import Sizes, bounded_symbols
from .checks import Check
from .readers import served_by_checks_alone

Policy: TypeAlias = Literal["async", "ranges", "all"]

EXECUTORCH_TARGETS = ("cpu", "cuda")
"""Targets whose own passes drop every check and keep what it read."""


class Verdict(NamedTuple):
    """Whether a check goes, with what to say of it."""

    drop: bool
    reason: str


class Judge:
    """Decides over the checks of one graph."""

    def __init__(self, graph: GraphRewrite, policy: Policy, checks: Sequence[Check]) -> None:
        self._graph = graph
        self._policy = policy
        self._target = graph.context.target
        self._checks = checks
        self._served: set[fx.Node] = set()
        if any(check.kind != "tensor" for check in checks):
            self._served = served_by_checks_alone(graph.graph, (check.node for check in checks))
        self._sizes: Sizes | None = None
        self._kept: dict[Any, str | None] = {}

    def verdict(self, check: Check) -> Verdict:
        """Decide over one check."""
        if check.has_reader():
            return Verdict(False, f"{check.text}: something reads the check's result")
        if check.kind == "tensor":
            return Verdict(True, f"dropped the tensor check: {check.text}")
        alone = check.condition in self._served
        if alone and self._target in EXECUTORCH_TARGETS:
            return Verdict(True, f"dropped the check {check.text} with the read it alone needs")
        symbols = bounded_symbols(check)
        if self._policy == "all":
            self._reason_to_keep(symbols)
            return Verdict(True, f"dropped the check {check.text}")
        if alone:
            return Verdict(False, f"{check.text}: a check on a value, which {self._target} keeps")
        if not symbols:
            return Verdict(False, f"{check.text}: no bound on an unbacked size")
        if self._policy == "async":
            return Verdict(False, f"{check.text}: policy=async keeps bounds")
        reason = self._reason_to_keep(symbols)
        if reason:
            return Verdict(False, f"{check.text}: {reason}")
        return Verdict(True, f"dropped the bound {check.text}")

    def commit(self) -> None:
        """Write the sizes that lost their bounds into the graph."""
        if self._sizes is not None:
            self._sizes.commit(self._graph.program)

    def _reason_to_keep(self, symbols: frozenset[Any]) -> str | None:
        """Take the bounds off the symbols; None where at least one of them lost them."""
        if not symbols:
            return None
        if self._sizes is None:
            finite = self._target in EXECUTORCH_TARGETS
            self._sizes = Sizes(self._graph.graph, bool(self._graph.path), finite, self._checks)
        ordered = sorted(symbols, key=str)
        for symbol in ordered:
            if symbol not in self._kept:
                self._kept[symbol] = self._sizes.free(symbol)
        reasons = [self._kept[symbol] for symbol in ordered]
        return None if None in reasons else reasons[0]
