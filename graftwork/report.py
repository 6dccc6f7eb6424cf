"""What one lowering did, as data: plugins and events, stages, outputs against eager."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from graftwork.plugins import Event, RewriteLog, Selection


@dataclass(frozen=True)
class PluginReport:
    """One plugin's part in a lowering; `events` are its candidates in order.

    `would_fire` counts, for a plugin that is switched off, what it would have rewritten (where
    that was asked for); its events are then those of that dry run.
    """

    id: str
    version: str
    distribution: str
    kind: str
    enabled: bool
    reason: str
    text: str
    fired: int
    declined: int
    seconds: float
    events: tuple[Event, ...]
    would_fire: int = 0


@dataclass(frozen=True)
class OutputReport:
    """One output against eager.

    `max_abs_diff` is the largest |ours - eager| over the elements where both are finite; NaN and
    infinities must stand in the same places.
    """

    method: str
    index: int
    dtype: str
    shape: tuple[int, ...]
    max_abs_diff: float
    equal: bool


@dataclass
class LoweringReport:
    """Everything `graftwork lower` prints.

    Attributes:
        artifact: the main file; None for a dry run.
        files: every file written.
        target: the target's name.
        plugins: one entry a plugin, in the order they ran, disabled ones after.
        stages: seconds per stage: export, rewrite, lower, verify.
        outputs: one entry an output; empty where nothing was compared.
        references: operators for which a plugin's reference stood in, eager having no kernel.
        unverified: why outputs were not compared; empty where they were.
        details: what the target has to tell, by architecture for `cuda`: the audited libraries,
            and every choice that was made without a benchmark.
        before, after: the readable programs by method, as exported and as rewritten, for the
            HTML report; empty where they were not asked for.
    """

    target: str
    artifact: Path | None = None
    files: list[Path] = field(default_factory=list)
    plugins: list[PluginReport] = field(default_factory=list)
    stages: dict[str, float] = field(default_factory=dict)
    outputs: list[OutputReport] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    unverified: str = ""
    details: dict[str, Any] = field(default_factory=dict)
    before: dict[str, str] = field(default_factory=dict)
    after: dict[str, str] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary; paths and source lines as text."""
        record = asdict(self)
        record["artifact"] = str(self.artifact) if self.artifact else None
        record["files"] = [str(path) for path in self.files]
        del record["before"], record["after"]
        for plugin, entry in zip(self.plugins, record["plugins"], strict=True):
            entry["events"] = [
                {**asdict(event), "source": str(event.source) if event.source else None}
                for event in plugin.events
            ]
        return record


def report_plugins(
    selection: Selection,
    logs: dict[str, RewriteLog],
    dry_runs: Mapping[str, Sequence[RewriteLog]],
) -> list[PluginReport]:
    """One entry for every plugin: the enabled ones in their order, then the others by id.

    `dry_runs` holds the logs of disabled plugins, by id, where they were tried.
    """
    others = [choice for choice in selection.choices if not choice.enabled]
    return [
        PluginReport(
            id=choice.plugin.id,
            version=choice.plugin.version,
            distribution=choice.plugin.distribution,
            kind=choice.plugin.kind,
            enabled=choice.enabled,
            reason=choice.reason,
            text=choice.text,
            fired=sum(log.fired(choice.plugin.id) for log in logs.values()),
            declined=sum(log.declined(choice.plugin.id) for log in logs.values()),
            seconds=sum(log.seconds.get(choice.plugin.id, 0.0) for log in logs.values()),
            events=tuple(
                event
                for log in (*logs.values(), *dry_runs.get(choice.plugin.id, ()))
                for event in log.events
                if event.plugin == choice.plugin.id
            ),
            would_fire=sum(
                log.fired(choice.plugin.id) for log in dry_runs.get(choice.plugin.id, ())
            ),
        )
        for choice in (*selection.enabled, *others)
    ]
