"""Times the first result of a process: without a cache, with an empty one, and with a full one.

    python bench/start.py
    python bench/start.py --rounds 20 --json

A GRU of 64, and two layers of LSTMs of 64 in both directions, on two sequences of 20 steps, float32. Each
sample is a process of its own; the ways alternate, and a figure is the median. `import stepnet` is timed
apart.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn

ROOT = Path(__file__).resolve().parents[1]
FIRST = """
import time
import numpy
begun = time.perf_counter()
import stepnet
imported = time.perf_counter() - begun
from bench.start import first
print(imported, first({name!r}))
"""
MODELS = {"gru": "a GRU", "stack": "two layers of LSTMs, both directions"}
WAYS = {"none": "no cache", "cold": "an empty cache", "warm": "a full cache"}


def cell(name: str, inputs: int, seed: int, reverse: bool = False) -> sn.RNN:
    """Makes a layer of 64 units with random parameters."""
    return sn.cells.rnn(name, sn.cells.CELLS[name].parameters(inputs, 64, seed=seed), reverse=reverse)


def model(name: str) -> sn.RNN | sn.Stack:
    """Makes the model `name`, a key of `MODELS`."""
    if name == "gru":
        return cell("gru", 64, 0)
    return sn.Stack(
        [
            sn.Bidirectional(cell("lstm", 64, 0), cell("lstm", 64, 1, reverse=True)),
            sn.Bidirectional(cell("lstm", 128, 2), cell("lstm", 128, 3, reverse=True)),
        ]
    )


def first(name: str) -> float:
    """Returns the seconds of the first call of a model, which compiles it or reads the cache."""
    made, x = model(name), np.zeros((2, 20, 64), "float32")
    begun = time.perf_counter()
    made(x)
    return time.perf_counter() - begun


def sample(name: str, variables: dict[str, str]) -> tuple[float, float]:
    """Returns the seconds of the import and the first call, in a new process with these variables.

    Python's bytecode is kept, as it is where stepnet is installed, also if this process keeps none.
    """
    command = [sys.executable, "-c", FIRST.format(name=name)]
    environment = {**os.environ, **variables}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT, env=environment)
    imported, called = map(float, done.stdout.split())
    return imported, called


def seconds(name: str, rounds: int, folder: Path) -> dict[str, float]:
    """Returns the median seconds of a model's first call by the state of the cache, and of the import.

    folder: for caches and bytecode.
    """
    times = {way: list[float]() for way in (*WAYS, "import")}
    bytecode = {"PYTHONPYCACHEPREFIX": str(folder / "bytecode")}
    warm = {"STEPNET_CACHE": "1", "STEPNET_CACHE_DIR": str(folder / f"{name} warm"), **bytecode}
    sample(name, warm)  # fills the cache, and compiles Python's bytecode
    for number in range(rounds):
        cold = {"STEPNET_CACHE": "1", "STEPNET_CACHE_DIR": str(folder / f"{name} {number}"), **bytecode}
        for way, variables in (("none", {"STEPNET_CACHE": "0", **bytecode}), ("cold", cold), ("warm", warm)):
            imported, called = sample(name, variables)
            times[way].append(called)
            times["import"].append(imported)
    return {way: median(each) for way, each in times.items()}


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many processes time each way.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time the first call of processes, and print a table or JSON."""
    quiet = Console(stderr=True, quiet=as_json)
    with TemporaryDirectory() as folder:
        names = track(MODELS, "starting", console=quiet, transient=True)
        figures = {name: seconds(name, rounds, Path(folder)) for name in names}
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    table = Table(title="The first call of a process: milliseconds")
    table.add_column("model")
    for title in (*WAYS.values(), "import stepnet"):
        table.add_column(title, justify="right")
    for name, each in figures.items():
        table.add_row(MODELS[name], *(f"{1000 * each[way]:.1f}" for way in (*WAYS, "import")))
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
