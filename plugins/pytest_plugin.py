"""`pytest --graftwork`: the properties of every installed plugin become tests.

Third-party plugins are collected like the built-in ones. Nothing of torch is imported unless the
flag is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .registry import Plugin


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the flags."""
    group = parser.getgroup("graftwork")
    group.addoption(
        "--graftwork",
        action="store",
        nargs="?",
        const="",
        default=None,
        metavar="ID,...",
        help="verify the installed graftwork plugins (or those named) against eager",
    )
    group.addoption(
        "--graftwork-examples", type=int, default=20, metavar="N", help="examples per property"
    )
    group.addoption("--graftwork-seed", type=int, default=0, metavar="S", help="seed of the draw")
    group.addoption("--graftwork-device", default="cpu", choices=("cpu", "cuda"))


def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Append one test a property, and one failing test a broken plugin."""
    wanted = config.getoption("--graftwork")
    if wanted is None:
        return
    from .errors import GraftworkError
    from .registry import installed_plugins
    from .verification import list_promises

    ids = [name.strip() for name in wanted.split(",") if name.strip()]
    try:
        promises = list_promises(ids)
    except GraftworkError as error:
        raise pytest.UsageError(
            f"{error}; write --graftwork=ID,... or, for all plugins, --graftwork after the paths"
        ) from error
    if not ids:
        items += [
            BrokenPluginItem.from_parent(session, name=f"graftwork::{plugin.id}", plugin=plugin)
            for plugin in installed_plugins()
            if plugin.broken
        ]
    items += [
        PropertyItem.from_parent(
            session, name=f"graftwork::{plugin.id}::{promise.name}", plugin=plugin, promise=promise
        )
        for plugin, promise in promises
    ]


class PropertyItem(pytest.Item):
    """One property of one plugin."""

    def __init__(self, *, plugin: Plugin, promise: Any, **rest: Any) -> None:
        super().__init__(**rest)
        self.plugin = plugin
        self.promise = promise

    def runtest(self) -> None:
        """Draw the examples and compare."""
        from .checking import Mismatch
        from .verification import verify_property

        result = verify_property(
            self.plugin,
            self.promise,
            self.config.getoption("--graftwork-examples"),
            self.config.getoption("--graftwork-seed"),
            self.config.getoption("--graftwork-device"),
        )
        if not result.passed:
            raise Mismatch(f"{result.message}\n\n{result.script}")

    def repr_failure(self, excinfo: Any, style: Any = None) -> str:
        """The message and the reproduction script, without the kit's own traceback."""
        return str(excinfo.value)

    def reportinfo(self) -> tuple[str, None, str]:
        """Name the plugin and the property."""
        return self.plugin.distribution, None, self.name


class BrokenPluginItem(pytest.Item):
    """A plugin that cannot be imported."""

    def __init__(self, *, plugin: Plugin, **rest: Any) -> None:
        super().__init__(**rest)
        self.plugin = plugin

    def runtest(self) -> None:
        """Fail with the import's error."""
        from .errors import BrokenPluginError

        raise BrokenPluginError(f"{self.plugin.distribution}: {self.plugin.broken}")

    def repr_failure(self, excinfo: Any, style: Any = None) -> str:
        """The import's error in one line."""
        return str(excinfo.value)
