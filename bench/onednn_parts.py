"""Several recurrences in one primitive of oneDNN beside one by one, and its gradients beside those of llvm.

    python bench/onednn_parts.py                      both directions of a layer, and two and three layers
    python bench/onednn_parts.py --cell lstm --hidden 64
    python bench/onednn_parts.py --training           forward, backward and all gradients

The ways take turns, and the median of each is told, as the processor time of one thread: other processes on
the machine change it least.

    joined, apart    calls with engine="onednn", with and without joining
    bare             the same primitives alone, on memory that is already padded
    llvm             calls with engine="llvm"

With --training: `layer` is the `vjp` of a layer of `stepnet.onednn`, on oneDNN's backward primitives; `llvm`
is `sn.vjp` of the same recurrence; `between` is that, and a forward pass on oneDNN besides.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import product
from statistics import median
from time import process_time
from typing import Annotated, Any

import numpy as np
import typer
from onednn_calls import Case, recurrences, training_ways_of

import stepnet as sn
from stepnet.engines import engine_named
from stepnet.engines.onednn.library import library
from stepnet.engines.onednn.primitives import Run
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.weights import Weights

Ways = dict[str, Callable[[], Any]]
FORMS = {"both": 2, "2 layers": 2, "3 layers": 3}
"""Each form of layers, and the number of its recurrences."""
WARM = 10
"""Calls ahead of those that are timed: from the eighth on a call with the same lengths is frozen."""


class Apart:
    """An engine's joins that refuse all joined parts."""

    def refuse(self, part: Any) -> str:
        """A reason."""
        return "the parts are timed"

    def compile(self, part: Any) -> Any:
        """Never called."""
        raise NotImplementedError


def layers_of(case: Case, form: str) -> Any:
    """The layers of a form."""
    size = case.hidden
    params = [sn.cells.CELLS[case.cell].parameters(size, size, seed=seed) for seed in range(FORMS[form])]
    if form == "both":
        return sn.Bidirectional(
            *(sn.cells.rnn(case.cell, each, reverse=n == 1) for n, each in enumerate(params))
        )
    return sn.Stack([sn.cells.rnn(case.cell, each) for each in params])


def bare(case: Case, recurrence: Recurrence) -> Callable[[], None]:
    """A primitive alone."""
    run = Run(library(), recurrence, case.lengths[0], len(case.lengths))
    random = np.random.default_rng(0)
    arrays = {name: random.normal(size=recurrence.shape(name, 0, 0)) / 16 for name in recurrence.weights}
    Weights.of(recurrence, arrays).bind(run)
    run.view("src_layer")[...] = random.normal(size=run.view("src_layer").shape)
    return run.run


def joined_ways(case: Case, form: str) -> Ways:
    """The functions to time, by name."""
    random, onednn = np.random.default_rng(1), engine_named("onednn")
    x = sn.Ragged.from_list([random.normal(size=(n, case.hidden)).astype(np.float32) for n in case.lengths])
    one, other = layers_of(case, form), layers_of(case, form)
    one(x, engine="onednn")
    joins = onednn.joins
    object.__setattr__(onednn, "joins", Apart())
    other(x, engine="onednn")
    object.__setattr__(onednn, "joins", joins)
    kind = {"gru": "lbr_gru", "lstm": "lstm"}[case.cell]
    alone = Recurrence(kind, case.hidden, case.hidden)
    whole = replace(alone, direction="concat") if form == "both" else replace(alone, layers=FORMS[form])
    directions = ["left2right", "right2left"] if form == "both" else ["left2right"] * FORMS[form]
    parts = [bare(case, replace(alone, direction=direction)) for direction in directions]
    return {
        "joined": lambda: one(x, engine="onednn"),
        "apart": lambda: other(x, engine="onednn"),
        "bare joined": bare(case, whole),
        "bare apart": lambda: [part() for part in parts],
        "llvm": lambda: one(x, engine="llvm"),
    }


def gradient_ways(case: Case) -> Ways:
    """The functions to time, by name."""
    x, _, rnn = recurrences(case)
    ways = training_ways_of(case)
    return {
        "layer": ways["layer"],
        "llvm": ways["llvm"],
        "between": lambda: (rnn(x, engine="onednn"), ways["llvm"]()),
    }


def medians(ways: Ways, seconds: float) -> dict[str, float]:
    """The median of each way in microseconds. Every other round runs the ways in the opposite order."""
    for way in ways.values():
        for _ in range(WARM):
            way()
    times: dict[str, list[float]] = {name: [] for name in ways}
    begin, order = process_time(), list(ways.items())
    while process_time() - begin < seconds or len(times[order[0][0]]) < 5:
        for name, way in order:
            start = process_time()
            way()
            times[name].append((process_time() - start) * 1e6)
        order.reverse()
    return {name: median(values) for name, values in times.items()}


def cases(cell: str, hidden: int) -> Iterator[tuple[str, Case]]:
    """The cases, each with its name."""
    for size, rows, steps in product([hidden] if hidden else [64, 256, 512], (1, 16, 64), (20, 100)):
        yield f"{cell} {size}, {rows} x {steps}", Case(cell, size, (steps,) * rows)


def main(
    cell: Annotated[str, typer.Option(help="gru or lstm")] = "gru",
    hidden: Annotated[int, typer.Option(help="units; 0 for 64, 256 and 512")] = 0,
    training: Annotated[bool, typer.Option(help="forward, backward and all gradients")] = False,
    seconds: Annotated[float, typer.Option(help="of each case")] = 1.5,
) -> None:
    """Times each case, and prints a line for it, in microseconds."""
    sn.set_threads(1)
    for name, case in cases(cell, hidden):
        listed = [("", gradient_ways)] if training else [(form, joined_ways) for form in FORMS]
        for form, make in listed:
            low = medians(make(case) if training else make(case, form), seconds)
            print(
                f"{name} {form}: " + ", ".join(f"{way} {time:.0f}" for way, time in low.items()), flush=True
            )


if __name__ == "__main__":
    typer.run(main)
