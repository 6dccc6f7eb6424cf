"""`graftwork run`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from graftwork.backend.staging import publish, staging_directory
from graftwork.plugins.errors import InputError
from graftwork.running.loading import load

from .failures import name_failing
from .inputs import inputs_for
from .progress import progress
from .records import print_json
from .tables import console, folding_table


def run_run(
    file: Path,
    *,
    method: str,
    inputs: Path | None,
    data: Path | None,
    output: Path | None,
    seed: int,
    calls: int,
    cuda_graphs: bool,
    as_json: bool,
) -> None:
    """Load, call, print what came out, and save it."""
    if calls < 1:
        raise InputError(f"--calls must be at least 1, not {calls}")
    with progress(silent=as_json) as announce:
        announce(f"load {file}")
        chosen = load(file, data=data, cuda_graphs=cuda_graphs).method(method)
        args, kwargs = inputs_for(chosen, inputs, seed)
        announce(f"run {chosen.name}")
        for _ in range(calls):
            given = pytree.tree_map_only(torch.Tensor, torch.clone, (args, kwargs))
            with name_failing(file, chosen.name):
                outputs = chosen(*given[0], **given[1])
        outputs = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, outputs)
        if output is not None:
            _save(outputs, output)
    leaves = pytree.tree_leaves(outputs)
    rows = [_describe(leaf) for leaf in leaves]
    record = {
        "artifact": str(file),
        "method": chosen.name,
        "device": chosen.device,
        "cuda_graph": chosen.graph,
        "inputs": str(inputs) if inputs is not None else f"drawn with seed {seed}",
        "outputs": rows,
    }
    if as_json:
        print_json(record)
        return
    out = console()
    table = folding_table(
        "output", "dtype", "shape", "smallest", "largest", "mean", title=str(file)
    )
    for index, row in enumerate(rows):
        if "value" in row:
            table.add_row(str(index), "", "", str(row["value"]), "", "")
            continue
        numbers = ["" if row[key] is None else f"{row[key]:.6g}" for key in ("min", "max", "mean")]
        shape = "x".join(map(str, row["shape"])) or "scalar"
        table.add_row(str(index), row["dtype"], shape, *numbers)
    out.print(table)
    out.print(
        f"method {chosen.name} on {chosen.device}; inputs: {record['inputs']}", soft_wrap=True
    )
    if cuda_graphs:
        out.print(f"CUDA graph: {chosen.graph}")
    if output is not None:
        out.print(f"outputs: {output}", soft_wrap=True)


def _save(outputs: Any, output: Path) -> None:
    """`torch.save`, whole or not at all."""
    with staging_directory(output.parent) as stage:
        try:
            torch.save(outputs, stage / output.name)
            publish([stage / output.name], output.parent)
        except (
            OSError,
            RuntimeError,
        ) as error:  # RuntimeError: torch's writer, disk full
            raise InputError(f"cannot write {output}: {error}") from error


def _describe(leaf: Any) -> dict[str, Any]:
    """A record of one output; of a tensor without elements, or complex, no numbers."""
    if not isinstance(leaf, torch.Tensor):
        return {"value": leaf if isinstance(leaf, (int, float, str, type(None))) else str(leaf)}
    record: dict[str, Any] = {
        "dtype": str(leaf.dtype).removeprefix("torch."),
        "shape": list(leaf.shape),
        "min": None,
        "max": None,
        "mean": None,
    }
    if leaf.numel() and not leaf.is_complex():
        values = leaf.double()
        for key, value in (("min", values.min()), ("max", values.max()), ("mean", values.mean())):
            record[key] = value.item()
    return record
