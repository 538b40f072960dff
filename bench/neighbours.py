"""Measures what stepnet's threads cost others in the process: PyTorch behind a call, and many callers.

    python bench/neighbours.py
    python bench/neighbours.py --rounds 41 --json

matmul    torch's product of two matrices of 512 x 512 right behind a call of a GRU that two threads share,
behind the same call by one thread, and behind none. Workers that look for work need processors that torch's
threads want. callers   48 calls of GRUs by eight threads of Python, and the same calls one after the other:
of one recurrence, and of a recurrence for each thread.

Turns alternate; microseconds of the median turn.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets.limits import processors

CALLERS, CALLS, STEPS = 8, 6, 100
PAUSE = 0.003
"""Seconds ahead of each turn, in which workers fall asleep."""


def seconds(call: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def medians(turns: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Runs turns, which return their seconds, in alternation; returns median microseconds by name."""
    times: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(rounds):
        for name, turn in turns.items():
            time.sleep(PAUSE)
            times[name].append(1e6 * turn())
    return {name: median(own) for name, own in times.items()}


def gru(seed: int = 0, hidden: int = 256) -> sn.RNN:
    """Returns a GRU with as many inputs as units, and random parameters, to be called."""
    return cells.rnn("gru", cells.CELLS["gru"].parameters(hidden, hidden, seed=seed))


def matmul(rounds: int, torch_threads: int) -> dict[str, float]:
    """Times torch's product behind calls of stepnet by no thread, one and all: {name: microseconds}."""
    import torch

    torch.set_num_threads(torch_threads)
    left, right = torch.rand(2, 512, 512)
    rnn, x = gru(), np.zeros((1, STEPS, 256), "float32")

    def behind(threads: int) -> Callable[[], float]:
        """Returns a turn: a call of stepnet by `threads` threads, 0 for none, then the timed product."""

        def turn() -> float:
            """Calls stepnet; returns the seconds of the product behind it."""
            if threads:
                sn.set_threads(threads)
                rnn(x)
            return seconds(lambda: left @ right)

        return turn

    names = {f"behind a call by {count} threads": behind(count) for count in (1, processors())}
    return medians({"behind no call": behind(0), **names}, rounds)


def callers(rounds: int, same: bool) -> dict[str, float]:
    """Times calls by eight threads at once, and one after the other; same: of a single recurrence."""
    sn.set_threads(None)
    rnns = [gru(128 + place, 128) for place in range(1 if same else CALLERS)] * (CALLERS if same else 1)
    x = np.random.default_rng(0).normal(size=(4, STEPS, 128)).astype("float32")

    def calls(rnn: sn.RNN) -> None:
        """Calls a recurrence `CALLS` times, as each thread does."""
        for _ in range(CALLS):
            rnn(x)

    with ThreadPoolExecutor(CALLERS) as pool:
        turns = {
            "one after the other": lambda: seconds(lambda: list(map(calls, rnns))),
            "eight threads at once": lambda: seconds(lambda: list(pool.map(calls, rnns))),
        }
        return medians(turns, rounds)


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 21,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time what runs beside stepnet's threads, and print a table or JSON."""
    found = {
        "matmul, torch with one thread": matmul(rounds, 1),
        f"matmul, torch with {processors()} threads": matmul(rounds, processors()),
        "callers of one recurrence": callers(rounds, same=True),
        "callers of a recurrence each": callers(rounds, same=False),
    }
    sn.set_threads(None)
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    shown = Table(title="microseconds")
    for name in ("what", "how", "median", "of the first"):
        shown.add_column(name, justify="left" if name in ("what", "how") else "right")
    for what, times in found.items():
        first = next(iter(times.values()))
        for how, taken in times.items():
            shown.add_row(what, how, f"{taken:.0f}", f"{taken / first:.2f}")
    Console().print(shown)


if __name__ == "__main__":
    typer.run(main)
