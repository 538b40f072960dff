"""Times small calls of nets with work between their recurrences, and behind them.

    python bench/between.py                     a table
    python bench/between.py --calls 50 --json

Loops whose steps are schedules, their gradients, and gradients of functions of parameters. Sequences have the
same lengths in every call. A figure is the median of all calls, in microseconds of the processor, which other
work on the machine changes little; on one thread.
"""

import json
import time
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import stepnet as sn

Array = np.ndarray
Run = Callable[[], Any]
SIZE, WARM = 16, 12  # units, and calls before the first that counts


def uniform(*shape: int) -> Array:
    """Returns random numbers in float32, the same in every process."""
    return np.random.default_rng(sum(shape)).uniform(-1, 1, shape).astype("f4")


def ragged(lengths: list[int]) -> sn.Ragged:
    """Returns random sequences of these lengths."""
    return sn.Ragged(uniform(sum(lengths), SIZE), (np.cumsum([0, *lengths]),))


WORDS = sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(inputs=SIZE, hidden=SIZE))
SENTENCES = [3 + number * 7 % 9 for number in range(40)]
DOCUMENTS = ragged(SENTENCES).group([10] * 4)
KEYS = ragged([5, 6, 10, 9])


def attention(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
    """Runs a step with attention over the keys of its sequence."""
    scores = np.exp(np.tanh(statics + sn.expand(h @ p["query"], statics)) @ p["scores"])
    context = sn.reduce(scores * statics, "sum") / (1 + sn.reduce(scores, "sum"))
    h = np.tanh(x @ p["inputs"] + context @ p["context"] + h)
    return h, h


def over_words(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """Runs a step with attention over the outputs of a recurrence over words."""
    outputs, last = WORDS(x, initial=h)
    weights = np.exp(np.tanh(outputs @ p["scores"]))
    h = np.tanh(sn.reduce(weights * outputs, "sum") @ p["context"] + last)
    return h, h


def marking(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """Runs a step that gives words back, so that it is a schedule."""
    marked = np.tanh(x @ p["inputs"] + sn.expand(h, x))
    return marked, WORDS(x, initial=h)[1] + sn.reduce(marked, "max")


def composed(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    """Runs a step whose weight is a function of parameters."""
    h = np.tanh(x @ np.concatenate([p["inputs"] * p["query"], p["context"]], axis=0)[:SIZE] + h)
    return h, h


def gradient(step: Any, x: Any, statics: Any = None) -> Run:
    """Returns a function that runs a recurrence and its backward pass."""
    run = sn.vjp(sn.RNN(step, PARAMS, memory=SIZE))
    outputs, final = run(x, statics=statics)[0]
    return lambda: run(x, statics=statics)[1](outputs, final)


PARAMS = {name: uniform(SIZE, SIZE) for name in ("query", "inputs", "context")} | {"scores": uniform(SIZE, 1)}
CASES: dict[str, Callable[[], Run]] = {
    "a step that gives words back": lambda: partial(sn.RNN(marking, PARAMS, memory=SIZE), DOCUMENTS),
    "gradient of attention": lambda: gradient(attention, ragged([20, 18, 15, 9]), KEYS),
    "gradient of attention over words": lambda: gradient(over_words, DOCUMENTS),
    "gradient of a function of parameters": lambda: gradient(composed, uniform(4, 20, SIZE)),
}


def microseconds(run: Run, calls: int) -> float:
    """Returns the median processor time of a number of calls."""
    times = list[float]()
    for _ in range(WARM + calls):
        begun = time.thread_time()
        run()
        times.append(time.thread_time() - begun)
    return median(times[WARM:]) * 1e6


def main(
    calls: Annotated[int, typer.Option(min=1, help="How many calls count.")] = 200,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time small calls with work between recurrences, and print a table or JSON."""
    sn.set_threads(1)
    found = {name: microseconds(make(), calls) for name, make in CASES.items()}
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    table = Table("call", "microseconds")
    for name, figure in found.items():
        table.add_row(name, f"{figure:.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
