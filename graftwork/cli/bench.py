"""`graftwork bench`."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch.utils import _pytree as pytree

from graftwork.lowering import rewrite
from graftwork.plugins.errors import InputError
from graftwork.plugins.exportable_checks import exportable_checks
from graftwork.running.loading import load
from graftwork.running.timing import Timing, time_calls

from .failures import name_failing
from .inputs import inputs_for
from .models import LoadedModel, load_model, refuse_exit
from .progress import progress
from .records import print_json
from .tables import console, folding_table

Call = Callable[[], Any]


def run_bench(
    file: Path,
    *,
    model: str,
    method: str,
    inputs: Path | None,
    data: Path | None,
    iterations: int,
    warmup: int,
    seed: int,
    as_json: bool,
) -> None:
    """Time the artifact, and in the same run the model in eager and compiled by torch.compile."""
    for name, value, least in (("--iterations", iterations, 1), ("--warmup", warmup, 0)):
        if value < least:
            raise InputError(f"{name} must be at least {least}, not {value}")
    rows: dict[str, Timing | str] = {}
    with progress(silent=as_json) as announce, refuse_exit(model):
        announce(f"load {file}")
        loaded = load_model(model) if model else None
        chosen = load(file, data=data).method(method)
        device = chosen.device
        if loaded is not None and (loaded.inputs or loaded.kwargs) and inputs is None:
            args, kwargs = _on(device, (loaded.inputs, dict(loaded.kwargs)))
        else:
            args, kwargs = inputs_for(chosen, inputs, seed)
        calls = _calls(file, data, chosen.name, loaded, (args, kwargs), device)
        for name, make in calls:
            announce(f"time {name}")
            try:
                with name_failing(file, chosen.name) if name == "artifact" else nullcontext():
                    rows[name] = time_calls(
                        make(), device=device, iterations=iterations, warm_ups=warmup
                    )
            except Exception as error:
                if name == "artifact":
                    raise
                first = next(iter(str(error).strip().splitlines()), "")
                rows[name] = f"{type(error).__name__}: {first}"
    facts = _facts(device)
    if as_json:
        print_json(_record(file, chosen.name, device, iterations, facts, rows))
        return
    _print(console(), file, facts, rows)


def _calls(
    file: Path,
    data: Path | None,
    method: str,
    loaded: LoadedModel | None,
    inputs: tuple[tuple[Any, ...], dict[str, Any]],
    device: str,
) -> Iterator[tuple[str, Callable[[], Call]]]:
    """Each row's name, and what makes the call that it times."""
    args, kwargs = inputs

    def artifact(graphs: bool) -> Call:
        program = load(file, data=data, cuda_graphs=graphs).method(method)
        if graphs:
            for _ in range(5):
                program(*args, **kwargs)
            if program.graph != "captured":
                raise InputError(program.graph)
        return lambda: program(*args, **kwargs)

    if loaded is not None:
        name, eager = _eager(loaded, inputs, device)
        yield name, lambda: _ungraded(eager, inputs)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield "torch.compile", lambda: _ungraded(torch.compile(eager), inputs)
    yield "artifact", lambda: artifact(False)
    if device == "cuda":
        yield "artifact, CUDA graph", lambda: artifact(True)


def _eager(
    loaded: LoadedModel, inputs: tuple[tuple[Any, ...], dict[str, Any]], device: str
) -> tuple[str, Callable[..., Any]]:
    """The model in eager, or its rewritten program where eager lacks a kernel on this device."""
    model = loaded.model
    module = model.module() if isinstance(model, torch.export.ExportedProgram) else model
    module = copy.deepcopy(module).to(device)
    try:
        _ungraded(module, inputs)()
    except (NotImplementedError, RuntimeError):
        with exportable_checks(), torch.no_grad():
            program = torch.export.export(module, *inputs, strict=False)
        return "eager, rewritten program", rewrite(program, target="aoti").module()
    return "eager", module


def _ungraded(call: Callable[..., Any], inputs: tuple[tuple[Any, ...], dict[str, Any]]) -> Call:
    args, kwargs = inputs

    def run() -> Any:
        with torch.no_grad():
            return call(*args, **kwargs)

    return run


def _on(device: str, inputs: Any) -> Any:
    return pytree.tree_map_only(torch.Tensor, lambda tensor: tensor.to(device), inputs)


def _facts(device: str) -> dict[str, str]:
    facts: dict[str, str] = {"torch": str(torch.__version__)}
    if device == "cuda":
        import triton

        facts = {"GPU": torch.cuda.get_device_name(), **facts, "triton": triton.__version__}
    else:
        facts["threads"] = str(torch.get_num_threads())
    return facts


def _record(
    file: Path,
    method: str,
    device: str,
    iterations: int,
    facts: dict[str, str],
    rows: dict[str, Timing | str],
) -> dict[str, Any]:
    return {
        "artifact": str(file),
        "method": method,
        "device": device,
        "iterations": iterations,
        **facts,
        "rows": [
            {"name": name, **({"failed": row} if isinstance(row, str) else asdict(row))}
            for name, row in rows.items()
        ],
    }


def _print(
    console: Console, file: Path, facts: dict[str, str], rows: dict[str, Timing | str]
) -> None:
    title = f"{file}, microseconds a call ({', '.join(f'{k} {v}' for k, v in facts.items())})"
    table = folding_table("", "min", "p50", "p90", "p99", "queued", "memory, MiB", title=title)
    for name, row in rows.items():
        if isinstance(row, str):
            continue
        numbers = [row.minimum, row.p50, row.p90, row.p99, row.queued]
        memory = "" if row.memory is None else f"{row.memory / 2**20:.1f}"
        table.add_row(name, *(f"{number:.1f}" for number in numbers), memory)
    console.print(table)
    for name, row in rows.items():
        if isinstance(row, str):
            console.print(f"{name}: not timed: {row}")
