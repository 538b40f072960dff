"""Times this checkout beside another revision of stepnet, for the same recurrences.

    python bench/versions.py e90d6c7                              the sizes that a speed is promised for
    python bench/versions.py main --cell lstm --batch 1,16        other cases: options of `python -m bench`
    python bench/versions.py main --rounds 9 --json

The revision is checked out in a folder of its own. The two alternate, this one first: `python -m bench` runs
the cases without any peer, and bench/stream.py steps of a stream, both from the checkout's own code. Each
turn is a process of its own. A time is the median of all turns, a ratio that of each round's.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

ROOT = Path(__file__).resolve().parents[1]
# The command of revisions in which the benchmark is a part of the package.
PACKAGED = ["-c", "from stepnet.cli import main; main()", "bench"]
TARGETS = ["--preset", "targets"]
UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
OTHERS = {"allow_extra_args": True, "ignore_unknown_options": True}  # passed on to `python -m bench`


@dataclass(frozen=True)
class Row:
    """The result for one case: its seconds in each round, in this checkout and at the other revision."""

    name: str
    here: list[float]
    there: list[float]

    @property
    def ratio(self) -> float:
        """The median time of this checkout over the other revision's."""
        return median(here / there for here, there in zip(self.here, self.there, strict=True))


def check_out(revision: str, folder: Path) -> Path:
    """Extracts a revision of the repository into a folder, and returns it; a usage error if unknown."""
    done = subprocess.run(
        ["git", "archive", "--format=tar", revision], cwd=ROOT, capture_output=True, check=False
    )
    if done.returncode:
        raise typer.BadParameter(done.stderr.decode().strip())
    subprocess.run(["tar", "-x", "-C", str(folder)], input=done.stdout, check=True)
    return folder


def turn(tree: Path, options: Sequence[str], steps: bool) -> dict[str, float]:
    """Runs the benchmarks of a checkout in new processes; returns the seconds of every case by name.

    options: those of `python -m bench`. steps: True to time steps of streams too.
    """
    bench = ["-m", "bench"] if (tree / "bench" / "__main__.py").exists() else PACKAGED
    run = output(tree, [*bench, "--peers", "stepnet", "--rounds", "1", "--json", *options])
    cases = {case["name"]: case["timings"]["stepnet"]["median"] for case in run["cases"]}
    return {**cases, **(stream_steps(tree) if steps else {}), **run["facts"]}


def stream_steps(tree: Path) -> dict[str, float]:
    """Runs the stream benchmark of a checkout; returns the seconds of a step of each stream by name."""
    cases = output(tree, [str(tree / "bench" / "stream.py"), "--rounds", "5", "--json"])
    names = [f"a step of {case['cell']} {case['inputs']}x{case['hidden']}" for case in cases]
    return {name: median(case["seconds"]["stepnet"]) for name, case in zip(names, cases, strict=True)}


def output(tree: Path, command: Sequence[str]) -> Any:
    """Runs a command by the code of the checkout `tree`; returns the JSON that it writes."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (tree / "src", tree)))}
    done = subprocess.run(
        [sys.executable, *command], cwd=tree, env=environment, stdout=subprocess.PIPE, check=True
    )
    return json.loads(done.stdout)


def compared(trees: Sequence[Path], options: Sequence[str], rounds: int, steps: bool) -> list[Row]:
    """Runs both checkouts in alternation for some rounds; returns the seconds of every case."""
    console = Console(stderr=True)
    turns = [
        [turn(tree, options, steps) for tree in trees]
        for _ in track(range(rounds), "rounds", console=console, disable=not console.is_terminal)
    ]
    here, there = zip(*turns, strict=True)
    return [Row(name, [times[name] for times in here], [times[name] for times in there]) for name in here[0]]


def text(seconds: float) -> str:
    """Formats seconds in the unit that suits them."""
    size, unit = next((unit for unit in UNITS if seconds >= unit[0]), UNITS[-1])
    return f"{seconds / size:.3g} {unit}"


def table(revision: str, rows: Sequence[Row]) -> Table:
    """Returns the table of all cases."""
    shown = Table("case", "here", revision, "here / there", box=None)
    for row in rows:
        shown.add_row(row.name, text(median(row.here)), text(median(row.there)), f"{row.ratio:.2f}")
    return shown


app = typer.Typer(add_completion=False)


@app.command(context_settings=OTHERS)
def main(
    context: typer.Context,
    revision: Annotated[str, typer.Argument(help="What git calls the other one.")],
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 5,
    steps: Annotated[bool, typer.Option(help="Time single steps of streams too.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time this checkout beside another revision, and print a table or JSON."""
    with TemporaryDirectory() as folder:
        trees = ROOT, check_out(revision, Path(folder))
        rows = compared(trees, context.args or TARGETS, rounds, steps)
    if as_json:
        typer.echo(json.dumps([{**asdict(row), "ratio": row.ratio} for row in rows], indent=1))
    else:
        Console().print(table(revision, rows))


if __name__ == "__main__":
    app()
