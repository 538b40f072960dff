"""Measures one model that many threads of one process call, for requests of mixed lengths.

    python -m bench.serving
    python -m bench.serving --threads 1 --hidden 256 --json

A GRU, float32, over requests of one sequence of 5 to 60 steps each. `one batch` is all of them in calls of 64
sequences, by one thread: what the machine gives. `calls of 16` has as many sequences in a call as there are
callers: each waits for its result, so no batch by arrival can be larger. `one thread` calls the model with
one request after the other, and `each its own` are 16 threads of Python that do. `by arrival` are these
threads with `examples/batching.py`: each submits its request, and waits for the result. `clients alone` is
the same with a model that computes nothing: what these threads can ask, whatever answers.

Ways alternate. A rate is the median of the rounds, and its share of that of one batch the median of each
round's; p50 and p99 are those of all requests, in milliseconds. The results are compared first: those of all
ways have equal bits.
"""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from examples.batching import Batcher
from stepnet import cells
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
SHORTEST, LONGEST, BATCH = 5, 60, 64
CLIENTS = "clients alone"
Answer = Callable[[Array], Array]


@dataclass(frozen=True)
class Row:
    """One way to answer: requests a second, the share of that of one batch, and milliseconds of a request."""

    way: str
    rate: float
    share: float
    p50: float | None = None
    p99: float | None = None


def last(model: sn.RNN) -> Callable[[sn.Ragged], Array]:
    """Returns the function from sequences to the last output of each."""
    return lambda sequences: model(sequences)[1]


def in_batches(model: sn.RNN, requests: list[Array], size: int) -> tuple[list[Array], list[float]]:
    """Answers requests in calls of `size` sequences; returns the results, and no times of requests."""
    made = [
        last(model)(sn.Ragged.from_list(requests[at : at + size])) for at in range(0, len(requests), size)
    ]
    return list(np.concatenate(made)), []


def by_callers(answer: Answer, requests: list[Array], callers: int) -> tuple[list[Array], list[float]]:
    """Answers requests by several threads; returns the results, and the seconds of each request."""

    def timed(request: Array) -> tuple[Array, float]:
        """Answers one request."""
        begun = time.perf_counter()
        return answer(request), time.perf_counter() - begun

    with ThreadPoolExecutor(callers) as pool:
        made = list(pool.map(timed, requests))
    return [result for result, _ in made], [seconds for _, seconds in made]


def main(
    requests: Annotated[int, typer.Option(min=1, help="Requests of a turn.")] = 1024,
    hidden: Annotated[int, typer.Option(min=1, help="Inputs and units.")] = 128,
    callers: Annotated[int, typer.Option(min=1, help="Threads that call.")] = 16,
    rounds: Annotated[int, typer.Option(min=1, help="How often each way has a turn.")] = 7,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of a call.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Measure requests of many threads to one model, and print a table or JSON."""
    sn.set_threads(threads_)
    random = np.random.default_rng(0)
    lengths = random.integers(SHORTEST, LONGEST + 1, requests)
    sequences = [random.normal(size=(length, hidden)).astype("float32") for length in lengths]
    model = cells.rnn("gru", cells.CELLS["gru"].parameters(hidden, hidden, seed=0))
    call = last(model)

    def alone(request: Array) -> Array:
        """Calls the model with one sequence."""
        return call(sn.Ragged.from_list([request]))[0]

    nothing = np.zeros((BATCH, hidden), "float32")
    with Batcher(call) as batcher, Batcher(lambda asked: nothing[: len(asked)]) as idle:
        ways: dict[str, Callable[[], tuple[list[Array], list[float]]]] = {
            "one batch": lambda: in_batches(model, sequences, BATCH),
            f"calls of {callers}": lambda: in_batches(model, sequences, callers),
            "one thread": lambda: by_callers(alone, sequences, 1),
            "each its own": lambda: by_callers(alone, sequences, callers),
            "by arrival": lambda: by_callers(lambda one: batcher.submit(one).result(), sequences, callers),
            CLIENTS: lambda: by_callers(lambda one: idle.submit(one).result(), sequences, callers),
        }
        rows = timed_ways(ways, requests, rounds, as_json)
    if as_json:
        print(json.dumps({"threads": threads(), "rows": [asdict(row) for row in rows]}, indent=2))
        return
    table = Table(title=f"{callers} callers of a GRU of {hidden} units, {threads()} threads: 5 to 60 steps")
    for name in ("", "requests/s", "of one batch", "p50 ms", "p99 ms"):
        table.add_column(name, justify="right")
    for row in rows:
        latencies = ["-" if value is None else f"{value:.2f}" for value in (row.p50, row.p99)]
        table.add_row(row.way, f"{row.rate:,.0f}", f"{row.share:.2f}", *latencies)
    Console().print(table)


def timed_ways(
    ways: dict[str, Callable[[], tuple[list[Array], list[float]]]], requests: int, rounds: int, quiet: bool
) -> list[Row]:
    """Times ways to answer requests in alternation; returns a row for each. Raises `SystemExit` if results
    differ.
    """
    answering = {name: way for name, way in ways.items() if name != CLIENTS}
    (first, right), *others = ((name, np.stack(way()[0])) for name, way in answering.items())
    for name, results in others:
        if not np.array_equal(results, right):
            raise SystemExit(f"the results of {first} and {name} differ")
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    latencies: dict[str, list[float]] = {name: [] for name in ways}
    console = Console(stderr=True, quiet=quiet)
    for _ in track(range(rounds), "serving", console=console, transient=True):
        for name, way in ways.items():
            begun = time.perf_counter()
            _, taken = way()
            seconds[name].append(time.perf_counter() - begun)
            latencies[name] += taken
    rows = list[Row]()
    for name, times in seconds.items():
        share = median(whole / own for own, whole in zip(times, seconds[first], strict=True))
        tails: list[Any] = [
            1000 * float(np.percentile(latencies[name], part)) for part in (50, 99) if latencies[name]
        ]
        rows.append(Row(name, requests / median(times), share, *tails))
    return rows


if __name__ == "__main__":
    typer.run(main)
