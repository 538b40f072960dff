"""The command `run`: the model of a file, over sequences in Parquet and Arrow files."""

from dataclasses import asdict
from enum import StrEnum
from typing import Annotated

import typer

from stepnet.cli import options
from stepnet.cli.models import load_runnable
from stepnet.cli.writing import write_json, write_notes


class ResultKind(StrEnum):
    """The values of --result."""

    OUTPUTS = "outputs"
    LAST = "last"


class OutputFormat(StrEnum):
    """The values of --format."""

    PARQUET = "parquet"
    ARROW = "arrow"


class Compression(StrEnum):
    """The values of --compression."""

    SNAPPY = "snappy"
    NONE = "none"
    ZSTD = "zstd"


def run(
    file: options.Model,
    output: Annotated[
        str,
        typer.Option(
            "--output",
            "-o",
            metavar="OUTPUT",
            help="The folder for the results; for a single input file also a file.",
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT...", help="Files, folders or globs of Parquet and Arrow files."),
    ] = None,
    also: Annotated[list[str] | None, typer.Option("--input", metavar="INPUT", hidden=True)] = None,
    column: Annotated[
        str | None, typer.Option(help="The name of the list column; not needed if there is only one.")
    ] = None,
    result: Annotated[
        ResultKind, typer.Option(help="outputs: of all steps; last: the last one of each sequence.")
    ] = ResultKind.OUTPUTS,
    keep: Annotated[
        list[str] | None,
        typer.Option(
            "--keep", metavar="NAME", help="A column to pass on (give several); by default all others."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue with the results that are in OUTPUT.")
    ] = False,
    bad: Annotated[
        str | None,
        typer.Option(
            "--bad",
            metavar="ROWS.parquet",
            help="Set rows that cannot be run aside in this file, and continue.",
        ),
    ] = None,
    refuse_nan: Annotated[
        bool, typer.Option("--refuse-nan", help="A row with NaN or infinite numbers cannot be run.")
    ] = False,
    file_format: Annotated[
        OutputFormat | None,
        typer.Option("--format", help="The format of results in a folder: parquet (default) or arrow."),
    ] = None,
    compression: Annotated[
        Compression | None,
        typer.Option(help="For Parquet snappy (default), none or zstd; for Arrow none (default) or zstd."),
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
    engine: options.Engine = "auto",
    trust: Annotated[
        bool,
        typer.Option(
            "--trust-library",
            help="Permit to run the machine code of FILE, a library lib*.so that `stepnet build` made.",
        ),
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Run the model of FILE over sequences in Parquet and Arrow files, which may be larger than memory.

    A file is run whole: the graph of an .onnx file or a program of Paddle, the layers of others. A file with
    a layer that is not supported is refused, and so is a file of weights, which has no architecture;
    --recurrent-only runs only the recurrent layers of such files.

    A row is a sequence: a list of steps, each a list of numbers or one number. A result has the same rows in
    the same order, without those that --bad sets aside. It has all other columns, and a column "outputs" in
    place of the sequences: the outputs of the model at every step, or once for each sequence. A null row has
    a null result.

    The results of a folder form the same tree. A result appears under its name only when it is complete, so a
    run that was stopped, by Ctrl-C or otherwise, continues with --resume.
    """
    from stepnet import arrow
    from stepnet.cli.report.sequences import bar
    from stepnet.compiler.targets.threads import threads

    threads()  # raises an error for a wrong environment variable, ahead of those that name a file

    chosen = options.choice(layout, module, size, semantics, stack, drop)
    model = load_runnable(file, chosen, recurrent_only, trust, result is ResultKind.LAST, steps)
    notes = getattr(model, "notes", {})
    paths = [*(inputs or ()), *(also or ())]
    if not paths:
        raise typer.BadParameter("there is no INPUT: give files, folders or globs")
    try:
        with bar(shown=not as_json) as progress:
            done = arrow.run(
                paths,
                model,
                output,
                column=column,
                result=result.value,
                keep=keep,
                engine=engine,
                bad=bad,
                refuse_nan=refuse_nan,
                resume=resume,
                force=force,
                file_format=file_format and file_format.value,
                compression=compression and compression.value,
                progress=progress,
            )
    except KeyboardInterrupt:
        typer.echo(
            f"stepnet: stopped; each file in {output} is complete, and --resume runs the rest",
            err=True,
        )
        raise typer.Exit(130) from None
    if as_json:
        write_json({**asdict(done), "notes": notes})
        return
    write_notes(notes)
    typer.echo(done.text(bad))
