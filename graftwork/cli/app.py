"""The commands and their arguments.

Exit codes: 0 done; 1 the answer is no (cannot be lowered, differs from eager, a plugin failed);
2 the request was wrong (an unknown id, a missing file, inputs that do not fit); 130 interrupted,
143 and 129 by SIGTERM and SIGHUP.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import click

from graftwork import __version__

from .failures import leave_with, stop_on_signals
from .streams import settle_streams

Command = TypeVar("Command", bound=Callable[..., Any])

as_json = click.option("--json", "as_json", is_flag=True, help="Print JSON and nothing else.")
target = click.option("--target", default="cpu", show_default=True, help="cpu, aoti or cuda.")
output = click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    help="Directory to write into.",
)


def selection(command: Command) -> Command:
    """The options that switch plugins and set their options."""
    for decorate in (
        click.option("--option", multiple=True, metavar="ID.KEY=VALUE", help="Set an option."),
        click.option("--disable", multiple=True, metavar="ID,...", help="Switch off; 'all' too."),
        click.option("--enable", multiple=True, metavar="ID,...", help="Switch on."),
    ):
        command = decorate(command)
    return command


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="graftwork %(version)s")
def app() -> None:
    """Lower PyTorch models through verified, pluggable rewrites.

    Exit codes: 0 done, 1 the answer is no, 2 the request was wrong.
    """


@app.command()
@click.argument("model")
@output
@target
@selection
@click.option("--name", default="", help="The artifact's file name without suffix.")
@click.option("--arch", default="", metavar="SM,...", help="CUDA architectures, such as sm_90.")
@click.option("--data-name", default="", help="cuda: the weights file's name, without .ptd.")
@click.option("--runtime", default="", help="cuda: the ExecuTorch release to run on, such as 1.5.")
@click.option("--ptx", is_flag=True, help="cuda: embed PTX too, for GPUs newer than --arch.")
@click.option("--verify/--no-verify", default=True, help="Run it and compare with eager.")
@click.option(
    "--report", "html", type=click.Path(path_type=Path), help="Write an HTML report to this file."
)
@as_json
def lower(**arguments: Any) -> None:
    """Lower MODEL, run the result, compare it with eager.

    MODEL is FILE.py:NAME or package.module:NAME, where NAME is a module class without required
    arguments, a module, or a function that returns one; or a FILE.pt2 of torch.export.save.
    Inputs come from example_inputs() of NAME or of its file (a tuple, or a dict of keyword
    inputs), dynamic shapes from dynamic_shapes(). Random weights are drawn with seed 0.
    """
    from .lower import run_lower

    run_lower(**arguments)


@app.command()
@click.argument("model")
@target
@selection
@as_json
def explain(**arguments: Any) -> None:
    """Dry run on MODEL: every candidate, rewrote or declined and why, with the source line.

    MODEL as for `graftwork lower`.
    """
    from .lower import run_explain

    run_explain(**arguments)


@app.command()
@click.argument("ids", nargs=-1, metavar="[ID]...")
@click.option("--examples", default=20, show_default=True, help="Examples per property.")
@click.option("--seed", default=0, show_default=True, help="Equal seeds draw equal examples.")
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@as_json
def verify(**arguments: Any) -> None:
    """Run the property tests of the plugins named, or of all installed, against eager."""
    from .verify import run_verify

    run_verify(**arguments)


@app.command()
@selection
@as_json
def plugins(**arguments: Any) -> None:
    """List the installed plugins: what they are, whether enabled, and why."""
    from .plugins import run_plugins

    run_plugins(**arguments)


@app.command()
@click.argument("file", type=click.Path(path_type=Path))
@as_json
def inspect(**arguments: Any) -> None:
    """Show what the artifact FILE holds, and which plugins made it."""
    from .inspect import run_inspect

    run_inspect(**arguments)


@app.command()
@click.argument("file", metavar="FILE.pte", type=click.Path(path_type=Path))
@click.option(
    "--data", multiple=True, metavar="FILE.ptd", type=click.Path(path_type=Path), help="Its data."
)
@click.option("--runtime", default="", help="ExecuTorch release to run on; else the installed.")
@click.option("--arch", default="", metavar="SM,...", help="GPUs that must be able to run it.")
@click.option(
    "--extra-symbol", "extra_symbols", multiple=True, help="A function your runtime exports too."
)
@as_json
def audit(**arguments: Any) -> None:
    """Say whether a CUDA program would load: symbols, libraries, architectures; 1 if not.

    FILE.pte may be any ExecuTorch program, written by graftwork or not.
    """
    from .audit import run_audit

    run_audit(**arguments)


data = click.option(
    "--data",
    metavar="FILE.ptd",
    type=click.Path(path_type=Path),
    help="A .pte's data file; by default the one beside it.",
)
inputs = click.option(
    "--inputs",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="A .pt, .npz or .npy file; without one, inputs are drawn.",
)
method = click.option("--method", default="", help="By default forward, or the only one.")
seed = click.option(
    "--seed",
    type=click.IntRange(0, 2**63 - 1),
    default=0,
    show_default=True,
    help="Of the inputs drawn.",
)


@app.command()
@click.argument("file", type=click.Path(path_type=Path))
@method
@inputs
@data
@click.option("--output", type=click.Path(path_type=Path), help="Save the outputs, a .pt file.")
@seed
@click.option("--calls", default=1, show_default=True, help="Call it so often, show the last.")
@click.option("--cuda-graphs", is_flag=True, help="Run under a CUDA graph after three calls.")
@as_json
def run(**arguments: Any) -> None:
    """Run the artifact FILE, a .pte or .pt2, from Python.

    Without --inputs they are drawn like the example it was lowered with: its sizes, and numbers
    between its smallest and largest.
    """
    from .run import run_run

    run_run(**arguments)


@app.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--model", default="", help="Time this too, in eager and by torch.compile.")
@method
@inputs
@data
@click.option("--iterations", default=100, show_default=True, help="Calls that are timed.")
@click.option("--warmup", default=10, show_default=True, help="Calls before them.")
@seed
@as_json
def bench(**arguments: Any) -> None:
    """Time the artifact FILE: latency percentiles and memory, on CUDA also under a graph.

    --model is as for `graftwork lower`; its example inputs are then used.
    """
    from .bench import run_bench

    run_bench(**arguments)


@app.command()
@click.argument("kind", type=click.Choice(["decomposition", "pass"]))
@click.argument("name")
@click.option("-o", "--output", type=click.Path(path_type=Path), default=".", help="Where.")
@as_json
def new(**arguments: Any) -> None:
    """Start a plugin package of your own, with a property test that passes at once.

    NAME is the plugin's id, kebab-case.
    """
    from .new import run_new

    run_new(**arguments)


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    settle_streams()
    stop_on_signals()
    try:
        code = app(standalone_mode=False)
        sys.stdout.flush()
    except (Exception, KeyboardInterrupt) as error:
        leave_with(error, as_json="--json" in sys.argv)
    sys.exit(code if isinstance(code, int) else 0)
