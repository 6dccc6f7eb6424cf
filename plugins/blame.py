"""Names the plugin, the node and the source line when a plugin raises."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import fx

from .errors import GraftworkError, PluginFailedError
from .registry import Plugin
from .toolkit.source import source_line


@contextmanager
def blamed_on(plugin: Plugin, what: str, node: fx.Node | None = None) -> Iterator[None]:
    """Turn an exception raised inside into one error that names the plugin and the node."""
    try:
        yield
    except GraftworkError:
        raise
    except Exception as error:
        where = ""
        if node is not None:
            where = f" at node {node.name} ({node.target})"
            line = source_line(node)
            where += f", {line}" if line else ""
        raise PluginFailedError(
            f"plugin '{plugin.id}' ({plugin.distribution} {plugin.version}) failed in {what}"
            f"{where}: {type(error).__name__}: {error}; disable it with --disable {plugin.id}"
        ) from error
