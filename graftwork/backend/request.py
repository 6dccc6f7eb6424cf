"""What a target is given to build, and what it must answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from torch.export import ExportedProgram

from graftwork.plugins import LoweringContext, Selection
from graftwork.plugins.blame import blamed_on


@dataclass(frozen=True)
class BuildRequest:
    """Rewritten programs ready for a target.

    Attributes:
        programs: one exported program per method name.
        name: file name of the artifact without its suffix.
        directory: where to write; the caller moves the files to their place afterwards.
        context: the facts of the lowering.
        selection: the resolved plugin set.
        manifest: the JSON text to embed in the artifact.
        settings: the target's own settings, such as the data file name of `cuda`.
        record: what the target has to tell the report, filled in while it builds.
    """

    programs: Mapping[str, ExportedProgram]
    name: str
    directory: Path
    context: LoweringContext
    selection: Selection
    manifest: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    record: dict[str, Any] = field(default_factory=dict)

    def compile_options(self) -> dict[str, Any]:
        """The Inductor configuration the enabled plugins ask for."""
        merged: dict[str, Any] = {}
        for choice in self.selection.enabled:
            plugin = choice.plugin
            if plugin.serves(self.context.target) and plugin.implements("list_compile_options"):
                with blamed_on(plugin, "list_compile_options"):
                    merged |= plugin.call(
                        "list_compile_options", options=choice.options, context=self.context
                    )
        return merged

    @contextmanager
    def compile_patches(self) -> Any:
        """Hold every enabled compile patch; enter only around the compile itself."""
        with ExitStack() as stack:
            for choice in self.selection.enabled:
                plugin = choice.plugin
                if plugin.serves(self.context.target) and plugin.implements("patch_compile"):
                    with blamed_on(plugin, "patch_compile"):
                        patch: AbstractContextManager[None] = plugin.call(
                            "patch_compile", options=choice.options, context=self.context
                        )
                        stack.enter_context(patch)
            yield


class Target(Protocol):
    """One kind of artifact."""

    name: str
    suffix: str

    def device(self, settings: Mapping[str, Any]) -> str:
        """The kind of device the artifact runs on, `cpu` or `cuda`."""

    def check(self, archs: Sequence[str], settings: Mapping[str, Any], methods: int) -> None:
        """Refuse what this machine or this target cannot do, before any work.

        Raises:
            InputError: names what is missing or not taken, and the way out.
        """

    def build(self, request: BuildRequest) -> list[Path]:
        """Write the artifact (first) and its companion files into `request.directory`.

        Raises:
            NotLowerableError: operators are left that the target cannot take.
        """

    def why_not_runnable(self) -> str:
        """Why an artifact cannot run on this machine; empty where it can."""
