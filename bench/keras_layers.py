"""Times Keras' layers without and with stepnet: `train_on_batch` and `predict_on_batch`.

    python bench/keras_layers.py                GRU, LSTM: 16 and 64 sequences of 100 steps, 64 and 256 units
    KERAS_BACKEND=tensorflow python bench/keras_layers.py        on another backend than torch
    python bench/keras_layers.py --kind dropout,mask,cell --batch 16 --units 64
    python bench/keras_layers.py --json

float32, inputs as wide as the memory, a dense layer behind. The same model, with the same weights, runs
alternately with and without `stepnet.keras.accelerate()`, in one process. Losses are compared after each
turn. A time is the median of all turns, and a ratio that of each round's.

Kinds: gru, lstm; dropout, a GRU with recurrent_dropout; mask, an LSTM over sequences of 50 to 100 steps,
padded and masked; cell, a cell of one's own (a minimal gated unit).
"""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from statistics import median
from typing import Annotated, Any

os.environ.setdefault("KERAS_BACKEND", "torch")

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
import stepnet.keras
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads

keras: Any = import_module("keras")  # Any, as few of its types are known
PAUSE = 0.02
SET_THREADS: dict[str, Callable[[int], object]] = {
    "torch": lambda count: import_module("torch").set_num_threads(count),
    "tensorflow": lambda count: import_module("tensorflow").config.threading.set_intra_op_parallelism_threads(
        count
    ),
}
"""The function that sets a backend's threads; jax takes all processors."""


class MinimalGatedUnit(keras.layers.Layer):
    """A cell that Keras does not have: one gate resets and updates."""

    def __init__(self, units: int) -> None:
        """Makes the cell's dense layers, of the gate and of the candidate."""
        super().__init__()
        self.units = self.state_size = units
        self.gate, self.candidate = (keras.layers.Dense(units, name) for name in ("sigmoid", "tanh"))

    def build(self, input_shape: Any) -> None:
        """Makes the cell's weights, for inputs of a shape."""
        for layer in (self.gate, self.candidate):
            layer.build((None, input_shape[-1] + self.units))

    def call(self, inputs: Any, states: Any) -> Any:
        """Computes one step of the cell: the next h, as output and as state."""
        (h,) = states
        f = self.gate(keras.ops.concatenate([inputs, h], axis=-1))
        h = (1 - f) * h + f * self.candidate(keras.ops.concatenate([inputs, f * h], axis=-1))
        return h, [h]


KINDS: dict[str, Callable[[int], Any]] = {
    "gru": lambda units: keras.layers.GRU(units),
    "lstm": lambda units: keras.layers.LSTM(units),
    "dropout": lambda units: keras.layers.GRU(units, recurrent_dropout=0.2, seed=0),
    "mask": lambda units: keras.layers.LSTM(units),
    "cell": lambda units: keras.layers.RNN(MinimalGatedUnit(units)),
}


@dataclass(frozen=True)
class Row:
    """The result for one kind of layer and call: median milliseconds, and Keras' time over stepnet's."""

    kind: str
    batch: int
    steps: int
    units: int
    call: str
    ours: float
    theirs: float
    ratio: float


def model_of(kind: str, steps: int, units: int) -> Any:
    """Returns a compiled Keras model of one layer of a kind (a key of `KINDS`) and a dense layer."""
    keras.utils.set_random_seed(0)
    front = [keras.layers.Masking()] if kind == "mask" else []
    model = keras.Sequential([keras.Input((steps, units)), *front, KINDS[kind](units), keras.layers.Dense(1)])
    model.compile(keras.optimizers.SGD(0.01), "mse")
    return model


def turn(call: Callable[[], Any], accelerated: bool) -> tuple[Any, float]:
    """Calls twice, with or without stepnet; returns the result of the second call, and its seconds."""
    time.sleep(PAUSE)
    done = stepnet.keras.accelerate() if accelerated else None
    try:
        call()
        begun = time.perf_counter()
        return call(), time.perf_counter() - begun
    finally:
        if done is not None:
            done.undo()


def timed(kind: str, batch: int, steps: int, units: int, rounds: int) -> list[Row]:
    """Times a kind of layer with and without stepnet; raises `SystemExit` if they learn differently."""
    random = np.random.default_rng(0)
    x, y = random.normal(size=(batch, steps, units)).astype("float32"), np.zeros((batch, 1), "float32")
    if kind == "mask":
        x *= np.arange(steps)[:, None] < random.integers(steps // 2, steps + 1, size=(batch, 1, 1))
    models = [model_of(kind, steps, units) for _ in range(2)]
    calls: dict[str, list[Callable[[], Any]]] = {
        "train_on_batch": [lambda model=model: model.train_on_batch(x, y) for model in models],
        "predict_on_batch": [lambda model=model: model.predict_on_batch(x) for model in models],
    }
    rows = list[Row]()
    for name, (ours, theirs) in calls.items():
        seconds = list[tuple[float, float]]()
        for done in range(rounds):
            (our_answer, our_time), (their_answer, their_time) = turn(ours, True), turn(theirs, False)
            # Each step moves both by what rounding makes of its gradients.
            away = float(np.max(np.abs(np.subtract(our_answer, their_answer))))
            if away > (done + 2) * 4 * rounds * tolerance("float32", batch * steps, units):
                raise SystemExit(f"{kind}: stepnet and Keras differ by {away:.2g} in turn {done + 1}")
            seconds.append((our_time, their_time))
        our_time, their_time = (1e3 * median(times) for times in zip(*seconds, strict=True))
        ratio = median(theirs / ours for ours, theirs in seconds)
        rows.append(Row(kind, batch, steps, units, name, our_time, their_time, ratio))
    return rows


def main(
    kind: Annotated[str, typer.Option(help="Of gru, lstm, dropout, mask, cell.")] = "gru,lstm",
    batch: Annotated[str, typer.Option(help="Numbers of sequences.")] = "16,64",
    units: Annotated[str, typer.Option(help="Features of the memory.")] = "64,256",
    steps: Annotated[int, typer.Option(min=2, help="Steps of each sequence.")] = 100,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 7,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time Keras' layers without and with stepnet, and print a table or JSON."""
    sn.set_threads(threads_)
    SET_THREADS.get(keras.backend.backend(), lambda count: None)(threads())
    cases = [
        (name, int(rows), int(size))
        for name in kind.split(",")
        for size in units.split(",")
        for rows in batch.split(",")
    ]
    quiet = Console(stderr=True, quiet=as_json)
    every = track(cases, "Keras", console=quiet, transient=True)
    rows = [row for name, count, size in every for row in timed(name, count, steps, size, rounds)]
    if as_json:
        print(
            json.dumps(
                {
                    "backend": keras.backend.backend(),
                    "threads": threads(),
                    "rows": [asdict(row) for row in rows],
                },
                indent=2,
            )
        )
        return
    table = Table(title=f"Keras' layers on {keras.backend.backend()}, {threads()} threads: milliseconds")
    for name in ("kind", "batch", "units", "call", "stepnet", "Keras", "times as fast"):
        table.add_column(name, justify="right")
    for row in rows:
        sizes = (str(row.batch), str(row.units), row.call)
        table.add_row(row.kind, *sizes, f"{row.ours:.2f}", f"{row.theirs:.2f}", f"{row.ratio:.1f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
