"""Times a step of beam search beside one of `generate`, which keeps nothing but the best symbol.

    python -m bench.beams                   a table
    python -m bench.beams --rounds 51       with more turns for each
    python -m bench.beams --json

A GRU over symbols, float32, with an embedding before it and a dense layer behind it. A search with so many
beams behind each start is set beside `generate` over as many sequences as there are beams in all, whose steps
of the recurrence are the same work; and beside `generate` over the starts alone, by beam. Nothing stops. A
turn is one call of each. A step is the time between two calls of `feed`; of all steps of all turns the first
decile counts, as other processes may take the processor in any of them. The target is at most 1.5 times the
time of `generate`.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from itertools import product
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from bench import one_step
from stepnet import cells

MOST = 1.5
HIDDEN, SYMBOLS, STARTS, BEAMS = (64, 256), (32, 1000), (1, 8, 64), (1, 4, 8)
STEPS, WARM = 40, 5  # steps of a call, and those not counted: at first a search has fewer beams
Feed = Callable[[np.ndarray], np.ndarray]


@dataclass(frozen=True)
class Found:
    """The result for one case: seconds of a step of the search, of `generate` over all rows (as many
    sequences as beams), and of `generate` over the starts alone.
    """

    hidden: int
    symbols: int
    starts: int
    beams: int
    search: float
    rows: float
    alone: float

    @property
    def ratio(self) -> float:
        """The search's time over that of `generate` over as many rows."""
        return self.search / self.rows

    @property
    def by_beam(self) -> float:
        """The search's time for each beam over that of `generate` over the starts alone."""
        return self.search / self.beams / self.alone


def language(hidden: int, symbols: int) -> sn.RNN:
    """Returns a random language model: a GRU over `symbols` symbols that gives scores of the next ones."""
    random = np.random.default_rng(0)
    params: dict[str, Any] = {
        "embedding": random.standard_normal((symbols, hidden), np.float32),
        "cell": cells.CELLS["gru"].parameters(hidden, hidden),
        "dense": random.standard_normal((hidden, symbols), np.float32),
    }
    return one_step.symbols("gru", params, hidden)


def step_seconds(calls: list[Callable[[Feed], Any]], rounds: int) -> list[float]:
    """Returns the seconds of a step of each call: the first decile over all steps of all rounds.

    calls: each takes a function that makes inputs of symbols, by which its steps are timed.
    """
    found: list[list[float]] = [[] for _ in calls]
    for turn in range(rounds + 1):  # the first turn compiles, and does not count
        for seconds, call in zip(found, calls, strict=True):
            times: list[float] = []

            def feed(symbols: np.ndarray, times: list[float] = times) -> np.ndarray:
                """Notes the time at which symbols are fed, and returns them unchanged."""
                times.append(time.perf_counter())
                return symbols

            call(feed)
            seconds += np.diff(times[WARM:]).tolist() if turn else []
    return [float(np.quantile(seconds, 0.1)) for seconds in found]


def measured(rnn: sn.RNN, starts: int, beams: int, rounds: int) -> list[float]:
    """Times a step of beam search and of `generate`; raises `AssertionError` if one beam writes otherwise.

    Returns the seconds of the search, of `generate` over all beams, and of `generate` over the starts.
    """

    def written(rows: int, feed: Feed) -> sn.Ragged:
        """Generates symbols for `rows` sequences."""
        return sn.generate(rnn, np.arange(rows) % 32, max_steps=STEPS, feed=feed)

    def searched(kept: int, feed: Feed) -> sn.Ragged:
        """Searches with `kept` beams; returns the symbols."""
        return sn.beam_search(rnn, np.arange(starts) % 32, beams=kept, max_steps=STEPS, feed=feed)[0]

    assert searched(1, np.asarray).inner().equal(written(starts, np.asarray))
    calls: list[Callable[[Feed], Any]] = [
        lambda feed: searched(beams, feed),
        lambda feed: written(starts * beams, feed),
        lambda feed: written(starts, feed),
    ]
    return step_seconds(calls, rounds)


def table(found: list[Found]) -> Table:
    """Returns the table of all results, with a verdict on the target."""
    shown = Table(title="a step of beam search: microseconds")
    for name in ("gru", "symbols", "starts x beams", "search", "generate, all rows", "ratio", "by beam", ""):
        shown.add_column(name, justify="right")
    for one in found:
        times = [f"{1e6 * seconds:.1f}" for seconds in (one.search, one.rows)]
        ratios = [f"{one.ratio:.2f}", f"{one.by_beam:.2f}"]
        kept = "[green]kept[/]" if one.ratio <= MOST else "[red]not kept[/]"
        size = f"{one.starts} x {one.beams}"
        shown.add_row(str(one.hidden), str(one.symbols), size, *times, *ratios, kept)
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time beam search beside generation, and print a table or JSON."""
    console = Console(stderr=as_json)
    models = {size: language(*size) for size in product(HIDDEN, SYMBOLS)}
    cases = list(product(models, STARTS, BEAMS))
    found = [
        Found(*size, starts, beams, *measured(models[size], starts, beams, rounds))
        for size, starts, beams in track(cases, "searching", console=console, transient=True)
    ]
    if as_json:
        more = [{"ratio": one.ratio, "by_beam": one.by_beam} for one in found]
        typer.echo(
            json.dumps([{**asdict(one), **ratios} for one, ratios in zip(found, more, strict=True)], indent=1)
        )
        return
    console.print(table(found))
    console.print(f"Wanted: at most {MOST} times the time of `generate` over as many rows.", style="dim")


if __name__ == "__main__":
    typer.run(main)
