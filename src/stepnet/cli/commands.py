"""The command line: `stepnet demo`, `show`, `convert`, `verify`, `layouts`, `explain`, `run`, `build` ...

Exit codes: 0 done; 1 refused or wrong input, with one line on stderr; 2 wrong usage; 130 stopped by Ctrl-C.
With --json a command writes one JSON object to stdout, and nothing else.
"""

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from stepnet.cli.models import library_name, parts, runnable
from stepnet.cli.options import (
    DropOption,
    DtypeOption,
    Engine,
    Force,
    From,
    Json,
    Model,
    Part,
    SemanticsOptions,
    SizeOptions,
    StackOption,
    choice,
)
from stepnet.errors import StepnetError
from stepnet.values.version import __version__


class Commands(TyperGroup):
    """The commands; a `StepnetError` is printed as one line, with exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """The result of the command."""
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


def main() -> None:
    """Runs the command that the process was started with."""
    app()


def show_version(asked: bool) -> None:
    """Prints the version and exits, if asked to."""
    if asked:
        typer.echo(f"stepnet {__version__}")
        raise typer.Exit()


@app.callback()
def options(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=show_version, is_eager=True, help="Print the version.")
    ] = False,
    most: Annotated[
        int | None,
        typer.Option(
            "--most",
            metavar="BYTES",
            min=1,
            help="Memory that reading a file may take; 64 MiB and 8 times its size by default.",
        ),
    ] = None,
) -> None:
    """The options before any command."""
    from stepnet.files.store import at_most

    context.with_resource(at_most(most))


@app.command()
def demo(as_json: Json = False, engine: Annotated[str, typer.Option(hidden=True)] = "auto") -> None:
    """Tell speakers apart by a GRU trained in PyTorch, and show how well and how fast."""
    from stepnet.cli.demo import demonstrate

    figures = demonstrate(engine, quiet=as_json)
    if as_json:
        write_json(figures)


@app.command()
def show(
    file: Model,
    layout: From = None,
    module: Part = None,
    size: SizeOptions = None,
    semantics: SemanticsOptions = None,
    stack: StackOption = False,
    target: Annotated[str | None, typer.Option("--to", help="The layout to show its numbers in.")] = None,
    dtype: DtypeOption = None,
    html: Annotated[
        Path | None, typer.Option("--html", help="Write a web page with the picture to this file.")
    ] = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Show the recurrent layers of FILE: arrays, gates, equations, and where they go in another layout."""
    from stepnet.cli.report.show import shown

    chosen = choice(layout, module, size, semantics, stack)
    done = shown(file, chosen, target, html, force, quiet=as_json, dtype=dtype)
    if as_json:
        write_json(done)


@app.command()
def convert(
    file: Model,
    target: Annotated[str, typer.Option("--to", help="A layout, such as keras.gru, or a framework.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="The new file; its ending decides its kind.")
    ],
    layout: From = None,
    module: Part = None,
    size: SizeOptions = None,
    semantics: SemanticsOptions = None,
    stack: StackOption = False,
    dtype: DtypeOption = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Refuse a conversion that is not bit-exact.")
    ] = False,
    rest: Annotated[
        str,
        typer.Option(help="What happens to the other arrays: drop or copy."),
    ] = "drop",
    drop: DropOption = None,
    strip: Annotated[
        str, typer.Option(metavar="PREFIX", help="A prefix to remove from the names: state_dict.model.")
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the new file and compare the outputs with those of FILE.")
    ] = False,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Write the recurrent layers of FILE in another framework's layout and kind of file."""
    from stepnet.cli.report.progress import progress
    from stepnet.files.interchange import convert_file
    from stepnet.files.model import bare

    chosen = choice(layout, module, size, semantics, stack, drop)
    with progress("modules", None, shown=not as_json) as advance:
        done = convert_file(
            file,
            target,
            output,
            choice=chosen,
            exact=exact,
            rest=rest,
            strip=strip,
            force=force,
            check=verify,
            dtype=dtype,
            advance=advance,
        )
    if as_json:
        reports = {name: report.as_json() for name, report in done.reports.items()}
        verdicts = {name: asdict(verdict) for name, verdict in done.verdicts.items()}
        outcome = {"account": asdict(done.account), "verified": verdicts, "notes": dict(done.notes)}
        write_json({"output": done.path, "modules": reports, **outcome})
    else:
        shown_notes: set[str] = set()
        for name, report in done.reports.items():
            typer.echo(f"{bare(name)}: {report.text(shown_notes)}" if name else report.text(shown_notes))
            shown_notes.update(report.notes)
            for note in done.notes.get(name, ()):
                typer.echo(f"  note: {note}")
            if name in done.verdicts:
                tell("  verified: ", done.verdicts[name])
        for line in done.account.lines():
            typer.echo(line)
        if "" in done.verdicts and "" not in done.reports:
            tell("verified: ", done.verdicts[""])
        passed_on = len(done.account.copied) + len(done.account.moved)
        copied = f", and {counted(passed_on, 'other array')}" if passed_on else ""
        typer.echo(f"{done.path}: {counted(len(done.reports), 'recurrent layer')}{copied}")
    fail_where_different(done.verdicts)


@app.command()
def verify(
    first: Annotated[str, typer.Argument(metavar="A", help="A file, or a layout.")],
    second: Annotated[str, typer.Argument(metavar="B", help="A file, or a layout.")],
    seed: Annotated[int, typer.Option(help="The seed of the random sequences.")] = 0,
    layout: From = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            "--prefix",
            metavar="NAME",
            help="A recurrent layer to compare, by its name, where a file has several.",
        ),
    ] = None,
    semantics: SemanticsOptions = None,
    stack: StackOption = False,
    size: SizeOptions = None,
    drop: DropOption = None,
    dtype: DtypeOption = None,
    as_json: Json = False,
) -> None:
    """Run both, in float64, on the same random sequences, and print how far they differ.

    The outputs of the frameworks themselves are compared too, if these are installed. The exit code is 1 if a
    difference is more than rounding.
    """
    from stepnet.cli.report.progress import progress
    from stepnet.cli.report.verdicts import verdicts

    chosen = choice(layout, module, size, semantics, stack, drop)
    with progress("modules", None, shown=not as_json) as advance:
        results = verdicts(first, second, chosen, seed, advance, dtype)
    if as_json:
        write_json({name: asdict(verdict) for name, verdict in results.items()})
    else:
        for name, verdict in results.items():
            tell(f"{name}: " if name else "", verdict)
    fail_where_different(results)


@app.command()
def layouts(
    name: Annotated[str | None, typer.Argument(help="A layout; without it, all of them.")] = None,
    as_json: Json = False,
) -> None:
    """List the layouts that stepnet knows, or describe one of them."""
    from rich.console import Console

    from stepnet.cli.report import layouts as report
    from stepnet.layout.registry import record, records

    if as_json:
        chosen = [record(name)] if name else list(records().values())
        write_json([report.as_json(layout) for layout in chosen])
    elif name:
        Console().print(report.full_text(record(name)))
    else:
        Console(markup=False).print(report.table())


@app.command()
def explain(
    file: Model,
    layout: From = None,
    module: Part = None,
    size: SizeOptions = None,
    semantics: SemanticsOptions = None,
    stack: StackOption = False,
    drop: DropOption = None,
    engine: Engine = "auto",
    as_json: Json = False,
) -> None:
    """Print the plan of the recurrent layers of FILE: what runs when, what it costs, and on which engine."""
    from stepnet.files.layers import layers_of
    from stepnet.rnn.explanation import explanation

    layer, _ = layers_of(file, choice(layout, module, size, semantics, stack, drop))
    if as_json:
        plans = [{"name": name, **asdict(explanation(rnn.schedule, engine))} for name, rnn in parts(layer)]
        write_json({"file": str(file), "recurrences": plans})
    else:
        typer.echo(layer.explain(engine))


@app.command()
def run(
    file: Model,
    output: Annotated[
        str,
        typer.Option(
            "--output", "-o", metavar="OUTPUT", help="A folder for the results; of a single file also a file."
        ),
    ],
    inputs: Annotated[
        list[str] | None,
        typer.Argument(metavar="INPUT...", help="Files, folders or globs of Parquet and Arrow files."),
    ] = None,
    also: Annotated[list[str] | None, typer.Option("--input", metavar="INPUT", hidden=True)] = None,
    column: Annotated[
        str | None, typer.Option(help="The list column; not needed if it is the only one.")
    ] = None,
    result: Annotated[
        str, typer.Option(help="outputs, those of all steps; or last, the last one of each sequence.")
    ] = "outputs",
    keep: Annotated[
        list[str] | None,
        typer.Option("--keep", metavar="NAME", help="A column to pass on; without it, all others are."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the results that are in OUTPUT.")
    ] = False,
    bad: Annotated[
        str | None,
        typer.Option(
            "--bad", metavar="ROWS.parquet", help="Set rows that cannot be run aside in this file, and go on."
        ),
    ] = None,
    refuse_nan: Annotated[
        bool, typer.Option("--refuse-nan", help="A row with NaN or infinite numbers cannot be run.")
    ] = False,
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="Of the results in a folder: parquet, as without it, or arrow."),
    ] = None,
    compression: Annotated[
        str | None, typer.Option(help="snappy, as without it, none or zstd; of Arrow none or zstd.")
    ] = None,
    layout: From = None,
    module: Part = None,
    size: SizeOptions = None,
    semantics: SemanticsOptions = None,
    stack: StackOption = False,
    drop: DropOption = None,
    force: Force = False,
    engine: Engine = "auto",
    trust: Annotated[
        bool,
        typer.Option(
            "--trust-library",
            help="FILE is a library that `stepnet build` made, lib*.so, and may run its machine code.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Run the recurrent layers of FILE over sequences in Parquet and Arrow files, which may be of any size.

    A row is a sequence: a list of steps, each a list of numbers (or one number). A result has the same rows
    in the same order, all other columns, and in place of the sequences a column "outputs": the outputs of the
    last layer at every step. A null gives a null.

    The results of a folder have its tree. Each appears under its name when it is whole, so what was stopped,
    by Ctrl-C or otherwise, goes on with --resume.
    """
    from stepnet import arrow
    from stepnet.cli.report.sequences import bar

    chosen = choice(layout, module, size, semantics, stack, drop)
    model, notes = runnable(file, chosen, trust)
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
                result=result,
                keep=keep,
                engine=engine,
                bad=bad,
                refuse_nan=refuse_nan,
                resume=resume,
                force=force,
                file_format=file_format,
                compression=compression,
                progress=progress,
            )
    except KeyboardInterrupt:
        typer.echo(
            f"stepnet: stopped; what is in {output} is whole, and --resume goes on from there", err=True
        )
        raise typer.Exit(130) from None
    if as_json:
        write_json({**asdict(done), "notes": notes})
        return
    for name, module_notes in notes.items():
        for note in module_notes:
            typer.echo(f"note: {name}: {note}" if name else f"note: {note}")
    typer.echo(done.text(bad))


@app.command()
def build(
    file: Model,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FOLDER", help="The folder of the library's files.")
    ],
    name: Annotated[
        str | None,
        typer.Option(help="The name that the library's functions begin with; that of FILE by default."),
    ] = None,
    target: Annotated[
        str, typer.Option(help="The processor: native, x86-64-v3, x86-64-v4 or aarch64.")
    ] = "native",
    weights: Annotated[
        str, typer.Option(help="Where the weights are: inside the library, or in a file beside it.")
    ] = "inside",
    layout: From = None,
    module: Part = None,
    size: SizeOptions = None,
    semantics: SemanticsOptions = None,
    stack: StackOption = False,
    drop: DropOption = None,
    force: Force = False,
    as_json: Json = False,
) -> None:
    """Build a library for C of FILE: a header, a static and a shared library, which need no Python.

    Of an .onnx file or a program of Paddle's it is the whole graph, unless layers are chosen with --module;
    of other files it is the recurrent layers.
    """
    from stepnet import build as building
    from stepnet.files.layers import layers_of
    from stepnet.model_file import whole_graph

    chosen = choice(layout, module, size, semantics, stack, drop)
    graph = whole_graph(file) if module is None and not stack else None
    model, notes = (graph, dict[str, Any]()) if graph is not None else layers_of(file, chosen)
    made = building.build(
        model,
        output,
        name=library_name(file) if name is None else name,
        target=target,
        weights=weights,
        force=force,
    )
    paths = {kind: str(path) for kind, path in asdict(made).items() if path is not None}
    if as_json:
        write_json({**paths, "notes": notes})
    else:
        for module_name, module_notes in notes.items():
            for note in module_notes:
                typer.echo(f"note: {module_name}: {note}" if module_name else f"note: {note}")
        for kind, path in paths.items():
            typer.echo(f"{kind + ':':10}{path}")


@app.command()
def doctor(as_json: Json = False) -> None:
    """Print what this machine has: processor, engines, threads, and installed packages."""
    from stepnet.cli.report.doctor import examine, health_text

    health = examine()
    if as_json:
        write_json(asdict(health))
    else:
        typer.echo(health_text(health))


@app.command()
def cache(
    clear: Annotated[bool, typer.Option("--clear", help="Remove all entries.")] = False,
    as_json: Json = False,
) -> None:
    """Print what compiled code is kept on disk: where, how much, how often it was read, or why none is."""
    from stepnet.cli.report.cache import cache_text, examine

    found = examine(clear)
    if as_json:
        write_json(asdict(found))
    else:
        typer.echo(cache_text(found))


def tell(title: str, verdict: Any) -> None:
    """Prints a verdict, and below it the results of the frameworks themselves, equal ones once."""
    typer.echo(f"{title}{verdict}")
    for line in dict.fromkeys(str(own) for own in verdict.own if own.asked):
        typer.echo(f"    {line}")


def counted(number: int, what: str) -> str:
    """A number with a noun.

    >>> counted(1, "recurrent layer"), counted(2, "other array")
    ('1 recurrent layer', '2 other arrays')
    """
    return f"{number} {what}{'' if number == 1 else 's'}"


def fail_where_different(verdicts: Any) -> None:
    """Exits with code 1 if sides, or a framework and stepnet, differ by more than rounding."""
    names = [name or "the weights" for name, verdict in verdicts.items() if not verdict.agrees]
    if names:
        typer.echo(f"stepnet: {', '.join(names)}: the difference is more than rounding", err=True)
        raise typer.Exit(1)


def write_json(value: Any) -> None:
    """Writes one JSON object."""
    typer.echo(json.dumps(value, indent=2))
