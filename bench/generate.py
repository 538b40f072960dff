"""Times a symbol that a model of characters generates, beside onnxruntime and PyTorch.

    python -m bench.generate                  a table
    python -m bench.generate --rounds 51      with more turns for each
    python -m bench.generate --json

An embedding, a GRU or an LSTM, and a dense layer over 100 symbols, float32. From one symbol for each sequence
on, the best symbol is written 200 times, and nothing stops. `machine code` is `sn.generate`; `step by step`
is the same with a function for `feed=`, which Python calls between two steps. Both write the same symbols.

onnxruntime runs a model of one step that has all of it in it, from symbols and states to the best symbols and
new states, in a loop: on memory that is bound once, where two bindings alternate so that what one writes is
what the other reads; with one and with two threads. PyTorch runs an embedding, `GRUCell` or `LSTMCell`, a
product with the dense weights and `argmax` in a loop under inference mode, with threads as many as stepnet's.

All have to write the same symbols. They alternate in turns of two calls each, of which the second counts. A
time is the median of all turns; a ratio that of each round's.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import onnx
import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from bench import one_step
from bench.one_step import STATES
from stepnet import cells
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
CASES = (("gru", 256), ("lstm", 512))
ROWS, SYMBOLS, STEPS = (1, 16), 100, 200
OURS, STEPPED = "machine code", "step by step"
PAUSE = 0.02  # seconds between turns: the threads of the one before may spin for a while
WIDE = 140
Write = Callable[[], Array]


@dataclass(frozen=True)
class Model:
    """A language model to time: a cell and its size."""

    cell: str
    hidden: int

    @property
    def params(self) -> dict[str, Any]:
        """Random parameters of the model, the same each time, in stepnet's layout."""
        random = np.random.default_rng(0)
        shapes = {"embedding": (SYMBOLS, self.hidden), "dense": (self.hidden, SYMBOLS)}
        made: dict[str, Any] = {name: random.standard_normal(s, np.float32) for name, s in shapes.items()}
        return {**made, "cell": dict(cells.CELLS[self.cell].parameters(self.hidden, self.hidden))}

    def rnn(self) -> sn.RNN:
        """Returns the model as a recurrence from symbols to scores."""
        return one_step.symbols(self.cell, self.params, self.hidden)


@dataclass(frozen=True)
class Measured:
    """The result for one case: seconds of a symbol of all sequences in every round, by name."""

    cell: str
    hidden: int
    rows: int
    seconds: dict[str, list[float]]

    def time(self, name: str) -> float:
        """Returns the median seconds of an implementation."""
        return median(self.seconds[name])

    def ratio(self, other: str) -> float:
        """Returns the median time of implementation `other` over stepnet's."""
        return one_step.ratio(self.seconds[OURS], self.seconds[other])


# ---- the ways ----------------------------------------------------------------------------------------------


def ours(model: Model, start: Array) -> dict[str, Write]:
    """Returns functions that generate by stepnet from symbols `start`: without and with Python each step."""
    rnn = model.rnn()

    def write(feed: Any = None) -> Array:
        """Generates `STEPS` symbols for each sequence by stepnet, to be timed; returns them [rows, steps]."""
        return sn.generate(rnn, start, max_steps=STEPS, feed=feed).values.reshape(len(start), STEPS)

    return {OURS: write, STEPPED: lambda: write(np.asarray)}


def step_model(model: Model, rows: int) -> bytes:
    """Returns the bytes of an ONNX model of one step: symbols [rows] and states to the best and new ones."""
    helper, states, params = onnx.helper, STATES[model.cell], model.params
    nodes = [
        helper.make_node("Gather", ["embedding", "symbol"], ["x"]),
        helper.make_node("Unsqueeze", ["x", "zero"], ["steps"]),
        one_step.node(model.cell, "steps", model.hidden),
        helper.make_node("Squeeze", ["new_h", "zero"], ["last"]),
        helper.make_node("MatMul", ["last", "dense"], ["scores"]),
        helper.make_node("ArgMax", ["scores"], ["new_symbol"], axis=1, keepdims=0),
    ]
    arrays = one_step.in_layout(model.cell, params["cell"], "onnx")
    arrays |= {name: params[name] for name in ("embedding", "dense")} | {"zero": np.zeros(1, np.int64)}

    def value(name: str) -> Any:
        """Describes an input or output of the ONNX model by its name: int64 symbols, or a float32 state."""
        if name.endswith("symbol"):
            return helper.make_tensor_value_info(name, onnx.TensorProto.INT64, [rows])
        return helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, rows, model.hidden])

    inputs = [value(name) for name in ("symbol", *states)]
    results = [value(f"new_{name}") for name in ("symbol", *states)]
    return one_step.model(nodes, inputs, results, arrays)


def with_onnxruntime(model: Model, start: Array, count: int) -> Write:
    """Returns a function that generates by onnxruntime with `count` threads: two bindings alternate, and each
    reads what the other wrote.
    """
    rows = len(start)
    shape = 1, rows, model.hidden
    memory = [
        {"symbol": np.zeros(rows, np.int64)}
        | {name: np.zeros(shape, np.float32) for name in STATES[model.cell]}
        for _ in range(2)
    ]

    runs = one_step.bindings(one_step.session(step_model(model, rows), count), memory, {})
    written = np.zeros((STEPS, rows), np.int64)

    def write() -> Array:
        """Generates `STEPS` symbols for each sequence, [rows, steps], by onnxruntime, to be timed."""
        for array in memory[0].values():
            array[...] = 0
        memory[0]["symbol"][...] = start
        for step in range(STEPS):
            runs[step % 2]()
            written[step] = memory[1 - step % 2]["symbol"]
        return written.T.copy()

    return write


def with_torch(model: Model, start: Array) -> Write:
    """Returns a function that generates by PyTorch's cell between an embedding and a dense layer."""
    cell = one_step.torch_cell(model.cell, model.params["cell"], model.hidden, model.hidden)
    embedding, dense = (torch.from_numpy(model.params[name]) for name in ("embedding", "dense"))
    first = torch.from_numpy(start)

    def write() -> Array:
        """Generates `STEPS` symbols for each sequence by PyTorch, to be timed; returns them [rows, steps]."""
        symbol, state, written = first, None, list[Any]()
        with torch.inference_mode():
            for _ in range(STEPS):
                state = cell(embedding[symbol], state)
                symbol = ((state if model.cell == "gru" else state[0]) @ dense).argmax(1)
                written.append(symbol)
            return torch.stack(written, 1).numpy()

    return write


def ways(model: Model, rows: int) -> dict[str, Write]:
    """Returns the functions that generate symbols for `rows` sequences, by name, stepnet's first."""
    start = np.arange(rows)
    found = ours(model, start)
    found |= {f"onnxruntime, {count}": with_onnxruntime(model, start, count) for count in (1, 2)}
    return {**found, "torch": with_torch(model, start)}


# ---- how long they take ------------------------------------------------------------------------------------


def measured(model: Model, rows: int, rounds: int) -> Measured:
    """Times all ways to generate in alternation; raises `AssertionError` if they write other symbols."""
    found = ways(model, rows)
    expected = found[OURS]()
    for name, write in found.items():
        assert np.array_equal(write(), expected), f"{name} writes other symbols"
    seconds: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds):
        for name, write in found.items():
            time.sleep(PAUSE)
            write()
            begun = time.perf_counter()
            write()
            seconds[name].append((time.perf_counter() - begun) / STEPS)
    return Measured(model.cell, model.hidden, rows, seconds)


def table(found: list[Measured]) -> Table:
    """Returns the table of microseconds of a symbol, and of ratios to stepnet's."""
    shown = Table(title="a symbol of each sequence: microseconds, and threads")
    shown.add_column("model, sequences", no_wrap=True)
    names = list(found[0].seconds)
    for name in (*names, *(f"{name} / ours" for name in names[1:])):
        shown.add_column(name, justify="right")
    for case in found:
        times = [f"{case.time(name) * 1e6:.1f}" for name in names]
        ratios = [f"{case.ratio(name):.2f}" for name in names[1:]]
        shown.add_row(f"{case.cell} {case.hidden}, {case.rows}", *times, *ratios)
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time generation beside onnxruntime and PyTorch, and print a table or JSON."""
    console = Console(stderr=as_json)
    torch.set_num_threads(threads())
    cases = [(Model(*case), rows) for case in CASES for rows in ROWS]
    found = [measured(*case, rounds) for case in track(cases, "writing", console=console, transient=True)]
    if as_json:
        ratios = [{"ratios": {name: case.ratio(name) for name in case.seconds}} for case in found]
        typer.echo(json.dumps([{**asdict(c), **r} for c, r in zip(found, ratios, strict=True)], indent=1))
        return
    if not console.is_terminal:
        console = Console(width=WIDE)
    console.print(table(found))
    console.print(f"{STEPS} symbols; {threads()} threads; {rounds} rounds.", style="dim")


if __name__ == "__main__":
    typer.run(main)
