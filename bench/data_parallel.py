"""Times an epoch of examples/data_parallel.py by two processes of one thread, and by one process.

    python bench/data_parallel.py                            the sizes of the example
    python bench/data_parallel.py --hidden 256 --batch 90    larger
    python bench/data_parallel.py --json

Each turn runs the example anew, as a user would. A turn's time is the median of its epochs but the first,
which compiles; a ratio is the median of each round's. All turns have to print the same first loss.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from statistics import median
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

EXAMPLE = str(Path(__file__).resolve().parents[1] / "examples" / "data_parallel.py")
TORCHRUN = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"
WAYS: dict[str, tuple[tuple[str, ...], int, int]] = {
    "2 processes": (TORCHRUN, 1, 1),
    "1 process, 2 threads": ((), 2, 2),
    "1 process, 2 threads, of PyTorch 1": ((), 2, 1),
    "1 process, 1 thread": ((), 1, 1),
}
"""The command that starts each, and the threads of stepnet and of PyTorch."""


def turn(way: str, arguments: list[str]) -> tuple[str, float]:
    """Runs the example in a way of `WAYS`; returns the first loss as text, and an epoch's median seconds."""
    starter, own, theirs = WAYS[way]
    given = {**os.environ, "STEPNET_NUM_THREADS": str(own), "OMP_NUM_THREADS": str(theirs)}
    command = [sys.executable, *starter, EXAMPLE, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=given, check=False)
    rows = re.findall(r"^epoch +\d+ +loss ([\d.]+) +([\d.]+) s$", done.stdout, re.MULTILINE)
    if done.returncode or len(rows) < 2:
        raise SystemExit(f"{way}: {' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    return rows[0][0], median(float(seconds) for _, seconds in rows[1:])


def main(
    layer: Annotated[str, typer.Option(help="A layer of the example, such as torch.nn.LSTM.")] = "GRU",
    hidden: Annotated[int, typer.Option(help="Its units.")] = 64,
    batch: Annotated[int, typer.Option(help="The utterances of a batch.")] = 30,
    epochs: Annotated[int, typer.Option(help="The epochs of a turn.", min=2)] = 8,
    rounds: Annotated[int, typer.Option(help="How many turns each has.", min=1)] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time an epoch of training by one process and by two, and print a table or JSON."""
    sizes = {"layer": layer, "hidden": hidden, "batch": batch, "epochs": epochs}
    arguments = [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    losses = set[str]()
    for _ in range(rounds):
        for way in WAYS:
            loss, each = turn(way, arguments)
            losses.add(loss)
            seconds[way].append(each)
    if len(losses) > 1:
        raise SystemExit(f"first losses differ: {', '.join(sorted(losses))}")
    first = seconds["2 processes"]
    ratios = {way: median(a / b for a, b in zip(times, first, strict=True)) for way, times in seconds.items()}
    if as_json:
        typer.echo(json.dumps({**sizes, "seconds": seconds, "ratios": ratios}, indent=2))
        return
    table = Table(title=f"an epoch of {layer}, {hidden} units, batches of {batch} utterances")
    for name in ("", "milliseconds", "times 2 processes"):
        table.add_column(name, justify="right" if name else "left")
    for way, times in seconds.items():
        table.add_row(way, f"{1e3 * median(times):.1f}", f"{ratios[way]:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
