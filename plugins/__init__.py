"""The plugin contract: hook specifications, registry, selection, typed options, properties.

A plugin module needs only what is exported here, and the shared helpers in `toolkit`.
"""

from .context import LoweringContext
from .errors import GraftworkError
from .hookspecs import hookimpl
from .info import PluginInfo
from .log import Declined, Event, RewriteLog
from .properties import EXACT, Benchmark, Case, Property, Refusal, Tolerance
from .registry import Plugin, installed_plugins
from .rewriting import GraphRewrite, rewrite_program
from .selection import Choice, Selection, select_plugins

__all__ = [
    "EXACT",
    "Benchmark",
    "Case",
    "Choice",
    "Declined",
    "Event",
    "GraftworkError",
    "GraphRewrite",
    "LoweringContext",
    "Plugin",
    "PluginInfo",
    "Property",
    "Refusal",
    "RewriteLog",
    "Selection",
    "Tolerance",
    "hookimpl",
    "installed_plugins",
    "rewrite_program",
    "select_plugins",
]
