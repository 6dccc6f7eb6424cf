"""Runs one case the whole road: export, rewrite by one plugin alone, run, compare with eager."""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from .comparing import compare
from .context import LoweringContext
from .exportable_checks import exportable_checks
from .properties import Case, Property, Refusal, Tolerance
from .reference import SubstituteOperators, run_eager
from .registry import Plugin, installed_plugins
from .rewriting import rewrite_program
from .selection import Selection, select_plugins, unknown_plugin
from .turns import TORCH_TURN


class Mismatch(AssertionError):
    """A case's result, or how often the plugin fired, is not what the property promises."""


@dataclass(frozen=True)
class Checked:
    """What one sound case showed: how often the plugin fired, and where a reference stood in."""

    fired: int
    references: tuple[str, ...] = ()


def check_case(plugin: Plugin, promise: Property, case: Case, device: str = "cpu") -> Checked:
    """Check one case on its property's road.

    Args:
        device: where the tensors of the case are put, `cpu` or `cuda`.

    Raises:
        Mismatch: the result differs, or the plugin fired another number of times.
        GraftworkError: the plugin raised or refused.
    """
    selection = select_plugin_alone(plugin, case.options)
    case = _on_device(case, device)
    context = _context(plugin, case)
    road = _exported if promise.road == "export" else _direct
    run = road(plugin, case, selection, context)
    references: dict[str, None] = {}
    for inputs in (case.inputs, *case.more_inputs):
        expected, stood_in = _reference(promise, case, inputs)
        references |= dict.fromkeys(stood_in)
        _compare(run, inputs, expected, case.tolerance or promise.tolerance)
    fired = run.fired()
    if case.fires is not None and fired != case.fires:
        raise Mismatch(
            f"'{plugin.id}' fired {fired} times, the property says {case.fires}"
            f"{run.why_declined()}"
        )
    return Checked(fired, tuple(references))


def check_refusal(
    plugin: Plugin, promise: Property, refusal: Refusal, device: str = "cpu"
) -> None:
    """Check that a case ends in the error the refusal names.

    Raises:
        Mismatch: it ends in another error, or in none.
    """
    try:
        check_case(plugin, replace(promise, refused=()), refusal.case, device)
    except Mismatch as error:
        found: BaseException | None = error
    except Exception as error:
        found = error
        while found is not None:
            if isinstance(found, refusal.error) and re.search(refusal.message, str(found)):
                return
            found = found.__cause__
        found = error
    else:
        found = None
    told = f"{type(found).__name__}: {found}" if found else "nothing"
    raise Mismatch(
        f"'{plugin.id}' must refuse '{refusal.name}' with {refusal.error.__name__} matching "
        f"'{refusal.message}', but it raised {told}"
    )


def find_plugin(plugin_id: str) -> Plugin:
    """The installed plugin of that id, broken ones included.

    Raises:
        UnknownPluginError: no such id; the nearest are named.
    """
    for plugin in installed_plugins():
        if plugin_id in (plugin.id, plugin.qualified_id):
            return plugin
    raise unknown_plugin(plugin_id, installed_plugins(), "the caller")


def select_plugin_alone(plugin: Plugin, options: Mapping[str, Any] | None = None) -> Selection:
    """A selection of this plugin and no other, whatever the environment says."""
    return select_plugins(
        enable=[plugin.qualified_id],
        disable=["all"],
        options={plugin.qualified_id: options} if options else {},
        installed=[plugin],
        environment={},
        directory=Path(Path.cwd().anchor),
    )


class _Run:
    """A program with one plugin in place: call it, then ask how often the plugin fired."""

    def __init__(
        self,
        module: Callable[..., Any],
        fired: Callable[[], int],
        declined: Callable[[], list[str]],
    ) -> None:
        self.module = module
        self.fired = fired
        self._declined = declined

    def why_declined(self) -> str:
        """The reasons the plugin gave, for a message."""
        reasons = list(dict.fromkeys(self._declined()))
        return f"; it declined: {'; '.join(reasons)}" if reasons else ""


def _exported(plugin: Plugin, case: Case, selection: Selection, context: LoweringContext) -> _Run:
    with TORCH_TURN, warnings.catch_warnings(), torch.no_grad(), exportable_checks():
        warnings.simplefilter("ignore")
        program = torch.export.export(
            case.module(),
            copy.deepcopy(case.inputs),
            dynamic_shapes=case.dynamic_shapes,
            strict=False,
        )
        rewritten, log = rewrite_program(program, selection, context)
        module = rewritten.module()
    return _Run(
        lambda *inputs: run_eager(module, inputs, [plugin])[0],
        lambda: log.fired(plugin.id),
        lambda: [event.detail for event in log.events if not event.rewrote],
    )


def _direct(plugin: Plugin, case: Case, selection: Selection, context: LoweringContext) -> _Run:
    (choice,) = selection.enabled
    functions: dict[Any, Callable[..., Any]] = {}
    for hook in ("list_decompositions", "list_kernels"):
        if plugin.implements(hook):
            functions |= plugin.call(hook, options=choice.options, context=context)
    reasons: list[str] = []
    counts: list[int] = []

    def run(*inputs: Any) -> Any:
        with torch.no_grad(), SubstituteOperators(functions) as mode:
            outputs = case.module()(*inputs)
        counts.append(mode.count)
        reasons.extend(mode.declined)
        return outputs

    return _Run(run, lambda: counts[0], lambda: reasons)


def _context(plugin: Plugin, case: Case) -> LoweringContext:
    """A target that the plugin serves: `cpu` if it can, and a GPU's where it has kernels."""
    targets = plugin.info.targets or {"cpu"}
    cuda = plugin.implements("list_kernels")
    target = "cuda" if cuda else "cpu" if "cpu" in targets else min(targets)
    return LoweringContext(
        target=target,
        device="cuda" if target == "cuda" else "cpu",
        sample_inputs=case.inputs,
    )


def _reference(
    promise: Property, case: Case, inputs: tuple[Any, ...]
) -> tuple[list[Any], list[str]]:
    own = copy.deepcopy(inputs)
    if promise.reference is not None:
        with torch.no_grad():
            outputs = promise.reference(*own, **case.settings)
        return pytree.tree_leaves((outputs, own)), [promise.reference_reason]
    outputs, stood_in = run_eager(case.module(), own, installed_plugins())
    return pytree.tree_leaves((outputs, own)), stood_in


def _compare(
    run: _Run, inputs: tuple[Any, ...], expected: list[Any], tolerance: Tolerance
) -> None:
    own = copy.deepcopy(inputs)
    outputs = pytree.tree_leaves((run.module(*own), own))
    if len(outputs) != len(expected):
        raise Mismatch(f"{len(outputs)} outputs, the reference has {len(expected)}")
    for index, (ours, reference) in enumerate(zip(outputs, expected, strict=True)):
        difference = compare(ours, reference, tolerance)
        if difference.why:
            raise Mismatch(f"output {index}: {difference.why}")


def _on_device(case: Case, device: str) -> Case:
    if device == "cpu":
        return case

    def move(value: Any) -> Any:
        return value.to(device) if isinstance(value, torch.Tensor) else value

    return replace(
        case,
        inputs=pytree.tree_map(move, case.inputs),
        more_inputs=pytree.tree_map(move, case.more_inputs),
    )
