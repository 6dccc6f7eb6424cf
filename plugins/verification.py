"""Runs the properties of installed plugins against eager: the kit behind `graftwork verify`.

The pytest plugin and the project's own tests call the same functions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase

from .checking import Checked, Mismatch, check_case, check_refusal, find_plugin
from .errors import BrokenPluginError, InputError
from .properties import Case, Property
from .registry import Plugin, installed_plugins
from .reproduction import write_script

DEFAULT_EXAMPLES = 20


@dataclass(frozen=True)
class PropertyResult:
    """What one property of one plugin showed.

    Attributes:
        plugin: the plugin's id.
        property: the property's name.
        examples: cases that were run, refusals included.
        fired: rewrites over all of them.
        passed: whether all held.
        seconds: time spent.
        message: what failed; empty where it passed.
        script: a script that reproduces the (shrunk) failure alone; empty where it passed.
        references: operators or reasons for which a reference stood in for eager.
    """

    plugin: str
    property: str
    examples: int
    fired: int
    passed: bool
    seconds: float
    message: str = ""
    script: str = ""
    references: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready dictionary."""
        return asdict(self)


def verify(
    ids: Sequence[str] = (),
    *,
    examples: int = DEFAULT_EXAMPLES,
    seed: int = 0,
    device: str = "cpu",
    on_property: Callable[[Plugin, Property], None] = lambda plugin, promise: None,
) -> list[PropertyResult]:
    """Run the properties of the plugins named, or of every sound installed plugin.

    Args:
        ids: plugin ids; empty for all that are installed.
        examples: cases drawn per property.
        seed: equal seeds draw equal cases.
        device: where the cases run, `cpu` or `cuda`.
        on_property: called before each property.

    Raises:
        UnknownPluginError: an id nobody provides.
        BrokenPluginError: a plugin named cannot be imported, or its properties cannot be read.
        InputError: `examples` is not positive, or there is no GPU for `cuda`.
    """
    if examples < 1:
        raise InputError(f"examples must be at least 1, not {examples}")
    if device == "cuda" and not torch.cuda.is_available():
        raise InputError("the device cuda needs a GPU; this machine has none")
    results = []
    for plugin, promise in list_promises(ids):
        on_property(plugin, promise)
        results.append(verify_property(plugin, promise, examples, seed, device))
    return results


def list_promises(ids: Sequence[str] = ()) -> list[tuple[Plugin, Property]]:
    """Every property of the plugins named, or of every sound installed plugin."""
    if isinstance(ids, str):
        raise TypeError(f"ids takes a sequence of plugin ids, not the string '{ids}'")
    plugins = [find_plugin(name) for name in ids] or [
        p for p in installed_plugins() if not p.broken
    ]
    found = []
    for plugin in plugins:
        if plugin.broken:
            raise BrokenPluginError(f"plugin '{plugin.id}' cannot be used: {plugin.broken}")
        if plugin.implements("list_properties"):
            found += [(plugin, promise) for promise in plugin.call("list_properties")]
    return found


def verify_property(
    plugin: Plugin, promise: Property, examples: int, seed: int = 0, device: str = "cpu"
) -> PropertyResult:
    """Draw cases of one property until one fails or `examples` hold; then the refusals."""
    checked: list[Checked] = []
    failing: list[Case] = []
    start = time.perf_counter()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )
    @hypothesis.given(promise.cases)
    def every_case_holds(case: Case) -> None:
        try:
            checked.append(check_case(plugin, promise, case, device))
        except Exception:
            failing.append(case)
            raise

    message = script = ""
    try:
        every_case_holds()
        for refusal in promise.refused:
            check_refusal(plugin, promise, refusal, device)
            checked.append(Checked(0))
    except Exception as error:
        message = f"{type(error).__name__}: {error}"
        if failing:
            script = write_script(plugin.id, promise.name, failing[-1])
    return PropertyResult(
        plugin.id,
        promise.name,
        len(checked),
        sum(one.fired for one in checked),
        not message,
        time.perf_counter() - start,
        message,
        script,
        tuple(dict.fromkeys(name for one in checked for name in one.references)),
    )


def check_again(plugin_id: str, property_name: str, case: Case, device: str = "cpu") -> None:
    """Run one case of a property, as a reproduction script does.

    Raises:
        Mismatch: it still fails; a message is printed where it holds now.
    """
    plugin = find_plugin(plugin_id)
    for promise in plugin.call("list_properties"):
        if promise.name == property_name:
            check_case(plugin, promise, case, device)
            print(f"{plugin_id}, {property_name}: the case holds")
            return
    raise InputError(f"plugin '{plugin_id}' has no property '{property_name}'")


def assert_verified(*ids: str, examples: int, seed: int = 0, device: str = "cpu") -> None:
    """Verify plugins in a test; the error holds every failure's message and script."""
    results = verify(ids, examples=examples, seed=seed, device=device)
    failures = [r for r in results if not r.passed]
    if failures:
        raise Mismatch(
            "\n\n".join(f"{r.plugin}, {r.property}: {r.message}\n{r.script}" for r in failures)
        )
