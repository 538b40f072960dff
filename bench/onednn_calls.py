"""Calls on oneDNN beside its primitive called bare: what stepnet's own part of a call takes.

    python bench/onednn_calls.py                  a table, in microseconds
    python bench/onednn_calls.py --threads 2      by default one, which other processes disturb least
    python bench/onednn_calls.py --training       forward, backward and all gradients
    python bench/onednn_calls.py --json

The ways take turns, round by round, and the fastest call of each is told: on a machine where other processes
run, the others wait for those.

    bare       the primitive alone, executed on the same padded memory, without any copy
    layer      `stepnet.onednn.gru_layer(...)(x)`, or `lstm_layer`
    operator   `stepnet.onednn.fusion_gru(x, ...)`, which compares the weights too
    engine     the same recurrence as an `RNN`, engine="onednn"
    model      a `Graph` that reads the outputs of that `RNN` alone, engine="onednn"
    llvm       the `RNN`, engine="llvm": without padding

With --training the ways are the layer's `vjp`, on oneDNN's backward primitives, and `sn.vjp` of the `RNN`.

`own` is the time of the layer less that of the primitive. Of ragged sequences it includes the copies into and
out of the padded memory. All ways are checked to give the same.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.onednn.primitives import PrimitiveRun

Array = np.ndarray
WAYS = ("bare", "layer", "operator", "engine", "model", "llvm")
TRAINING = ("layer", "llvm")
SECONDS = 0.003
"""The seconds that one way runs at a time, at least."""


@dataclass(frozen=True)
class Case:
    """A recurrence on oneDNN, and the lengths of its sequences."""

    cell: str
    hidden: int
    lengths: tuple[int, ...]

    @property
    def title(self) -> str:
        """The case on one line, for the table."""
        few, many = min(self.lengths), max(self.lengths)
        steps = f"{few}" if few == many else f"{few}-{many}"
        return f"{self.cell} {self.hidden}, {len(self.lengths)} x {steps} steps"


RAGGED = tuple(int(n) for n in np.random.default_rng(0).integers(5, 61, 50))
CASES = [
    *(Case("gru", hidden, lengths) for hidden in (16, 64) for lengths in ((1,), (20,), (3, 7, 5))),
    *(Case(cell, 256, (100,) * rows) for cell in ("gru", "lstm") for rows in (1, 16)),
    *(Case(cell, 128, RAGGED) for cell in ("gru", "lstm")),
]
QUICK = [Case("gru", 4, (3, 2)), Case("lstm", 4, (2, 2))]


def weights_of(case: Case) -> tuple[Array, ...]:
    """Returns a case's random weights in Paddle's layout: over inputs, over the memory, and biases."""
    random, gates = np.random.default_rng(0), 3 if case.cell == "gru" else 4
    shapes = ((case.hidden, gates * case.hidden),) * 2 + ((1, gates * case.hidden),)
    return tuple((random.normal(size=shape) / np.sqrt(case.hidden)).astype(np.float32) for shape in shapes)


def recurrences(case: Case) -> tuple[sn.Ragged, onednn.Layer, Any]:
    """Returns the sequences of a case, and its recurrence as a layer on oneDNN and as an `RNN`."""
    random = np.random.default_rng(1)
    x = sn.Ragged.from_list([random.normal(size=(n, case.hidden)).astype(np.float32) for n in case.lengths])
    weights, is_gru = weights_of(case), case.cell == "gru"
    layer = (onednn.gru_layer if is_gru else onednn.lstm_layer)(*weights)
    names = ("WeightX", "WeightH", "Bias") if is_gru else ("fc/Weight", "Weight", "Bias")
    layout = "paddle.fusion_gru" if is_gru else "paddle.dynamic_lstm_no_peepholes"
    semantics = {"update": "write"} if is_gru else {}
    rnn = sn.layout.layers(dict(zip(names, weights, strict=True)), layout, semantics=semantics)
    return x, layer, rnn


def training_ways_of(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns functions to time in training, by name; each returns the inputs' gradient among all."""
    x, layer, rnn = recurrences(case)
    run = sn.vjp(rnn)

    def of_layer() -> Any:
        """Runs forward and backward of the layer on oneDNN, to be timed; returns the inputs' gradient."""
        outputs, final, pullback = layer.vjp(x)
        return pullback(outputs, final)["x"]

    def of_rnn() -> Any:
        """Runs forward and backward of the `RNN`, to be timed; returns the inputs' gradient."""
        (outputs, final), backward = run(x)
        return backward(outputs, final).inputs

    return {"layer": of_layer, "llvm": of_rnn}


def ways_of(case: Case) -> dict[str, Callable[[], Any]]:
    """Returns the functions to time, by name; each returns its outputs."""
    (x, layer, rnn), weights, is_gru = recurrences(case), weights_of(case), case.cell == "gru"
    assert layer.recurrence is not None
    assert layer.weights is not None
    first = layer(x, cell="none")  # before the primitive is made, as it sets oneDNN's threads
    run = PrimitiveRun(layer.library, layer.recurrence, max(case.lengths), len(x))
    layer.weights.bind(run)
    run.view("src_layer")[...] = np.random.default_rng(2).normal(size=run.view("src_layer").shape)
    functions, primitive, stream = layer.library.functions, run.primitive, run.primitive.stream.handle
    arguments = primitive.primitive.handle, stream, len(primitive.arguments), primitive.arguments

    def bare() -> Any:
        """Executes the oneDNN primitive alone, to be timed; returns outputs computed before."""
        functions.dnnl_primitive_execute(*arguments)
        functions.dnnl_stream_wait(run.primitive.stream.handle)
        return first[0]

    def operator() -> Any:
        """Calls the operator, which compares the weights too, to be timed."""
        if is_gru:
            return onednn.fusion_gru(x, None, *weights)[0]
        return onednn.fusion_lstm(x, None, None, *weights, cell="none")[0]

    model = sn.Graph(lambda x, _: rnn(x)[0], inputs=case.hidden)
    return {
        "bare": bare,
        "layer": lambda: layer(x, cell="none")[0],
        "operator": operator,
        "engine": lambda: rnn(x, engine="onednn")[0],
        "model": lambda: model(x, engine="onednn"),
        "llvm": lambda: rnn(x, engine="llvm")[0],
    }


def by_turns(ways: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Calls the functions in alternation; returns the microseconds of the fastest call of each."""
    times: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            begin = perf_counter()
            while (start := perf_counter()) - begin < SECONDS:
                way()
                times[name].append((perf_counter() - start) * 1e6)
    return {name: min(values) for name, values in times.items()}


def timed(case: Case, rounds: int, training: bool) -> dict[str, float]:
    """Times a case: microseconds by name, and those of the layer less the primitive's under "own". Raises
    `SystemExit` if the results differ.
    """
    ways = training_ways_of(case) if training else ways_of(case)
    results = {name: way().values for name, way in ways.items()}
    most = tolerance("float32", max(case.lengths), 2 * case.hidden)
    for name, values in results.items():
        away = np.abs(values - results["llvm"]).max() / max(1, np.abs(results["llvm"]).max())
        if not away <= most:
            raise SystemExit(f"{case.title}: {name} gives other results than llvm")
    low = by_turns(ways, rounds)
    return low if training else low | {"own": low["layer"] - low["bare"]}


def main(
    threads: Annotated[int, typer.Option(min=1, help="of oneDNN and of stepnet")] = 1,
    rounds: Annotated[int, typer.Option(min=1)] = 100,
    training: Annotated[bool, typer.Option(help="forward, backward and all gradients")] = False,
    quick: Annotated[bool, typer.Option(help="tiny cases")] = False,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Times each case, and prints a table or JSON."""
    sn.set_threads(threads)
    found = {case.title: timed(case, rounds, training) for case in (QUICK if quick else CASES)}
    used = str(onednn.gru_layer(*weights_of(QUICK[0])).library).partition(";")[0] + ")"
    if as_json:
        print(json.dumps({"library": used, "threads": threads, "cases": found}))
        return
    table = Table(title=f"{used}, threads: {threads}; microseconds, {rounds} rounds")
    names, over, under = (TRAINING, "layer", "llvm") if training else ((*WAYS, "own"), "layer", "bare")
    for name in ("case", *names, f"{over} / {under}"):
        table.add_column(name, justify="left" if name == "case" else "right", no_wrap=True)
    for title, row in found.items():
        numbers = [f"{row[name]:.1f}" for name in names]
        table.add_row(title, *numbers, f"{row[over] / row[under]:.2f}")
    Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
