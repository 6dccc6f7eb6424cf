"""What every plugin did: the numbered applications and the candidates it declined."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from torch import fx

from .registry import Plugin
from .toolkit.source import SourceLine, source_line


class Declined(Exception):
    """Raised by a decomposition or a kernel that does not apply; carries the reason."""


@dataclass(frozen=True)
class Event:
    """One candidate.

    Attributes:
        plugin: id of the plugin.
        number: the application's number over the whole lowering, from 1; None if declined.
        node: name of the candidate node.
        op: its operator, such as `aten.index_put.default`.
        graph: path of the sub-graph it stands in, empty for the root graph.
        detail: what it became, or why it was declined.
        source: the user's line, where known.
    """

    plugin: str
    number: int | None
    node: str
    op: str
    graph: str
    detail: str
    source: SourceLine | None

    @property
    def rewrote(self) -> bool:
        """Whether the plugin rewrote the candidate."""
        return self.number is not None


@dataclass
class RewriteLog:
    """Collects events and seconds per plugin while one program is rewritten.

    Attributes:
        limit: refuse applications past this number; None means no limit.
        events: every candidate, in order.
        seconds: time spent in each plugin, by id.
    """

    limit: int | None = None
    events: list[Event] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    applications: int = 0

    def claim(self, plugin: Plugin, node: fx.Node, what: str, graph: str = "") -> bool:
        """Number an application and note it; False once the limit is reached."""
        if self.limit is not None and self.applications >= self.limit:
            self.decline(plugin, node, f"past the limit of {self.limit} applications", graph)
            return False
        self.applications += 1
        self._note(plugin, self.applications, node, what, graph)
        return True

    def decline(self, plugin: Plugin, node: fx.Node, reason: str, graph: str = "") -> None:
        """Note a candidate that the plugin left untouched, and why."""
        self._note(plugin, None, node, reason, graph)

    @contextmanager
    def timed(self, plugin: Plugin) -> Iterator[None]:
        """Add the time spent inside to the plugin's seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            spent = time.perf_counter() - start
            self.seconds[plugin.id] = self.seconds.get(plugin.id, 0.0) + spent

    def fired(self, plugin_id: str) -> int:
        """How many candidates the plugin rewrote."""
        return sum(event.plugin == plugin_id and event.rewrote for event in self.events)

    def declined(self, plugin_id: str) -> int:
        """How many candidates the plugin left untouched."""
        return sum(event.plugin == plugin_id and not event.rewrote for event in self.events)

    def _note(
        self, plugin: Plugin, number: int | None, node: fx.Node, detail: str, graph: str
    ) -> None:
        op = str(node.target) if node.op == "call_function" else node.op
        self.events.append(
            Event(plugin.id, number, node.name, op, graph, detail, source_line(node))
        )
