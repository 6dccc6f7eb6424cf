"""What a plugin says of itself (`describe_plugin`)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class PluginInfo:
    """A plugin's description.

    Attributes:
        summary: one line for listings, in the field's words.
        options: a frozen dataclass whose fields (bool, int, float, str or Literal, each with a
            default) are the plugin's options; None where it has none.
        before: ids of plugins that must run after this one.
        after: ids of plugins that must run before this one. Ids that are not enabled are ignored.
        enabled_by_default: whether it takes part without being asked for.
        targets: targets it is meant for; None means every target.
        nvidia_only: whether it needs an NVIDIA GPU; it is not offered where torch is built for
            ROCm.
        version: the plugin's own version; None means its distribution's.
    """

    summary: str
    options: type | None = None
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    enabled_by_default: bool = True
    targets: frozenset[str] | None = None
    nvidia_only: bool = False
    version: str | None = None
