"""How long two layers and two directions take on one thread and on all of them.

    python bench/layers.py
    python bench/layers.py --rounds 31

GRUs over one sequence, float32, as wide as their inputs. Turns of one thread and of all alternate; the least
of all turns counts. Wanted at hidden 512 is at least 1.6 times one thread.
"""

import time
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import stepnet as sn
from stepnet import cells
from stepnet.engines.processors import processors

WIDTHS = (128, 256, 512)
STEPS = 100
CALLS = 5


def gru(hidden: int, reverse: bool = False) -> sn.RNN:
    """A GRU as wide as its inputs."""
    return cells.rnn("gru", cells.CELLS["gru"].parameters(hidden, hidden), reverse=reverse)


def turn(layers: Any, x: np.ndarray, threads: int) -> float:
    """The mean seconds of some calls."""
    sn.set_threads(threads)
    layers(x)
    layers(x)
    begun = time.perf_counter()
    for _ in range(CALLS):
        layers(x)
    return (time.perf_counter() - begun) / CALLS


def main(rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 15) -> None:
    """Time two layers and two directions over one sequence."""
    table = Table(title=f"GRUs over one sequence of {STEPS} steps: milliseconds")
    for name in ("hidden", "what", "one thread", f"{processors()} threads", "times as fast"):
        table.add_column(name, justify="right")
    for hidden in WIDTHS:
        x = np.random.default_rng(0).normal(size=(1, STEPS, hidden)).astype("float32")
        cases: dict[str, Any] = {
            "two layers": sn.Stack([gru(hidden), gru(hidden)]),
            "two directions": sn.Bidirectional(gru(hidden), gru(hidden, reverse=True)),
        }
        for name, layers in cases.items():
            turns = [(turn(layers, x, 1), turn(layers, x, processors())) for _ in range(rounds)]
            one, every = (min(seconds) for seconds in zip(*turns, strict=True))
            times = (f"{1e3 * one:.2f}", f"{1e3 * every:.2f}", f"{one / every:.2f}")
            table.add_row(str(hidden), name, *times)
    sn.set_threads(None)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
