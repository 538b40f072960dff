"""The command line: `stepnet demo`, `explain`, `run`, `doctor` and `bench`.

Exit codes: 0 done; 1 refused or wrong input, with one line on stderr; 2 wrong usage. With --json a command
writes one JSON object to stdout, and nothing else.
"""

import json
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stepnet.errors import StepnetError
from stepnet.version import __version__


class Commands(TyperGroup):
    """The commands, where what stepnet raises on purpose is one line and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """What the command gives."""
        try:
            return super().invoke(ctx)
        except StepnetError as error:
            lines = [line.strip() for line in str(error).splitlines()]
            typer.echo(f"stepnet: {'; '.join(line for line in lines if line)}", err=True)
            raise typer.Exit(1) from None


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="markdown",
    help="A compiler for recurrent networks: one step as equations in, machine code for whole sequences out.",
)

Json = Annotated[bool, typer.Option("--json", help="One JSON object on stdout, and nothing else.")]
Model = Annotated[Path, typer.Argument(metavar="FILE", help="A torch state dict, as .safetensors.")]
Prefix = Annotated[
    str | None, typer.Option(help="What stands before weight_ih_l0 in the names of the layers to take.")
]
Engine = Annotated[str, typer.Option(help="The engine to run on, by name; auto is the fastest that can.")]


def main() -> None:
    """Runs the command that the process was started with."""
    app()


def show_version(asked: bool) -> None:
    """Prints the version and leaves, if asked to."""
    if asked:
        typer.echo(f"stepnet {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """What stands before any command."""


@app.command()
def demo(as_json: Json = False, engine: Annotated[str, typer.Option(hidden=True)] = "auto") -> None:
    """Tell speakers apart by a GRU trained in PyTorch, and show how well and how fast."""
    from stepnet.demo import demonstrate

    figures = demonstrate(engine, quiet=as_json)
    if as_json:
        write_json(figures)


@app.command()
def explain(file: Model, prefix: Prefix = None, engine: Engine = "auto", as_json: Json = False) -> None:
    """Print the plan of the recurrent layers of FILE: what runs when, what it costs, and on which engine."""
    from stepnet.report.explain import explanation

    layer = load(file, prefix)
    if as_json:
        plans = [{"name": name, **asdict(explanation(rnn.plan, engine))} for name, rnn in parts(layer)]
        write_json({"file": str(file), "recurrences": plans})
    else:
        typer.echo(layer.explain(engine))


@app.command()
def run(
    file: Model,
    source: Annotated[Path, typer.Option("--input", metavar="PARQUET", help="The sequences: a list column.")],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="PARQUET", help="Where the outputs go.")],
    column: Annotated[
        str | None, typer.Option(help="The list column; not needed if it is the only one.")
    ] = None,
    prefix: Prefix = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace the output if it is there already.")
    ] = False,
    engine: Engine = "auto",
    as_json: Json = False,
) -> None:
    """Run the recurrent layers of FILE over sequences in a Parquet file.

    A row is a sequence: a list of steps, each a list of numbers (or one number). The output has the same rows
    in the same order, all other columns, and in place of the sequences a column "outputs": what the last
    layer gives at every step.
    """
    from stepnet.files import parquet
    from stepnet.report.progress import progress

    layer = load(file, prefix)
    sequences = parquet.Sequences(source, column)
    begun = time.perf_counter()
    with progress("sequences", sequences.rows, shown=not as_json) as advance:
        done = parquet.run(layer, sequences, output, force=force, engine=engine, advance=advance)
    seconds = time.perf_counter() - begun
    if as_json:
        write_json({**done, "seconds": seconds, "output": str(output)})
    else:
        counts = f"{done['sequences']} sequences of {done['steps']} steps in all"
        typer.echo(f"{counts}: {done['features']} outputs per step in {output}, after {seconds:.2f} s")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Say what this machine has: processor, engines, threads, and what is installed."""
    from stepnet.report.doctor import examine, health_text

    health = examine()
    if as_json:
        write_json(asdict(health))
    else:
        typer.echo(health_text(health))


@app.command(
    add_help_option=False, context_settings={"allow_extra_args": True, "ignore_unknown_options": True}
)
def bench(context: typer.Context) -> None:
    """Measure stepnet beside other runtimes. See `stepnet bench --help`."""
    from stepnet.bench.command import bench as command

    alone = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    alone.command()(command)
    alone(context.args, prog_name="stepnet bench")


def load(file: Path, prefix: str | None) -> Any:
    """The recurrent layers of a torch state dict."""
    from stepnet.compose import named
    from stepnet.files.safetensors import read
    from stepnet.layout import from_torch

    state = read(file)
    with named(str(file)):
        return from_torch(state, prefix)


def parts(layer: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Every recurrence of a layer, each with its place in it."""
    from stepnet.compose import DIRECTIONS, Bidirectional, Stack

    if isinstance(layer, Bidirectional):
        inner = zip(DIRECTIONS, layer.layers, strict=True)
    elif isinstance(layer, Stack):
        inner = ((f"layer {place}", one) for place, one in enumerate(layer.layers))
    else:
        yield name, layer
        return
    for title, one in inner:
        yield from parts(one, f"{name} {title}".strip())


def write_json(value: Any) -> None:
    """Writes one JSON object."""
    typer.echo(json.dumps(value, indent=2))
