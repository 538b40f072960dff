"""The commands for the same weights in another layout: `convert` writes them, and `verify` compares two."""

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stepnet.cli.options import (
    DropOption,
    DtypeOption,
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
from stepnet.cli.writing import counted, write_json


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


def tell(title: str, verdict: Any) -> None:
    """Prints a verdict, and below it the results of the frameworks themselves, equal ones once."""
    typer.echo(f"{title}{verdict}")
    for line in dict.fromkeys(str(own) for own in verdict.own if own.asked):
        typer.echo(f"    {line}")


def fail_where_different(verdicts: Any) -> None:
    """Exits with code 1 if sides, or a framework and stepnet, differ by more than rounding."""
    names = [name or "the weights" for name, verdict in verdicts.items() if not verdict.agrees]
    if names:
        typer.echo(f"stepnet: {', '.join(names)}: the difference is more than rounding", err=True)
        raise typer.Exit(1)
