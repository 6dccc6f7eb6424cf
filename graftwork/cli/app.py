"""The commands and their arguments.

Exit codes: 0 done; 1 the answer is no (cannot be lowered, differs from eager, a plugin failed);
2 the request was wrong (an unknown id, a missing file, inputs that do not fit); 130 interrupted.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from graftwork import __version__

app = typer.Typer(
    name="graftwork",
    help="Lower PyTorch models through verified, pluggable rewrites.\n\n"
    "Exit codes: 0 done, 1 the answer is no, 2 the request was wrong.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

MODEL_HELP = (
    "FILE.py:NAME or package.module:NAME, where NAME is a module class without required "
    "arguments, a module, or a function that returns one; or a FILE.pt2 of torch.export.save. "
    "Inputs come from example_inputs() of NAME or of its file (a tuple, or a dict of keyword "
    "inputs), dynamic shapes from dynamic_shapes(). Random weights are drawn with seed 0."
)

Model = Annotated[str, typer.Argument(metavar="MODEL", help=MODEL_HELP)]
TargetName = Annotated[str, typer.Option("--target", help="cpu, aoti or cuda.")]
Enable = Annotated[
    list[str], typer.Option("--enable", metavar="ID,...", help="Switch plugins on.")
]
Disable = Annotated[
    list[str], typer.Option("--disable", metavar="ID,...", help="Switch plugins off; 'all' too.")
]
OptionValues = Annotated[
    list[str], typer.Option("--option", metavar="ID.KEY=VALUE", help="Set a plugin's option.")
]
Ids = Annotated[list[str], typer.Argument(metavar="[ID]...", help="Plugins; all if none.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON and nothing else.")]


@app.callback(invoke_without_command=True)
def graftwork(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    """Lower PyTorch models through verified, pluggable rewrites.

    Exit codes: 0 done, 1 the answer is no, 2 the request was wrong.
    """
    if version:
        typer.echo(f"graftwork {__version__}")
        raise typer.Exit


@app.command()
def lower(
    model: Model,
    output: Annotated[Path, typer.Option("-o", "--output", help="Directory to write into.")],
    target: TargetName = "cpu",
    enable: Enable = [],  # noqa: B006
    disable: Disable = [],  # noqa: B006
    option: OptionValues = [],  # noqa: B006
    name: Annotated[str, typer.Option(help="File name without suffix.")] = "",
    arch: Annotated[
        str, typer.Option("--arch", metavar="SM,...", help="CUDA architectures, such as sm_90.")
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify/--no-verify", help="Run and compare with eager.")
    ] = True,
    report: Annotated[
        Path | None, typer.Option("--report", help="Write an HTML report to this file.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Lower a model, run the result, compare it with eager."""
    from .lower import run_lower

    run_lower(
        model,
        output,
        target=target,
        enable=enable,
        disable=disable,
        option=option,
        name=name,
        arch=arch,
        verify=verify,
        html=report,
        as_json=as_json,
    )


@app.command()
def explain(
    model: Model,
    target: TargetName = "cpu",
    enable: Enable = [],  # noqa: B006
    disable: Disable = [],  # noqa: B006
    option: OptionValues = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Dry run: every candidate, rewrote or declined and why, with the source line."""
    from .lower import run_explain

    run_explain(
        model, target=target, enable=enable, disable=disable, option=option, as_json=as_json
    )


@app.command()
def verify(
    ids: Ids = [],  # noqa: B006
    examples: Annotated[int, typer.Option(help="Examples per property.")] = 20,
    seed: Annotated[int, typer.Option(help="Equal seeds draw equal examples.")] = 0,
    device: Annotated[str, typer.Option(help="cpu or cuda.")] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Run the property tests of installed plugins against eager."""
    from .verify import run_verify

    run_verify(ids, examples=examples, seed=seed, device=device, as_json=as_json)


@app.command()
def plugins(
    enable: Enable = [],  # noqa: B006
    disable: Disable = [],  # noqa: B006
    option: OptionValues = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """List the installed plugins: what they are, whether enabled, and why."""
    from .plugins import run_plugins

    run_plugins(enable=enable, disable=disable, option=option, as_json=as_json)


@app.command()
def inspect(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="A .pte or .pt2 file.")],
    as_json: AsJson = False,
) -> None:
    """Show what an artifact holds, and which plugins made it."""
    from .inspect import run_inspect

    run_inspect(file, as_json=as_json)


new = typer.Typer(
    help="Start a plugin package of your own.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(new, name="new")

NewName = Annotated[str, typer.Argument(metavar="NAME", help="The plugin's id, kebab-case.")]
NewDirectory = Annotated[Path, typer.Option("-o", "--output", help="Where to make it.")]


@new.command("decomposition")
def new_decomposition(
    name: NewName, output: NewDirectory = Path(), as_json: AsJson = False
) -> None:
    """A package with one decomposition and its property test, which passes at once."""
    from .new import run_new

    run_new("decomposition", name, output, as_json=as_json)


@new.command("pass")
def new_pass(name: NewName, output: NewDirectory = Path(), as_json: AsJson = False) -> None:
    """A package with one graph pass and its property test, which passes at once."""
    from .new import run_new

    run_new("pass", name, output, as_json=as_json)


def main() -> NoReturn:
    """Run the command line and leave with its exit code."""
    try:
        app(standalone_mode=True)
    except KeyboardInterrupt:
        typer.echo("graftwork: interrupted, nothing was written", err=True)
        sys.exit(130)
    except Exception as error:
        from .failures import leave_with

        leave_with(error, as_json="--json" in sys.argv)
    sys.exit(0)
