"""`graftwork.lower`: export, rewrite by the enabled plugins, build, compare with eager, write."""

from __future__ import annotations

import copy
import re
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from graftwork.backend.manifest import make_manifest
from graftwork.backend.outputs import return_plain_tuples
from graftwork.backend.request import BuildRequest, Target
from graftwork.backend.signature import record_signature
from graftwork.backend.signature_checks import refuse_unbounded_sizes, refuse_unknown_layouts
from graftwork.backend.staging import publish, staging_directory
from graftwork.backend.targets import find_target
from graftwork.example_inputs import as_exported, copied, refuse_bare
from graftwork.plugins import (
    LoweringContext,
    RewriteLog,
    Selection,
    Tolerance,
    rewrite_program,
    select_plugins,
)
from graftwork.plugins.checking import select_plugin_alone
from graftwork.plugins.comparing import Difference, compare
from graftwork.plugins.errors import (
    GraftworkError,
    InputError,
    NotLowerableError,
    RunError,
    VerificationError,
)
from graftwork.plugins.exportable_checks import exportable_checks
from graftwork.plugins.reference import run_eager
from graftwork.plugins.turns import TORCH_TURN
from graftwork.report import LoweringReport, OutputReport, report_plugins

# What a compiled program may differ from eager: sums in another order, fused multiply-adds.
_TOLERANCES = {
    torch.float64: Tolerance(relative=1e-9, absolute=1e-9, strides=False),
    torch.float32: Tolerance(relative=1e-3, absolute=1e-4, strides=False),
    torch.float16: Tolerance(relative=2e-2, absolute=1e-2, strides=False),
    torch.bfloat16: Tolerance(relative=5e-2, absolute=5e-2, strides=False),
}
_EXACT = Tolerance(strides=False)

Model = torch.nn.Module | ExportedProgram


@dataclass(frozen=True)
class Lowered:
    """A finished lowering: the artifact's path and the report; call it to run the artifact."""

    artifact: Path
    report: LoweringReport
    selection: Selection = field(repr=False)

    def __call__(self, *args: Any, method: str = "forward", **kwargs: Any) -> list[Any]:
        """Load the artifact anew and run one method, as `graftwork.load` does; flat outputs.

        Raises:
            InputError: an input does not fit, or the artifact does not run on this machine.
        """
        return _run(self.artifact, method, args, kwargs)


def lower(
    model: Model | Mapping[str, ExportedProgram],
    inputs: tuple[Any, ...] = (),
    *,
    target: str = "cpu",
    directory: str | Path = ".",
    name: str | None = None,
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    verify: bool = True,
    archs: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
    application_limit: int | None = None,
    explain_disabled: bool = False,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> Lowered:
    """Lower a model through the enabled plugins and prove that it equals eager.

    Args:
        model: a module, an exported program, or exported programs by method name.
        inputs: positional example inputs; an exported program's own are used where none are given.
        target: `cpu`, `aoti` or `cuda`.
        directory: where the artifact goes; made where it does not exist.
        name: the artifact's file name without suffix; by default the module's class in snake case.
        kwargs: keyword example inputs.
        dynamic_shapes: as `torch.export.export` takes it.
        enable, disable, options: see `graftwork.plugins.select_plugins`.
        verify: run the artifact on the example inputs and compare every output with eager.
        archs: CUDA architectures (`sm_90`) for target `cuda`.
        settings: the target's own settings.
        application_limit: stop rewriting after this many applications.
        explain_disabled: also report what each disabled plugin would have rewritten, and keep
            the readable programs before and after.
        on_stage: called with the name of each stage as it begins.

    Raises:
        GraftworkError: one of its kinds, each naming the thing and the way out. Nothing is
            written then.
    """
    selection = select_plugins(enable, disable, options)
    backend = find_target(target)
    methods = model if isinstance(model, Mapping) else {"forward": model}
    if not methods:
        raise InputError("there is no program to lower: the mapping of methods is empty")
    refuse_bare(inputs=inputs, archs=archs)
    given = dict(settings or {})
    backend.check(tuple(archs), given, len(methods))
    context = LoweringContext(
        target=target,
        device=backend.device(given),
        archs=tuple(archs),
        sample_inputs=tuple(inputs),
        sample_kwargs=dict(kwargs or {}),
        application_limit=application_limit,
    )
    file_name = _file_name(name, backend.suffix) if name else ""
    report = LoweringReport(target)
    stages = _Stages(report, on_stage)
    training = any(getattr(part, "training", False) for part in methods.values())

    with stages("export"):
        examples: dict[str, _Example] = {}
        for method, part in methods.items():
            examples[method] = _export(part, context, selection, dynamic_shapes, verify)
    with stages("rewrite"):
        programs, logs = {}, {}
        for method, example in examples.items():
            programs[method], logs[method] = rewrite_program(example.program, selection, context)
            return_plain_tuples(programs[method])
        dry_runs: dict[str, list[RewriteLog]] = {}
        if explain_disabled:
            dry_runs = _try_disabled(examples, selection, context)
            for method, program in programs.items():
                report.before[method] = _readable(examples[method].program)
                report.after[method] = _readable(program)
        report.plugins = report_plugins(selection, logs, dry_runs)
    # Target cuda moves the program there; the others run it where its tensors are.
    elsewhere = "cuda" if target == "cuda" else ""
    signatures = {name: record_signature(part, elsewhere) for name, part in programs.items()}
    for method, signature in signatures.items():
        refuse_unknown_layouts(method, signature)
        if backend.suffix == ".pte":
            refuse_unbounded_sizes(method, signature)
    with staging_directory(Path(directory)) as stage:
        request = BuildRequest(
            programs=programs,
            name=file_name or _snake_case(next(iter(examples.values())).name),
            directory=stage,
            context=context,
            selection=selection,
            manifest=make_manifest(selection, context, logs, signatures),
            settings=given,
        )
        with _hint_for_training(training):
            with stages("lower"), TORCH_TURN:
                files = backend.build(request)
            report.details = request.record
            with stages("verify"):
                _verify(backend, files[0], examples, report, verify)
        report.files = publish(files, Path(directory))
    report.artifact = report.files[0]
    return Lowered(report.artifact, report, selection)


def explain(
    model: Model,
    inputs: tuple[Any, ...] = (),
    *,
    target: str = "cpu",
    kwargs: Mapping[str, Any] | None = None,
    dynamic_shapes: Any = None,
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
    on_stage: Callable[[str], None] = lambda stage: None,
) -> LoweringReport:
    """Dry run: export and rewrite, report every candidate, write nothing.

    Takes the arguments of `lower`; disabled plugins are tried too.
    """
    refuse_bare(inputs=inputs)
    selection = select_plugins(enable, disable, options)
    context = LoweringContext(
        target=target,
        device=find_target(target).device({}),
        sample_inputs=tuple(inputs),
        sample_kwargs=dict(kwargs or {}),
    )
    report = LoweringReport(target, unverified="a dry run")
    stages = _Stages(report, on_stage)
    with stages("export"):
        example = _export(model, context, selection, dynamic_shapes, verify=False)
    with stages("rewrite"):
        _, log = rewrite_program(example.program, selection, context)
        dry_runs = _try_disabled({"forward": example}, selection, context)
        report.plugins = report_plugins(selection, {"forward": log}, dry_runs)
    return report


def rewrite(
    program: ExportedProgram,
    *,
    target: str = "cpu",
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> ExportedProgram:
    """Rewrite a program of your own script, before its `to_edge_transform_and_lower`.

    Gives a new program; the one given is left as it was.
    """
    return rewrite_with_log(
        program, target=target, enable=enable, disable=disable, options=options
    )[0]


def rewrite_with_log(
    program: ExportedProgram,
    *,
    target: str = "cpu",
    enable: Sequence[str] = (),
    disable: Sequence[str] = (),
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> tuple[ExportedProgram, RewriteLog]:
    """As `rewrite`, with the log of what fired where and what declined why."""
    selection = select_plugins(enable, disable, options)
    device = find_target(target).device({})
    return rewrite_program(program, selection, LoweringContext(target=target, device=device))


def _try_disabled(
    examples: Mapping[str, _Example], selection: Selection, context: LoweringContext
) -> dict[str, list[RewriteLog]]:
    """What each disabled plugin would do alone, on copies of the programs."""
    logs: dict[str, list[RewriteLog]] = {}
    for choice in selection.choices:
        plugin = choice.plugin
        if choice.enabled or plugin.broken or not plugin.serves(context.target):
            continue
        alone = select_plugin_alone(plugin)
        logs[plugin.id] = [
            rewrite_program(example.program, alone, context)[1] for example in examples.values()
        ]
    return logs


@dataclass(frozen=True)
class _Example:
    """One method: its program, its example inputs, what eager gives for them."""

    name: str
    program: ExportedProgram
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    expected: list[Any] | None
    references: list[str]


def _export(
    model: Model, context: LoweringContext, selection: Selection, dynamic_shapes: Any, verify: bool
) -> _Example:
    args, kwargs = context.sample_inputs, dict(context.sample_kwargs)
    if isinstance(model, ExportedProgram):
        if not args and not kwargs and model.example_inputs is not None:
            args, kwargs = model.example_inputs
        name = "program"
    elif isinstance(model, torch.nn.Module):
        name = type(model).__name__
    else:
        raise InputError(f"a {type(model).__name__} cannot be lowered; give a torch.nn.Module")
    # Of a copy, so that buffers it writes stay as they are, for the export and for the caller.
    eager = _copied_model(model, name)
    expected: list[Any] | None = None
    references: list[str] = []
    if verify or isinstance(model, torch.nn.Module):
        outputs, references = _reference(eager, args, kwargs, selection, name)
        expected = list(pytree.tree_leaves(outputs))
    if isinstance(model, ExportedProgram):
        program = model
    else:
        args, kwargs = as_exported(args, kwargs, context.target)
        program = _export_module(model, args, kwargs, dynamic_shapes, name)
    return _Example(name, program, args, kwargs, expected, references)


def _copied_model(model: Model, name: str) -> Callable[..., Any]:
    part = model.module() if isinstance(model, ExportedProgram) else model
    try:
        return copy.deepcopy(part)
    except Exception as error:
        raise InputError(
            f"{name} cannot be copied, to compare with: {type(error).__name__}: "
            f"{_first_line(error)}; take out what it holds beside tensors and modules"
        ) from error


def _reference(
    eager: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    selection: Selection,
    name: str,
) -> tuple[Any, list[str]]:
    args, kwargs = copied(args, kwargs)
    try:
        sound = [choice.plugin for choice in selection.choices if not choice.plugin.broken]
        return run_eager(eager, args, sound, kwargs)
    except GraftworkError:
        raise
    except Exception as error:
        raise InputError(
            f"{name} does not run in eager mode on the inputs given: "
            f"{type(error).__name__}: {_first_line(error)}"
        ) from error


def _export_module(
    model: torch.nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    dynamic_shapes: Any,
    name: str,
) -> ExportedProgram:
    with TORCH_TURN, warnings.catch_warnings(), torch.no_grad(), exportable_checks():
        warnings.simplefilter("ignore")
        try:
            return torch.export.export(
                model, args, kwargs, dynamic_shapes=dynamic_shapes, strict=False
            )
        except Exception as error:
            raise InputError(
                f"torch.export refused {name}: {type(error).__name__}: {_first_line(error)}"
            ) from error


def _verify(
    backend: Target,
    artifact: Path,
    examples: Mapping[str, _Example],
    report: LoweringReport,
    wanted: bool,
) -> None:
    report.references = sorted({op for ex in examples.values() for op in ex.references})
    report.unverified = backend.why_not_runnable() if wanted else "not asked for"
    if report.unverified:
        return
    wrong = []
    for method, example in examples.items():
        try:
            outputs = _run(artifact, method, *copied(example.args, example.kwargs))
        except (InputError, RuntimeError) as error:
            raise RunError(
                f"the lowered program does not run on the example inputs, nothing was written: "
                f"method {method}: {_first_line(error)}"
            ) from error
        assert example.expected is not None
        if len(outputs) != len(example.expected):
            raise VerificationError(
                f"method {method} returns {len(outputs)} outputs, eager {len(example.expected)}"
            )
        for index, (ours, eager) in enumerate(zip(outputs, example.expected, strict=True)):
            found = _compare(ours, eager)
            report.outputs.append(
                OutputReport(
                    method,
                    index,
                    str(getattr(eager, "dtype", type(eager).__name__)).removeprefix("torch."),
                    tuple(getattr(eager, "shape", ())),
                    found.max_abs_diff,
                    not found.why,
                )
            )
            if found.why:
                wrong.append(f"{method} output {index}: {found.why}")
    if wrong:
        raise VerificationError(
            "the lowered program differs from eager, nothing was written: " + "; ".join(wrong)
        )


def _compare(ours: Any, eager: Any) -> Difference:
    if isinstance(ours, float) and isinstance(eager, float):  # `x.sum().item()`
        number, expected = torch.tensor([ours, eager], dtype=torch.float64)
        return compare(number, expected, _TOLERANCES[torch.float32])
    dtype = getattr(eager, "dtype", None)
    return compare(ours, eager, _TOLERANCES.get(dtype, _EXACT) if dtype else _EXACT)


def _run(
    artifact: Path, method: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> list[Any]:
    from graftwork.running.loading import load

    return list(pytree.tree_leaves(load(artifact).method(method)(*args, **kwargs)))


@contextmanager
def _hint_for_training(training: bool) -> Iterator[None]:
    """Say so where a model that failed is in training mode."""
    try:
        yield
    except (NotLowerableError, VerificationError) as error:
        if not training:
            raise
        raise type(error)(f"{error}; the model is in training mode: call model.eval()") from error


class _Stages:
    """Times the stages of a lowering and announces each."""

    def __init__(self, report: LoweringReport, announce: Callable[[str], None]) -> None:
        self._report = report
        self._announce = announce

    @contextmanager
    def __call__(self, stage: str) -> Iterator[None]:
        self._announce(stage)
        start = time.perf_counter()
        yield
        self._report.stages[stage] = time.perf_counter() - start


def _readable(program: ExportedProgram) -> str:
    return str(program.graph_module.print_readable(print_output=False))


def _file_name(name: str, suffix: str) -> str:
    """A name as given, without the artifact's suffix; anything that is no file name is refused."""
    name = name.removesuffix(suffix)
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
        raise InputError(
            f"'{name}' is no file name; give one of letters, digits, '_', '-' and '.' (name=, "
            "--name)"
        )
    return name


def _snake_case(name: str) -> str:
    return _file_name(
        re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", name).lower(), ""
    )


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), "")
