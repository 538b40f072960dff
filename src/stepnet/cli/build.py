"""The command `build`: compiles the model of a file to a library for C."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stepnet.cli import options
from stepnet.cli.models import library_name
from stepnet.cli.writing import write_json, write_left_out, write_notes


def build(
    file: options.Model,
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
        typer.Option(
            help="The processor: native or generic (on Linux), x86-64-v3, x86-64-v4 or aarch64; or, to run "
            "one frame at a time, c for source code, wasm32 for browsers, or another device."
        ),
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
    ram: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Refuse source code that needs more RAM, saying what takes it."),
    ] = None,
    flash: Annotated[
        int | None,
        typer.Option(metavar="BYTES", help="Refuse what needs more flash; devices count code too."),
    ] = None,
    package: Annotated[
        str | None,
        typer.Option(help="The kind of package for a device: npm, cmake, zephyr or arduino."),
    ] = None,
    dtype: Annotated[
        str | None,
        typer.Option(help="Store the weights of a device in 2 bytes: float16 or bfloat16."),
    ] = None,
    recurrent_only: options.RecurrentOnly = False,
    steps: options.StepsOption = None,
    layout: options.From = None,
    module: options.Part = None,
    size: options.SizeOptions = None,
    semantics: options.SemanticsOptions = None,
    stack: options.StackOption = False,
    drop: options.DropOption = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Build a library for C, for Linux, from the model of FILE: a header, a static and a shared library. It
    needs no Python. With --target c, build C99 source code for any machine, also one without an operating
    system.

    The library computes the whole model, which is read as by `stepnet run`. With --recurrent-only it computes
    only the recurrent layers of FILE.
    """
    from stepnet import build as building
    from stepnet.compiler.values.arguments import is_any
    from stepnet.model.file import read_model

    chosen = options.choice(layout, module, size, semantics, stack, drop)
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
        ram=ram,
        flash=flash,
        package=package,
        dtype=dtype,
    )
    on_device = isinstance(built, building.DeviceBuild)
    sizes: dict[str, Any] = asdict(built.sizes) if on_device else {}
    others = [*map(str, built.others)] if on_device else []
    paths = {kind: str(path) for kind, path in vars(built).items() if isinstance(path, Path)}
    if as_json:
        own = ({"sizes": sizes} if sizes else {}) | ({"others": others} if others else {})
        write_json({**paths, **own, "left_out": source.left_out, "notes": dict(source.notes)})
    else:
        write_notes(source.notes)
        write_left_out(source.left_out)
        for kind, path in paths.items():
            typer.echo(f"{kind + ':':10}{path}")
        for path in others:
            typer.echo(f"{'other:':10}{path}")
        for kind, size in sizes.items():
            if size is None or isinstance(size, int):
                shown = "depends on the compiler or the machine" if size is None else size
                typer.echo(f"{kind.replace('_', ' ') + ':':16}{shown}")
