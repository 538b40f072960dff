"""The commands that describe: `show` the layers of a file, `explain` their plan, and list `layouts`."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from stepnet.cli import options
from stepnet.cli.writing import write_json, write_left_out

WIDE = 1 << 10
"""Characters in a line of a table that goes to a file or to another command, so that no name is cut."""


def show(
    file: options.Model,
    layout: options.From = None,
    module: options.Part = None,
    size: options.SizeOptions = None,
    semantics: options.SemanticsOptions = None,
    stack: options.StackOption = False,
    target: Annotated[str | None, typer.Option("--to", help="The layout to show its numbers in.")] = None,
    dtype: options.DtypeOption = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a web page with the picture to this file.")
    ] = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Show the model of FILE: its layers, the shapes of their outputs, and their parameters.

    Below them are its recurrent layers: arrays, gates, equations, and where they go in another layout. A
    .stepnet file has no layouts; its picture is a drawing of the model.
    """
    from rich.console import Console

    from stepnet.cli.report.show import ShownFile

    chosen, console = (
        options.choice(layout, module, size, semantics, stack),
        Console(highlight=False, quiet=as_json),
    )
    done = ShownFile(file, chosen, target, dtype, html, force, console).show()
    if as_json:
        write_json(done)


def layouts(
    name: Annotated[str | None, typer.Argument(help="A layout; without it, all of them.")] = None,
    as_json: options.Json = False,
) -> None:
    """List the layouts that stepnet knows, or describe one of them."""
    from rich.console import Console

    from stepnet.explain import layouts as report
    from stepnet.layout.registry import record, records

    if as_json:
        chosen = [record(name)] if name else list(records().values())
        write_json([report.as_json(layout) for layout in chosen])
    elif name:
        Console().print(report.full_text(record(name)))
    else:
        console = Console(markup=False)
        console.width = console.width if console.is_terminal else WIDE
        console.print(report.table())


def explain(
    file: options.Model,
    layout: options.From = None,
    module: options.Part = None,
    size: options.SizeOptions = None,
    semantics: options.SemanticsOptions = None,
    stack: options.StackOption = False,
    drop: options.DropOption = None,
    recurrent_only: options.RecurrentOnly = False,
    steps: options.StepsOption = None,
    engine: options.Engine = "auto",
    as_json: options.Json = False,
) -> None:
    """Print the plan of the model of FILE: what runs when, what it costs, and on which engine.

    The model is read as by `stepnet run`.
    """
    from stepnet.compiler.values.arguments import is_any
    from stepnet.explain.layers import model_facts
    from stepnet.model.file import read_model

    chosen = options.choice(layout, module, size, semantics, stack, drop)
    source = read_model(file, chosen, recurrent_only=recurrent_only, any_steps=is_any(steps))
    if as_json:
        plans = [{"name": name, **asdict(facts)} for name, facts in model_facts(source.model, engine)]
        write_json({"file": str(file), "left_out": source.left_out, "recurrences": plans})
    else:
        typer.echo(source.model.explain(engine))
        write_left_out(source.left_out)
