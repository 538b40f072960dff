"""`python -m bench.gpu`: what is measured and checked of the target `cuda` on a GPU."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from bench.gpu.parts import PARTS, run_part
from bench.gpu.parts import report as measured
from bench.gpu.place import EMULATED, GPU, Place
from stepnet.errors import InputError, StepnetError

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Emulated = Annotated[bool, typer.Option("--emulated", help="Try it in the emulation, with small sizes.")]


@app.command()
def report(
    result: Annotated[Path, typer.Argument(help="The file of JSON for the results.")],
    only: Annotated[str, typer.Option(help="Parts, separated by semicolons; all by default.")] = "",
    seconds: Annotated[float, typer.Option(min=1, help="The time for all parts.")] = 1200.0,
    emulated: Emulated = False,
) -> None:
    """Run all parts in processes, the most valuable first, and write the results after each."""
    names = only.split(";") if only else [*PARTS]
    if unknown := {*names} - {*PARTS}:
        raise InputError(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    if not measured(result, names, seconds, EMULATED if emulated else GPU):
        raise typer.Exit(1)


@app.command()
def part(
    name: Annotated[str, typer.Argument(help=f"One of: {', '.join(PARTS)}.")],
    result: Annotated[Path | None, typer.Option(help="A file of JSON for the rows.")] = None,
    emulated: Emulated = False,
) -> None:
    """Run one part in this process, and print its rows."""
    if name not in PARTS:
        raise InputError(f"there is no part {name}; there are {', '.join(PARTS)}")
    if not run_part(name, Place(EMULATED if emulated else GPU), result):
        raise typer.Exit(1)


@app.command()
def prepare() -> None:
    """Compile the microbenchmarks, which needs nvcc but no GPU: into build/gpu, where they are looked for."""
    from bench.gpu.microbenchmarks import FOLDER, HOPPER, NAMES, compiled

    for name in NAMES:
        typer.echo(f"{name}: {len(compiled(name, HOPPER, FOLDER))} bytes in {FOLDER}")


@app.command()
def facts(result: Annotated[Path, typer.Argument(help="The file of a report.")]) -> None:
    """Print the row of `tensor/facts.py` for the GPU of a report, fitted to its times."""
    from bench.gpu.calibrate import calibration

    typer.echo(calibration(result))


@app.command()
def calls() -> None:
    """Print the processor time of Python in calls, around a driver that does nothing: no GPU is needed."""
    from bench.gpu.calls import call_times

    for name, time in call_times():
        typer.echo(f"{time:8.0f} us  {name}")


@app.command()
def estimates() -> None:
    """Print the estimates of cells on an H100, beside what was measured of them and of cuDNN: no GPU is
    needed.
    """
    from bench.gpu.estimates import table

    for line in table():
        typer.echo(line)


@app.command()
def cycles() -> None:
    """Print the cycles of a step of loops of one block, counted from their machine code, beside what was
    measured of them, and the facts of plain units that follow: no GPU is needed.
    """
    from bench.gpu.cycles import report

    for line in report():
        typer.echo(line)


@app.command()
def matrices() -> None:
    """Print the estimates of steps whose memory is a matrix on an H100, beside what other kernels have to
    move: no GPU is needed.
    """
    from bench.gpu.matrices import parts_table, table

    tables = {"forward": table(), "backward": table(is_back=True), "parts of backward": parts_table()}
    for name, lines in tables.items():
        typer.echo(name)
        for line in lines:
            typer.echo(line)


@app.command()
def generation() -> None:
    """Print the estimates of steps of generation on an H100: no GPU is needed."""
    from bench.gpu.generation import table

    for line in table():
        typer.echo(line)


@app.command()
def compiling() -> None:
    """Print the processor seconds until the PTX of cells is there: compiled, and from the cache; and those of
    a first call from the cache, with a driver that does nothing.
    """
    from bench.gpu.estimates import compile_times

    for name, times in compile_times():
        typer.echo(
            f"{name}: {times.cold:.2f} s, from the cache {1000 * times.warm:.0f} ms, again "
            f"{1000 * times.again:.0f} ms; the first call from the cache {1000 * times.call:.0f} ms"
        )


if __name__ == "__main__":
    try:
        app(prog_name="python -m bench.gpu")
    except StepnetError as error:
        sys.exit(f"bench.gpu: {error}")
