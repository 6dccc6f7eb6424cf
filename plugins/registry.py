"""Finds the installed plugins: every entry point of the group `graftwork.plugins`.

Built-in plugins come in by this door too. A plugin that cannot be imported is kept as broken, with
its error, and fails only who enables it.
"""

from __future__ import annotations

import functools
import importlib.metadata
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pluggy

from . import hookspecs
from .errors import BrokenPluginError
from .info import PluginInfo

ENTRY_POINT_GROUP = "graftwork.plugins"

_ID = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_KINDS = {
    "rewrite_graph": "pass",
    "list_decompositions": "decomposition",
    "list_kernels": "kernel",
    "patch_compile": "compile-patch",
    "list_compile_options": "compile-options",
}


@dataclass(frozen=True, eq=False)
class Plugin:
    """One installed plugin.

    Attributes:
        id: the entry point's name.
        distribution: name of the distribution that provides it.
        version: the plugin's own version, else the distribution's.
        module: the module that implements the hooks; None where it is broken.
        info: what the plugin says of itself.
        kinds: what it provides: pass, decomposition, kernel, compile-patch, compile-options.
        broken: why it cannot be used; empty for a sound plugin.
    """

    id: str
    distribution: str
    version: str
    module: Any = None
    info: PluginInfo = field(default_factory=lambda: PluginInfo(summary=""))
    kinds: tuple[str, ...] = ()
    broken: str = ""
    hooks: tuple[pluggy.HookImpl, ...] = ()

    @property
    def kind(self) -> str:
        """The kinds in one word, such as `pass` or `decomposition+kernel`."""
        return "+".join(self.kinds) or "none"

    @property
    def qualified_id(self) -> str:
        """`distribution/id`, which tells apart plugins of one id."""
        return f"{self.distribution}/{self.id}"

    @property
    def stamp(self) -> str:
        """`id@version`, as nodes and artifacts carry it."""
        return f"{self.id}@{self.version}"

    def implements(self, hook: str) -> bool:
        """Whether the plugin implements the named hook."""
        return any(self._name(impl) == hook for impl in self.hooks)

    def call(self, hook: str, **arguments: Any) -> Any:
        """Call the plugin's own implementation with those arguments that it takes.

        Raises:
            BrokenPluginError: the plugin does not implement the hook.
        """
        for impl in self.hooks:
            if self._name(impl) == hook:
                return impl.function(**{name: arguments[name] for name in impl.argnames})
        raise BrokenPluginError(f"plugin '{self.id}' ({self.distribution}) has no {hook}")

    def serves(self, target: str) -> bool:
        """Whether the plugin is meant for the target, and for the GPUs torch is built for."""
        if self.info.nvidia_only and _is_built_for_rocm():
            return False
        return self.info.targets is None or target in self.info.targets

    @staticmethod
    def _name(impl: pluggy.HookImpl) -> str:
        return impl.opts["specname"] or impl.function.__name__


def _is_built_for_rocm() -> bool:
    import torch

    return torch.version.hip is not None


@functools.cache
def installed_plugins() -> tuple[Plugin, ...]:
    """All installed plugins, sorted by id, then distribution; read once per process."""
    return load_plugins(importlib.metadata.entry_points(group=ENTRY_POINT_GROUP))


def load_plugins(entry_points: Iterable[importlib.metadata.EntryPoint]) -> tuple[Plugin, ...]:
    """Load plugins from entry points; what cannot be loaded comes back as broken."""
    found = {(_distribution(entry), entry.name): entry for entry in entry_points}
    return tuple(_load(found[key]) for key in sorted(found, key=lambda key: (key[1], key[0])))


def _distribution(entry: importlib.metadata.EntryPoint) -> str:
    return entry.dist.name if entry.dist else "unknown"


def _load(entry: importlib.metadata.EntryPoint) -> Plugin:
    distribution = _distribution(entry)
    version = entry.dist.version if entry.dist else "0"
    try:
        if not _ID.fullmatch(entry.name):
            raise BrokenPluginError(f"the id '{entry.name}' is not kebab-case, such as 'my-pass'")
        module = entry.load()
        manager = pluggy.PluginManager(hookspecs.PROJECT)
        manager.add_hookspecs(hookspecs)
        manager.register(module, name=entry.name)
        manager.check_pending()
        hooks = tuple(
            impl
            for caller in manager.get_hookcallers(module) or ()
            for impl in caller.get_hookimpls()
        )
        if not hooks:
            raise BrokenPluginError(f"{entry.value} implements no hook; mark them with @hookimpl")
        names = {Plugin._name(impl): impl for impl in hooks}
        info = names["describe_plugin"].function() if "describe_plugin" in names else None
        if not isinstance(info, PluginInfo):
            raise BrokenPluginError(f"{entry.value}: describe_plugin must return a PluginInfo")
    except Exception as error:
        return Plugin(entry.name, distribution, version, broken=f"{type(error).__name__}: {error}")
    kinds = tuple(kind for hook, kind in _KINDS.items() if hook in names)
    return Plugin(
        entry.name, distribution, info.version or version, module, info, kinds, hooks=hooks
    )
