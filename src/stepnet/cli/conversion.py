"""The commands `convert`, which writes weights in another layout, and `verify`, which compares two models."""

import os
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from stepnet.cli import options
from stepnet.cli.writing import count_text, names_text, write_json, write_left_out, write_notes

USUAL = {".pt": "torch", ".pth": "torch", ".keras": "keras", ".h5": "keras"}
"""The framework of most files with an ending, for advice where `--to` is missing."""


def convert(
    file: options.Model,
    saved: Annotated[
        Path | None, typer.Argument(metavar="[OUTPUT]", help="The new file, in place of --output.")
    ] = None,
    target: Annotated[
        str | None,
        typer.Option("--to", help="A layout, such as keras.gru, or a framework; not for a .stepnet file."),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="The new file; its ending decides its kind.")
    ] = None,
    layout: options.From = None,
    module: options.Part = None,
    size: options.SizeOptions = None,
    semantics: options.SemanticsOptions = None,
    stack: options.StackOption = False,
    dtype: options.DtypeOption = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Refuse a conversion that is not bit-exact.")
    ] = False,
    rest: Annotated[
        str,
        typer.Option(help="What to do with the other arrays: drop or copy."),
    ] = "drop",
    drop: options.DropOption = None,
    recurrent_only: options.RecurrentOnly = False,
    strip: Annotated[
        str, typer.Option(metavar="PREFIX", help="A prefix to remove from the names: state_dict.model.")
    ] = "",
    verify: Annotated[
        bool, typer.Option("--verify", help="Run the new file and compare the outputs with those of FILE.")
    ] = False,
    steps: options.StepsOption = None,
    inputs: options.InputsOption = None,
    column: options.ColumnOption = None,
    force: options.Force = False,
    as_json: options.Json = False,
) -> None:
    """Write the recurrent layers of FILE in another framework's layout and kind of file.

    A new file that ends in .stepnet gets the whole model, as `stepnet run` reads it. So does one that ends
    in .onnx, without --to.
    """
    if (output is None) == (saved is None):
        raise typer.BadParameter("give the new file once: as --output, or behind FILE")
    output = output or saved
    assert output is not None
    options.check_column(column, inputs)
    if inputs and not verify:
        raise typer.BadParameter("--inputs are the sequences of --verify: give --verify too")
    is_whole = output.suffix == SAVED and file.suffix != SAVED
    if is_whole or (output.suffix == ".onnx" and target is None):
        from stepnet.cli.report.verdicts import samples_of
        from stepnet.compiler.values.arguments import is_any
        from stepnet.model.file import read_model

        if target is not None or dtype is not None or strip or exact or rest != "drop":
            raise typer.BadParameter(
                f"--to, --dtype, --strip, --exact and --rest are not for a {output.suffix} file of a model"
            )
        chosen = options.choice(layout, module, size, semantics, stack, drop)
        source = read_model(file, chosen, recurrent_only=recurrent_only, any_steps=is_any(steps))
        samples = samples_of(inputs, source, column) if inputs else None
        save_whole(source, output, verify, force, as_json, samples)
        return
    if steps is not None or inputs:
        raise typer.BadParameter(
            "--steps and --inputs are for a .stepnet or .onnx file of a whole model, and --to converts "
            "recurrent layers, which run over any number of steps"
        )
    if file.suffix == SAVED:
        refuse_saved(file, output)
    if target is None:
        from stepnet.layout.files.formats import writable

        writable(output, force=True)  # raises an error for an ending that no new file has
        usual = USUAL.get(output.suffix.lower(), "")
        raise typer.BadParameter(f"give the layout or framework of the new file: {f'--to {usual}'.strip()}")
    from stepnet.explain.bars import work_bar
    from stepnet.layout.files.interchange import convert_file
    from stepnet.layout.files.model import bare

    chosen = options.choice(layout, module, size, semantics, stack, drop)
    with work_bar("modules", None, shown=not as_json) as advance:
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
                print_verdict(f"  {verdict_title(done, name)}", done.verdicts[name])
        for line in done.account.lines():
            typer.echo(line)
        if "" in done.verdicts and "" not in done.reports:
            print_verdict(verdict_title(done, ""), done.verdicts[""])
        if done.prefix:
            typer.echo(f"note: names do not begin with {done.prefix!r}, as the new file has this layer alone")
        passed_on = len(done.account.copied) + len(done.account.moved)
        copied = f", and {count_text(passed_on, 'other array')}" if passed_on else ""
        typer.echo(f"{done.path}: {count_text(len(done.reports), 'recurrent layer')}{copied}")
    fail_where_different(done.verdicts)


SAVED = ".stepnet"
"""The ending of a file of `model.save`."""


def save_whole(
    source: Any, output: Path, verify: bool, force: bool, as_json: bool, samples: Iterable[Any] | None = None
) -> None:
    """Writes a model that was read from a file to a .stepnet or .onnx file, for `convert`.

    source: the model. verify: whether the new file is read again and compared. samples: the sequences on
    which it is; random ones by default.
    """
    import stepnet.onnx
    from stepnet.errors import InputError
    from stepnet.model.file import read_model
    from stepnet.model.verdict import verify_models

    verdicts, unverified = dict[str, Any](), ""
    if output.suffix == SAVED:
        source.model.save(output, force=force)
    else:
        stepnet.onnx.save(source.model, output, force=force)
    if verify:
        try:
            verdicts["whole model"] = verify_models(source, read_model(output), samples)
        except InputError as error:
            unverified = str(error)
    if as_json:
        outcome = {"left_out": source.left_out, "notes": dict(source.notes)}
        write_json(
            {"output": str(output), "verified": {n: asdict(v) for n, v in verdicts.items()}, **outcome}
        )
    else:
        write_notes(source.notes)
        write_left_out(source.left_out)
        for name, verdict in verdicts.items():
            print_verdict(f"{name}: ", verdict)
        typer.echo(f"{output}: the {'recurrent layers' if source.left_out else 'whole model'}")
    fail_where_different(verdicts, unverified)


def refuse_saved(file: Path, output: Path) -> None:
    """Raises `LayoutError` for the conversion of a .stepnet file, and says what to do instead; `FileError`
    for a damaged one.
    """
    from stepnet.errors import LayoutError
    from stepnet.model.file import read_model

    read_model(file)
    remedy = "build it as a library with stepnet build, or run it with stepnet run"
    if output.suffix == ".onnx":
        remedy = f"stepnet convert {file} {output} without --to writes it as ONNX"
    elif output.suffix == SAVED:
        remedy = "copy the file"
    raise LayoutError(f"{file}: a saved model has a net, and no layers of a layout to convert: {remedy}")


def verify(
    first: Annotated[str, typer.Argument(metavar="A", help="A file, or a layout.")],
    second: Annotated[str, typer.Argument(metavar="B", help="A file, or a layout.")],
    seed: Annotated[int, typer.Option(help="The seed of the random sequences.")] = 0,
    layout: options.From = None,
    module: Annotated[
        list[str] | None,
        typer.Option(
            "--module",
            "--prefix",
            metavar="NAME",
            help="The name of a recurrent layer to compare, if a file has several.",
        ),
    ] = None,
    semantics: options.SemanticsOptions = None,
    stack: options.StackOption = False,
    size: options.SizeOptions = None,
    drop: options.DropOption = None,
    dtype: options.DtypeOption = None,
    recurrent_only: options.RecurrentOnly = False,
    steps: options.StepsOption = None,
    inputs: options.InputsOption = None,
    column: options.ColumnOption = None,
    as_json: options.Json = False,
) -> None:
    """Run two models on the same sequences, and print how far they differ.

    Two files that specify whole models are run whole. In addition their recurrent layers are compared one by
    one in float64, and with the frameworks themselves if these are installed; files of weights are compared
    that way only. The other layers and arrays of such files are listed. The exit code is 1 if a difference is
    more than rounding, and 3 if something was not verified: outputs that are NaN or infinite, and models with
    layers that cannot be run.
    """
    from stepnet.cli.report.verdicts import compare_on_data, compare_sides
    from stepnet.compiler.values.arguments import is_any
    from stepnet.explain.bars import work_bar

    chosen, any_steps = options.choice(layout, module, size, semantics, stack, drop), is_any(steps)
    options.check_column(column, inputs)
    with work_bar("sequences" if inputs else "modules", None, shown=not as_json) as advance:
        if inputs:
            data = inputs, column
            comparison = compare_on_data((first, second), chosen, *data, advance, recurrent_only, any_steps)
        else:
            how = dtype, recurrent_only, any_steps
            comparison = compare_sides(first, second, chosen, seed, advance, *how)
    every = {**comparison.verdicts, **({"whole model": comparison.whole} if comparison.whole else {})}
    if as_json:
        write_json(
            {
                "modules": {name: asdict(verdict) for name, verdict in comparison.verdicts.items()},
                "whole": comparison.whole and asdict(comparison.whole),
                "left_out": comparison.left_out,
                "unverified": comparison.unverified,
            }
        )
    else:
        for name, verdict in every.items():
            print_verdict(f"{name}: " if name else "", verdict)
        alone = comparison.left_out or (
            comparison.whole is None and any(map(os.path.exists, (first, second)))
        )
        if alone and every and all(verdict.agrees for verdict in every.values()):
            typer.echo(agreement(comparison.left_out))
    fail_where_different(every, comparison.unverified)


def print_verdict(title: str, verdict: Any) -> None:
    """Prints a comparison's verdict after a title, and below it the frameworks' own results, each once."""
    typer.echo(f"{title}{verdict}")
    for line in dict.fromkeys(str(own) for own in verdict.own if own.asked):
        typer.echo(f"    {line}")


def verdict_title(done: Any, name: str) -> str:
    """Returns the text before the verdict on a converted module, such as "verified: ". It says if layers were
    left out or if there are notes; it is "" for a verdict that does not agree.

    done: the result of `convert_file`. name: the name of the module, a key of `done.verdicts`.
    """
    left_out = [*done.account.layers, *done.account.left]
    if not done.verdicts[name].agrees:
        return ""
    if left_out:
        return f"{agreement(left_out)}: "
    noted = done.notes.get(name) if name in done.reports else any(done.notes.values())
    return "weights agree, and see the notes: " if noted else "verified: "


def agreement(left_out: Collection[str]) -> str:
    """Returns the text for recurrent layers that agree, and what was not compared beside them, `left_out`."""
    names = f": {names_text(left_out)}" if left_out else ""
    return f"recurrent layers agree ({len(left_out)} left out{names})"


def fail_where_different(verdicts: Any, unverified: str = "") -> None:
    """Exits with code 1 if two compared models, or a framework and stepnet, differ by more than rounding.

    Otherwise exits with code 3 if something was not verified. verdicts: results of comparisons by name.
    unverified: why whole models were not compared; "" if nothing is to be said.
    """
    names = [name or "the weights" for name, verdict in verdicts.items() if verdict.differs]
    if names:
        typer.echo(f"stepnet: {', '.join(names)}: the difference is more than rounding", err=True)
        raise typer.Exit(1)
    reasons = [
        f"{name or 'the weights'}: {verdict.unverified}"
        for name, verdict in verdicts.items()
        if verdict.unverified
    ]
    reasons += [unverified] if unverified else []
    if reasons:
        typer.echo(f"stepnet: not verified: {'; '.join(reasons)}", err=True)
        raise typer.Exit(3)
