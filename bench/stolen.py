"""How long a single sequence takes when another process takes a processor.

    python bench/stolen.py                  a table
    python bench/stolen.py --rounds 51      with more turns for each
    python bench/stolen.py --json

One sequence, float32, whose steps all threads share. A turn fills a fifth of a second with calls. Turns with
one thread and with all of them alternate, first while nothing else runs, then beside processes that do
nothing but count, and leave one processor free. Promised is that all threads take at most 1.2 times as long
as one thread does beside the same processes; the mean of a turn's calls counts, so that no call is left out.
"""

import json
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from stepnet import cells
from stepnet.engines.processors import processors

MOST = 1.2
WIDTHS = (128, 256, 512, 1024)
STEPS = 100
TURN = 0.2


@dataclass(frozen=True)
class Found:
    """Seconds of a call in each turn, by one thread and by all of them, beside so many busy processes."""

    hidden: int
    busy: int
    one: list[float]
    all: list[float]

    @property
    def ratio(self) -> float:
        """All threads' time, of one thread's, in the median turn."""
        return median(every / one for one, every in zip(self.one, self.all, strict=True))


@contextmanager
def busy(count: int) -> Generator[None]:
    """Inside it so many processes count."""
    counting = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in counting:
            process.kill()
            process.wait()


def turn(rnn: sn.RNN, x: np.ndarray, threads: int) -> float:
    """The mean seconds of a call."""
    sn.set_threads(threads)
    rnn(x)
    calls, begin = 0, time.perf_counter()
    while time.perf_counter() < begin + TURN:
        rnn(x)
        calls += 1
    return (time.perf_counter() - begin) / calls


def measured(hidden: int, count: int, rounds: int) -> Found:
    """The times beside so many busy processes; raises `AssertionError` where the bits differ."""
    rnn = cells.rnn("gru", cells.CELLS["gru"].parameters(hidden, hidden))
    x = np.random.default_rng(0).normal(size=(1, STEPS, hidden)).astype("float32")
    found = Found(hidden, count, [], [])
    with busy(count):
        for _ in range(rounds):
            found.one.append(turn(rnn, x, 1))
            right = rnn(x)[0]
            found.all.append(turn(rnn, x, processors()))
            assert np.array_equal(rnn(x)[0], right)
    return found


def table(found: list[Found]) -> Table:
    shown = Table(title=f"a GRU over one sequence of {STEPS} steps: milliseconds")
    for name in ("hidden", "busy processes", "one thread", f"{processors()} threads", "ratio", ""):
        shown.add_column(name, justify="right")
    for one in found:
        kept = "" if not one.busy else "[green]kept[/]" if one.ratio <= MOST else "[red]not kept[/]"
        times = [f"{1e3 * median(seconds):.2f}" for seconds in (one.one, one.all)]
        shown.add_row(str(one.hidden), str(one.busy), *times, f"{one.ratio:.2f}", kept)
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time a single sequence beside processes that are busy."""
    console = Console(stderr=as_json)
    cases = [(hidden, count) for hidden in WIDTHS for count in (0, processors() - 1)]
    found = [measured(*case, rounds) for case in track(cases, "running", console=console, transient=True)]
    sn.set_threads(None)
    if as_json:
        typer.echo(json.dumps([{**asdict(one), "ratio": one.ratio} for one in found], indent=1))
        return
    console.print(table(found))
    console.print(f"Promised: at most {MOST} times one thread's time beside them.", style="dim")


if __name__ == "__main__":
    typer.run(main)
