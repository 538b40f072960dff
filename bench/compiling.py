"""Times the compilation of layers: the first forward and backward pass, less a later one.

    python bench/compiling.py
    python bench/compiling.py --rounds 5 --json

A GRU, an LSTM, and two layers of LSTMs in both directions, 64 inputs and 64 features, float32. Each is timed
in a process of its own, in which a small layer of another kind ran before: imports do not count.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet.torch as st

ROOT = Path(__file__).resolve().parents[1]
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gru": ("GRU", {}),
    "lstm": ("LSTM", {}),
    "two layers of lstm, both directions": ("LSTM", {"num_layers": 2, "bidirectional": True}),
}
FIRST = "import sys; from bench.compiling import first; print(first(sys.argv[1]))"


def first(name: str) -> float:
    """Returns the seconds by which a layer's first forward and backward pass exceeds the second: compilation.

    name: a key of `LAYERS`.
    """
    kind, options = LAYERS[name]
    passes(st.RNN(4, 4), 4)
    layer = getattr(st, kind)(64, 64, **options)
    return passes(layer, 64) - passes(layer, 64)


def passes(layer: Any, inputs: int) -> float:
    """Returns the seconds of a forward and a backward pass over two sequences of five steps."""
    x = torch.zeros(5, 2, inputs, requires_grad=True)
    begun = time.perf_counter()
    layer(x)[0].sum().backward()
    return time.perf_counter() - begun


def alone(name: str) -> float:
    """Returns the seconds of compilation of a layer (`first`), measured in a new process without a cache."""
    variables = {**os.environ, "STEPNET_CACHE": "0"}
    done = subprocess.run(
        [sys.executable, "-c", FIRST, name],
        check=True,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env=variables,
    )
    return float(done.stdout)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How many processes time each.")] = 3,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time the compilation of layers for training, and print a table or JSON."""
    quiet = Console(stderr=True, quiet=as_json)
    names = track(LAYERS, "compiling", console=quiet, transient=True)
    seconds = {name: median(alone(name) for _ in range(rounds)) for name in names}
    if as_json:
        print(json.dumps(seconds, indent=2))
        return
    table = Table(title="Compilation of forward and backward: seconds")
    table.add_column("layer")
    table.add_column("seconds", justify="right")
    for name, each in seconds.items():
        table.add_row(name, f"{each:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
