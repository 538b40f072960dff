"""The command `build`: compiles the model of a file to a library for C."""

from dataclasses import asdict
from typing import Annotated

import typer

from stepnet.cli.models import library_name
from stepnet.cli.options import (
    DropOption,
    Force,
    From,
    Json,
    Model,
    Part,
    RecurrentOnly,
    SemanticsOptions,
    SizeOptions,
    StackOption,
    StepsOption,
    choice,
)
from stepnet.cli.writing import write_json, write_left_out, write_notes


def build(
    file: Model,
    output: Annotated[
        str,
        typer.Option("--output", "-o", metavar="FOLDER", help="The folder for the files of the library."),
    ],
    name: Annotated[
        str | None,
        typer.Option(help="The prefix of the library's functions; by default the name of FILE."),
    ] = None,
    target: Annotated[
        str,
        typer.Option(help="The processor: native or generic (on Linux), x86-64-v3, x86-64-v4 or aarch64."),
    ] = "native",
    weights: Annotated[
        str,
        typer.Option(
            help="Where to store the weights: inside (the library), or beside (a file of their own)."
        ),
    ] = "inside",
    stream: Annotated[
        bool,
        typer.Option("--stream", help="Take and give the memories, so that sequences go on in other calls."),
    ] = False,
    recurrent_only: RecurrentOnly = False,
    steps: StepsOption = None,
    layout: From = None,
    module: Part = None,
    size: SizeOptions = None,
    semantics: SemanticsOptions = None,
    stack: StackOption = False,
    drop: DropOption = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Build a library for C, for Linux, from the model of FILE: a header, a static and a shared library. It
    needs no Python.

    The library computes the whole model, which is read as by `stepnet run`. With --recurrent-only it computes
    only the recurrent layers of FILE.
    """
    from stepnet import build as building
    from stepnet.model.file import read_model
    from stepnet.model.graph.array_model import is_any

    chosen = choice(layout, module, size, semantics, stack, drop)
    source = read_model(file, chosen, recurrent_only=recurrent_only, any_steps=is_any(steps))
    built = building.build(
        source.model,
        output,
        name=library_name(file) if name is None else name,
        target=target,
        weights=weights,
        stream=stream,
        force=force,
        left_out=source.left_out,
    )
    paths = {kind: str(path) for kind, path in asdict(built).items() if path is not None}
    if as_json:
        write_json({**paths, "left_out": source.left_out, "notes": dict(source.notes)})
    else:
        write_notes(source.notes)
        write_left_out(source.left_out)
        for kind, path in paths.items():
            typer.echo(f"{kind + ':':10}{path}")
