"""Which plugins take part, with which options, and why.

Defaults < `[tool.graftwork]` in pyproject.toml < `GRAFTWORK_ENABLE` and `GRAFTWORK_DISABLE` <
command line or keyword. Within one layer `disable` is read before `enable`, and `all` stands for
every plugin, so `disable=["all"], enable=["strip-asserts"]` leaves one.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from .errors import (
    BrokenPluginError,
    ConfigurationError,
    OptionError,
    PluginClashError,
    UnknownPluginError,
)
from .options import build_options, format_plugin_text, parse_plugin_text, split_plugin_list
from .ordering import order_plugins
from .registry import Plugin, installed_plugins

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ALL = "all"


@dataclass(frozen=True)
class Choice:
    """One plugin with the decision about it.

    Attributes:
        plugin: the plugin.
        enabled: whether it takes part.
        reason: who decided, such as `default` or `disabled by GRAFTWORK_DISABLE`.
        options: the typed options, None where it has none or is not enabled.
    """

    plugin: Plugin
    enabled: bool
    reason: str
    options: Any = None

    @property
    def text(self) -> str:
        """Id and changed options, such as `strip-asserts{policy=ranges}`."""
        return format_plugin_text(self.plugin.id, self.options)


@dataclass(frozen=True)
class Selection:
    """The resolved set: `enabled` in the order they run, and every choice by id."""

    enabled: tuple[Choice, ...]
    choices: tuple[Choice, ...]

    def find(self, plugin_id: str) -> Choice | None:
        """The choice about a plugin, or None where no such plugin is installed."""
        return next((choice for choice in self.choices if choice.plugin.id == plugin_id), None)


@dataclass(frozen=True)
class Layer:
    """One source of wishes, `name` being how messages call it."""

    name: str
    enable: Sequence[str] = ()
    disable: Sequence[str] = ()
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def select_plugins(
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    *,
    installed: Iterable[Plugin] | None = None,
    environment: Mapping[str, str] | None = None,
    directory: Path | None = None,
) -> Selection:
    """Resolve the plugin set.

    Args:
        enable: ids (or `distribution/id`), each may carry options: `strip-asserts{policy=all}`.
        disable: ids; `all` for every plugin.
        options: raw options by id.
        installed: the plugins to choose from; by default those installed.
        environment: by default `os.environ`.
        directory: where the search for pyproject.toml starts, going up; by default the working
            directory.

    Raises:
        UnknownPluginError: an id nobody provides; the nearest ids are named.
        BrokenPluginError: a plugin that cannot be imported is asked for.
        PluginClashError: two distributions provide one enabled id.
        OptionError, ConfigurationError, PluginCycleError: as their names say.
        TypeError: `enable` or `disable` is a plain string.
    """
    for name, value in (("enable", enable), ("disable", disable)):
        if isinstance(value, str):
            raise TypeError(f"{name} takes a sequence of ids, not the string '{value}'")
    plugins = tuple(installed_plugins() if installed is None else installed)
    layers = (
        _configured(directory or Path.cwd()),
        _from_environment(os.environ if environment is None else environment),
        Layer("this call", enable, disable, options or {}),
    )
    decided: dict[Plugin, tuple[bool, str]] = {
        plugin: (plugin.info.enabled_by_default, "default")
        for plugin in plugins
        if not plugin.broken
    }
    decided |= {plugin: (False, f"broken: {plugin.broken}") for plugin in plugins if plugin.broken}
    given: dict[Plugin, dict[str, Mapping[str, Any]]] = {plugin: {} for plugin in plugins}
    for layer in layers:
        _apply(layer, plugins, decided, given)
    choices = tuple(
        Choice(
            plugin,
            wanted,
            reason,
            _build_options(plugin, given[plugin]) if wanted else None,
        )
        for plugin, (wanted, reason) in decided.items()
    )
    enabled = [choice for choice in choices if choice.enabled]
    _refuse_shared_ids(enabled)
    ordered = order_plugins([choice.plugin for choice in enabled])
    by_plugin = {choice.plugin: choice for choice in enabled}
    return Selection(
        tuple(by_plugin[plugin] for plugin in ordered),
        tuple(sorted(choices, key=lambda choice: (choice.plugin.id, choice.plugin.distribution))),
    )


def unknown_plugin(name: str, plugins: Iterable[Plugin], source: str) -> UnknownPluginError:
    """The error for an id nobody provides, with the nearest ids."""
    known = sorted({plugin.id for plugin in plugins})
    near = get_close_matches(name, known, n=3, cutoff=0.4)
    hint = f"did you mean {' or '.join(near)}?" if near else f"known: {', '.join(known)}"
    return UnknownPluginError(f"no plugin '{name}' (asked for by {source}); {hint}")


def _apply(
    layer: Layer,
    plugins: Sequence[Plugin],
    decided: dict[Plugin, tuple[bool, str]],
    given: dict[Plugin, dict[str, Mapping[str, Any]]],
) -> None:
    options: dict[Plugin, dict[str, Any]] = defaultdict(dict)
    for text in layer.disable:
        for plugin in _named(text, plugins, layer.name):
            decided[plugin] = (False, f"disabled by {layer.name}")
    for text in layer.enable:
        name, raw = parse_plugin_text(text)
        for plugin in _named(name, plugins, layer.name):
            if plugin.broken and name == ALL:
                continue
            if plugin.broken:
                raise BrokenPluginError(
                    f"plugin '{plugin.id}' of {plugin.distribution}, enabled by {layer.name}, "
                    f"cannot be used: {plugin.broken}; mend or uninstall {plugin.distribution}"
                )
            decided[plugin] = (True, f"enabled by {layer.name}")
            options[plugin].update(raw)
    for name, typed in layer.options.items():
        for plugin in _named(name, plugins, layer.name):
            options[plugin].update(typed)
    for plugin, values in options.items():
        if values:
            given[plugin][layer.name] = values


def _build_options(plugin: Plugin, given: Mapping[str, Mapping[str, Any]]) -> Any:
    """The options of all layers, the later ones first; an error names who gave them."""
    merged = {key: value for values in given.values() for key, value in values.items()}
    try:
        return build_options(plugin.id, plugin.info.options, merged)
    except OptionError as error:
        raise OptionError(f"{error} (given by {', '.join(given)})") from error


def _named(text: str, plugins: Sequence[Plugin], source: str) -> list[Plugin]:
    if text == ALL:
        return list(plugins)
    found = [plugin for plugin in plugins if text in (plugin.id, plugin.qualified_id)]
    if not found:
        raise unknown_plugin(text, plugins, source)
    return found


def _refuse_shared_ids(enabled: Sequence[Choice]) -> None:
    by_id: dict[str, Plugin] = {}
    for plugin in (choice.plugin for choice in enabled):
        other = by_id.setdefault(plugin.id, plugin)
        if other is not plugin:
            raise PluginClashError(
                f"plugin '{plugin.id}' is provided by two distributions, {other.distribution} and "
                f"{plugin.distribution}; uninstall one, or disable '{other.qualified_id}' or "
                f"'{plugin.qualified_id}'"
            )


def _from_environment(environment: Mapping[str, str]) -> Layer:
    return Layer(
        "GRAFTWORK_ENABLE or GRAFTWORK_DISABLE",
        split_plugin_list(environment.get("GRAFTWORK_ENABLE", "")),
        split_plugin_list(environment.get("GRAFTWORK_DISABLE", "")),
    )


def _configured(directory: Path) -> Layer:
    for folder in (directory, *directory.parents):
        path = folder / "pyproject.toml"
        if not path.is_file():
            continue
        try:
            tool = tomllib.loads(path.read_text(encoding="utf-8")).get("tool", {})
        except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
            raise ConfigurationError(f"{path} cannot be read: {error}") from error
        if isinstance(tool, dict) and "graftwork" in tool:
            return _read_table(tool["graftwork"], path)
    return Layer("pyproject.toml")


def _read_table(table: Any, path: Path) -> Layer:
    where = f"[tool.graftwork] in {path}"
    if not isinstance(table, dict):
        raise ConfigurationError(f"{where} must be a table, not {table!r}")
    unknown = set(table) - {"enable", "disable", "options"}
    if unknown:
        raise ConfigurationError(
            f"{where}: unknown entry {', '.join(sorted(unknown))}; known: enable, disable, options"
        )
    for key in ("enable", "disable"):
        value = table.get(key, [])
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigurationError(f"{where}: {key} must be a list of plugin ids")
    options = table.get("options", {})
    if not isinstance(options, dict) or not all(isinstance(v, dict) for v in options.values()):
        raise ConfigurationError(f"{where}: options must be tables, [tool.graftwork.options.ID]")
    return Layer(where, table.get("enable", []), table.get("disable", []), options)
