"""The report of what still cannot lower: operator, count, source lines, and the way out."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import torch
from torch import fx

from graftwork.plugins import LoweringContext, Plugin, Selection
from graftwork.plugins.errors import NotLowerableError
from graftwork.plugins.options import build_options
from graftwork.plugins.toolkit.source import source_line

SHOWN_LINES = 5


@dataclass
class Unlowered:
    """One operator that is left: its name, how often, where, and why it cannot stay."""

    op: str
    why: str
    count: int = 0
    lines: list[str] = field(default_factory=list)
    remedy: str = ""


class UnloweredReport:
    """Collects the operators a target cannot take, then raises one error for all of them."""

    def __init__(self, selection: Selection, context: LoweringContext) -> None:
        self._selection = selection
        self._context = context
        self._found: dict[str, Unlowered] = {}

    def add(self, op: str, why: str, nodes: Iterable[fx.Node] = (), remedy: str = "") -> None:
        """Note one operator, such as `aten::_fft_r2c`, at the given nodes.

        `remedy` says the way out where that is no plugin.
        """
        entry = self._found.setdefault(op, Unlowered(op, why, remedy=remedy))
        for node in nodes:
            entry.count += 1
            line = str(source_line(node) or "")
            if line and line not in entry.lines:
                entry.lines.append(line)

    @property
    def entries(self) -> list[Unlowered]:
        """Every operator noted, most frequent first, each with its remedy."""
        providers = _providers(self._selection, self._context) if self._found else {}
        for entry in self._found.values():
            entry.remedy = entry.remedy or _remedy(entry.op, providers, self._selection)
        return sorted(self._found.values(), key=lambda entry: (-entry.count, entry.op))

    def raise_if_any(self) -> None:
        """Raise one `NotLowerableError` that lists every entry; nothing where there is none."""
        entries = self.entries
        if not entries:
            return
        lines = [f"target {self._context.target} cannot take {len(entries)} operator(s):"]
        for entry in entries:
            lines.append(f"  {entry.op} x{entry.count}: {entry.why}; {entry.remedy}")
            lines += [f"    at {line}" for line in entry.lines[:SHOWN_LINES]]
            if len(entry.lines) > SHOWN_LINES:
                lines.append(f"    and {len(entry.lines) - SHOWN_LINES} more lines")
        raise NotLowerableError("\n".join(lines))


def _remedy(op: str, providers: dict[str, Plugin], selection: Selection) -> str:
    base = op.split(".")[0]
    plugin = providers.get(base)
    if plugin is not None:
        return f"plugin '{plugin.id}' provides it and is disabled: --enable {plugin.id}"
    name = base.split("::")[-1].strip("_").replace("_", "-")
    while selection.find(name) is not None:
        name = f"my-{name}"
    return f"no plugin provides it: graftwork new decomposition {name}"


def _providers(selection: Selection, context: LoweringContext) -> dict[str, Plugin]:
    """The disabled plugin that handles each operator, by the operator's name."""
    found: dict[str, Plugin] = {}
    for choice in selection.choices:
        plugin = choice.plugin
        if not choice.enabled and not plugin.broken:
            for op in handled_operators(plugin, context):
                found.setdefault(str(op._schema.name), plugin)
    return found


def handled_operators(plugin: Plugin, context: LoweringContext) -> list[torch._ops.OpOverload]:
    """The operators a plugin's decompositions and kernels are registered for."""
    options = build_options(plugin.id, plugin.info.options, {})
    found: list[torch._ops.OpOverload] = []
    for hook in ("list_decompositions", "list_kernels"):
        if plugin.implements(hook):
            found += plugin.call(hook, options=options, context=context)
    return found
