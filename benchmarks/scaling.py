"""How long the enabled plugins take on programs of 1,000, 10,000 and 100,000 nodes.

    python benchmarks/scaling.py [--sizes 1000,10000,100000] [--policy ranges] [--json]

A block of user code that holds a candidate for every built-in pass and decomposition among some
350 nodes of ordinary arithmetic is exported once and repeated, each copy fed by the one before
and with symbols of its own. Asked for: ten times the nodes take at most twelve times as long, and
all plugins together at most 10 seconds at 100,000 nodes. Exits with 1 where that does not hold.
Seconds are the processor's, so that what else the machine does counts for nothing.
"""

from __future__ import annotations

import argparse
import copy
import gc
import itertools
import json
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram
from torch.nn.attention.varlen import varlen_attn

from graftwork.plugins import LoweringContext, rewrite_program, select_plugins
from graftwork.plugins.exportable_checks import exportable_checks
from graftwork.plugins.torch_private import (
    fake_mode_of,
    rename_symbols,
    symbol_range,
    unbacked_bindings,
    unbacked_symbols,
)

SIZES = (1_000, 10_000, 100_000)
MOST_RATIO = 12.0
MOST_SECONDS = 10.0


class Block(torch.nn.Module):
    """x of shape (8, 16) to a tensor of that shape, past one candidate of every kind."""

    def forward(
        self, x: Tensor, mask: Tensor, counts: Tensor, weight: Tensor, ends: Tensor
    ) -> Any:
        torch._assert_async((x * 0 == 0).all(), "finite")
        torch._check(counts.sum().item() <= 100)
        torch._check_tensor_all(counts >= 0)
        filled = x.clone()
        filled[mask] = torch.tanh(x[mask]) * 2
        picks = x[mask]
        torch._check(picks.shape[0] <= 100)
        x = filled + picks.sum().detach() * torch._is_all_true(filled == filled)
        image = torch.nn.functional.interpolate(
            x.view(1, 1, 8, 16), (4, 8), mode="bilinear", antialias=True
        )
        x = x + torch.ops.aten._reshape_copy(image, [2, 16]).sum(0)
        x = x + torch.nn.functional.conv1d(x[None], weight, padding=1)[0]
        heads = x.view(8, 2, 8)
        x = x + varlen_attn(heads, heads, heads, ends, ends, 8, 8).view(8, 16)
        x = torch.cond(mask.any(), _checked_branch, _plain_branch, (x, counts))
        for step in range(60):
            x = torch.sin(x * 0.5 + step).clamp(-1, 1) - x.mean(0)
        return x


def _checked_branch(x: Tensor, counts: Tensor) -> Tensor:
    torch._check(counts[0].item() <= 100)
    return x * 2


def _plain_branch(x: Tensor, counts: Tensor) -> Tensor:
    return x + 1


def export_block() -> ExportedProgram:
    """The block, functional."""
    inputs = (
        torch.randn(8, 16),
        torch.arange(8) % 2 == 0,
        torch.ones(4, dtype=torch.int64),
        torch.randn(8, 8, 3),
        torch.tensor([0, 3, 8], dtype=torch.int32),
    )
    with exportable_checks(), torch.no_grad():
        return torch.export.export(Block(), inputs).run_decompositions({})


def repeat(block: ExportedProgram, nodes: int) -> ExportedProgram:
    """A program of about that many nodes: the block again and again."""
    body = [node for node in block.graph.nodes if node.op not in ("placeholder", "output")]
    graph = fx.Graph()
    root = torch.nn.Module()
    inputs = {
        node: graph.node_copy(node) for node in block.graph.nodes if node.op == "placeholder"
    }
    (returned,) = block.graph.output_node().args[0]  # type: ignore[misc,union-attr]
    first = next(iter(inputs))
    carried = inputs[first]
    mode = fake_mode_of([node.meta["val"] for node in inputs])
    ranges: dict[Any, Any] = dict(block.range_constraints)
    for number in range(max(1, nodes // len(body))):
        known = {**inputs, first: carried}
        names: dict[Any, Any] = {}
        for node in body:
            new = graph.node_copy(node, known.__getitem__)
            known[node] = new
            if node.op == "get_attr":
                new.target = f"{node.target}_{number}"
                branch = getattr(block.graph_module, str(node.target))
                setattr(root, new.target, copy.deepcopy(branch))
            for symbol in unbacked_bindings(node):
                names[symbol] = _new_symbol(symbol, mode)
                ranges[names[symbol]] = symbol_range(symbol, mode)
            if unbacked_symbols(new.meta.get("val")):
                _rename(new, names, mode)
        carried = known[returned]
    graph.output((carried,)).meta.update(block.graph.output_node().meta)
    signature = copy.deepcopy(block.graph_signature)
    signature.output_specs[0].arg = torch.export.graph_signature.TensorArgument(carried.name)
    return ExportedProgram(
        root=root,
        graph=graph,
        graph_signature=signature,
        state_dict=block.state_dict,
        range_constraints=ranges,
        module_call_graph=block.module_call_graph,
        example_inputs=block.example_inputs,
        constants=block.constants,
        verifiers=block.verifiers,
    )


def _new_symbol(symbol: Any, mode: Any) -> Any:
    fresh = mode.shape_env.create_unbacked_symint().node.expr
    mode.shape_env.pending_fresh_unbacked_symbols.clear()
    mode.shape_env.var_to_range[fresh] = symbol_range(symbol, mode)
    return fresh


def _rename(node: fx.Node, names: Mapping[Any, Any], mode: Any) -> None:
    value = node.meta["val"]
    if isinstance(value, torch.SymBool):
        node.meta["val"] = node.target(*(_value(argument) for argument in node.args))  # type: ignore[operator]
    else:
        node.meta["val"] = rename_symbols(value, names, mode)
    if bindings := unbacked_bindings(node):
        node.meta["unbacked_bindings"] = {names[key]: path for key, path in bindings.items()}


def _value(argument: Any) -> Any:
    return argument.meta["val"] if isinstance(argument, fx.Node) else argument


def measure(program: ExportedProgram, options: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds by plugin, of the whole rewrite, and how often each plugin fired."""
    selection = select_plugins(["all"], options=options, environment={})
    nodes = len(program.graph.nodes)
    gc.collect()
    clock = SimpleNamespace(perf_counter=time.process_time)
    start = time.process_time()
    with mock.patch("graftwork.plugins.log.time", clock):
        _, log = rewrite_program(program, selection, LoweringContext(target="cpu"))
    whole = time.process_time() - start
    ids = [choice.plugin.id for choice in selection.enabled]
    return {
        "nodes": nodes,
        "seconds": {name: log.seconds.get(name, 0.0) for name in ids},
        "plugins": sum(log.seconds.values()),
        "rewrite": whole,
        "fired": {name: log.fired(name) for name in ids},
    }


def judge(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """What does not hold, in words."""
    wrong = []
    for small, large in itertools.pairwise(rows):
        grown = large["nodes"] / small["nodes"]
        for name in ("plugins", "rewrite"):
            ratio = large[name] / small[name]
            if ratio > MOST_RATIO * grown / 10:
                wrong.append(f"{name}: {grown:.1f} times the nodes take {ratio:.1f} times as long")
    if rows[-1]["plugins"] > MOST_SECONDS:
        wrong.append(f"all plugins together take {rows[-1]['plugins']:.1f} s")
    return wrong


def main() -> int:
    """Measure, print, judge."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--sizes", default=",".join(map(str, SIZES)))
    parser.add_argument("--policy", default="ranges", help="strip-asserts' policy")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    block = export_block()
    options = {"strip-asserts": {"policy": arguments.policy}}
    measure(repeat(block, 200), options)  # the first use of an operator pays for imports
    rows = [measure(repeat(block, int(size)), options) for size in arguments.sizes.split(",")]
    wrong = judge(rows)
    if arguments.json:
        print(json.dumps({"rows": rows, "wrong": wrong}, indent=2))
    else:
        _print(rows, wrong)
    return 1 if wrong else 0


def _print(rows: Sequence[Mapping[str, Any]], wrong: Sequence[str]) -> None:
    def line(name: str, cells: Sequence[float], note: str = "") -> None:
        ratios = [f"x{b / a:.1f}" if a else "" for a, b in itertools.pairwise(cells)]
        print(
            f"{name:24}"
            + "".join(f"{cell:11.3f}" for cell in cells)
            + f"   {' '.join(ratios)}{note}"
        )

    print(f"{'nodes':24}" + "".join(f"{row['nodes']:11d}" for row in rows))
    for name in rows[0]["seconds"]:
        line(name, [row["seconds"][name] for row in rows], f"   fired {rows[-1]['fired'][name]}")
    line("all plugins, seconds", [row["plugins"] for row in rows])
    line("whole rewrite, seconds", [row["rewrite"] for row in rows])
    for text in wrong:
        print(f"NOT MET: {text}")


if __name__ == "__main__":
    sys.exit(main())
