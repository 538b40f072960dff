"""`python -m bench.gpu`: a prototype of kernels for GPUs, and what is measured of it."""

from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
Folder = Annotated[Path, typer.Argument(help="The folder of kernels, operands and expected results.")]


@app.command()
def prepare(
    folder: Folder, processes: Annotated[int, typer.Option(min=1, help="How many compile.")] = 2
) -> None:
    """Write the folder that a machine with a GPU needs. Needs stepnet, nvcc and ptxas."""
    from bench.gpu.prepare import prepare as write

    bundle = write(folder, processes)
    typer.echo(f"{len(bundle.kernels)} kernels and {len(bundle.checks)} checks in {folder}")


@app.command()
def measure(
    folder: Folder,
    result: Annotated[Path, typer.Argument(help="The file of JSON for the results.")],
    stages: Annotated[
        str, typer.Option(help="Names of stages, separated by semicolons; all by default.")
    ] = "",
) -> None:
    """Measure everything on this machine's GPU. Needs NumPy and PyTorch, but not stepnet."""
    from bench.gpu.stages import STAGES
    from bench.gpu.stages import measure as run

    names = stages.split(";") if stages else [*STAGES]
    if unknown := {*names} - {*STAGES}:
        raise typer.BadParameter(f"there is no stage {', '.join(unknown)}; there are {', '.join(STAGES)}")
    run(folder, result, names)


@app.command()
def tables(result: Annotated[Path, typer.Argument(help="The file of JSON of `measure`.")]) -> None:
    """Print the tables of docs/design/gpu.md."""
    from bench.gpu.tables import saved
    from bench.gpu.tables import tables as written

    for name, table in written(saved(result)).items():
        typer.echo(f"{name}\n\n{table()}\n")


@app.command(hidden=True)
def stage(name: str, folder: Folder, result: Path) -> None:
    """Run one stage in this process."""
    from bench.gpu.stages import run_stage

    run_stage(name, folder, result)


if __name__ == "__main__":
    app(prog_name="python -m bench.gpu")
