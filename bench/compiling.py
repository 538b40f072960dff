"""Times the compilation of layers: the first forward and backward pass, less a later one.

    python bench/compiling.py
    python bench/compiling.py --rounds 5 --json
    python bench/compiling.py --modules --rounds 20    # the parts of one module

A GRU, an LSTM, and two layers of LSTMs in both directions, 64 inputs and 64 features, float32. Each is timed
in a process of its own, in which a small layer of another kind ran before: imports do not count.

With --modules: the least processor time of each part of the way from a plan to the object code of its module,
for recurrences from a sum of 5 units to a GRU of 256.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
import stepnet.torch as st
from stepnet.compiler.targets.cpu import host_processor
from stepnet.compiler.targets.cpu.compile.generate import llvm_module
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.compiler.targets.cpu.machine.object_code import emit_all
from stepnet.compiler.values.fork_guard import run_in_thread

ROOT = Path(__file__).resolve().parents[1]
LAYERS: dict[str, tuple[str, dict[str, Any]]] = {
    "gru": ("GRU", {}),
    "lstm": ("LSTM", {}),
    "two layers of lstm, both directions": ("LSTM", {"num_layers": 2, "bidirectional": True}),
}
PARTS = ("lowering", "writing", "text", "LLVM")
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


def total() -> sn.RNN:
    """Makes the sum of the inputs so far."""
    return sn.RNN(lambda x, h, _: (x + h, x + h), memory=5, inputs=5)


def simple() -> sn.RNN:
    """Makes a simple recurrent network of 3 inputs and 5 units."""

    def step(x: Any, h: Any, params: Any) -> Any:
        """The equation of a simple recurrent network."""
        h = np.tanh(x @ params["W"] + h @ params["R"])
        return h, h

    params = {"W": np.zeros((3, 5), "float32"), "R": np.zeros((5, 5), "float32")}
    return sn.RNN(step, params, memory=5, inputs=3)


def cell(name: str, units: int) -> sn.RNN:
    """Makes a cell with as many inputs as units."""
    return sn.cells.rnn(name, sn.cells.CELLS[name].parameters(units, units, seed=0))


MODULES: dict[str, Callable[[], sn.RNN]] = {
    "sum of 5": total,
    "simple 5": simple,
    "gru 64": partial(cell, "gru", 64),
    "lstm 64": partial(cell, "lstm", 64),
    "gru 256": partial(cell, "gru", 256),
}


def parts(name: str, rounds: int) -> dict[str, float]:
    """Returns the least milliseconds of processor time of each of `PARTS`, and the lines of the module.

    name: a key of `MODULES`.
    """
    processor, plan, lines = host_processor(), MODULES[name]().plan, 0
    least: dict[str, float] = dict.fromkeys(PARTS, float("inf"))
    for _ in range(rounds + 1):  # the first one fills caches of functions
        begun = [time.process_time()]
        program = lowered(plan, processor)
        begun.append(time.process_time())
        module = llvm_module(program, processor)
        begun.append(time.process_time())
        text = str(module)
        begun.append(time.process_time())
        run_in_thread(partial(emit_all, [text], processor))
        begun.append(time.process_time())
        took = (1e3 * (end - start) for start, end in pairwise(begun))
        least = {part: min(least[part], one) for part, one in zip(PARTS, took, strict=True)}
        lines = text.count("\n")
    return {**least, "lines": lines}


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
    modules: Annotated[
        bool, typer.Option("--modules", help="The parts of one module, for small models.")
    ] = False,
) -> None:
    """Time the compilation of layers for training, and print a table or JSON."""
    quiet = Console(stderr=True, quiet=as_json)
    if modules:
        names = track(MODULES, "compiling", console=quiet, transient=True)
        print_parts({name: parts(name, rounds) for name in names}, as_json)
        return
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


def print_parts(figures: dict[str, dict[str, float]], as_json: bool) -> None:
    """Prints the milliseconds of the parts of each module (see `parts`), as a table or JSON."""
    if as_json:
        print(json.dumps(figures, indent=2))
        return
    table = Table(title="From a plan to object code: milliseconds of processor time")
    for heading in ("model", *PARTS, "sum", "lines"):
        table.add_column(heading, justify="left" if heading == "model" else "right")
    for name, each in figures.items():
        times = [each[part] for part in PARTS]
        table.add_row(name, *(f"{one:.1f}" for one in (*times, sum(times))), f"{each['lines']:.0f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
