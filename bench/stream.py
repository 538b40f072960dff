"""Times one step, of a stream and as a call, beside onnxruntime and a cell in PyTorch.

    python -m bench.stream                  a table
    python -m bench.stream --rounds 51      with more turns for each
    python -m bench.stream --json

One sequence, float32, one step at a time: each step's inputs become its output, and the state stays for the
next one. A call of a recurrence over a sequence of one step, from the state that the call before it gave,
does the same, and looks at its arguments each time. onnxruntime runs a model of one GRU or LSTM for a single
step, of fixed shapes, which gives the new state and nothing else (the output is part of it), in each way that
there is, with one and with two threads: `run`, which gives new arrays that are fed to the next step; and
`run_with_iobinding` on memory that is bound once, where a step's inputs are copied in, two bindings alternate
so that one's new state is the other's old one, and the output is read where it lies. Its options: all
optimisations of the graph, sequential execution, one thread between operators; a session of two threads lets
them spin, as it does by default. The best of the four counts. PyTorch runs `GRUCell` or `LSTMCell` under
inference mode, with threads as many as stepnet's.

All are given their inputs in the form that they like best, and are checked to give the same outputs. They
alternate in turns of a few hundred steps. A time is the median of all turns; a ratio that of each round's.
"""

import json
import os
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
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

from bench import one_step
from bench.one_step import STATES
from stepnet import cells
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads

Array = np.ndarray
MOST = {"gru": 0.5}  # the promised limit, in times onnxruntime's
MOST_OF_RUN = 2.5  # the promised limit for a call, in times onnxruntime's `run`
CELLS = ("gru", "lstm")
SIZES = ((64, 64), (64, 256), (256, 256))  # inputs x hidden
OURS, CALL = "stepnet", "stepnet, a call"
CHECKED, WARM, LENGTH = 20, 20, 256  # numbers of steps: compared, not counted, and in the sequence
PAUSE = 0.02  # seconds between turns: the threads of the one before may spin for a while
WIDE = 220  # columns of a table that is written to a file or a pipe


@dataclass(frozen=True)
class Case:
    """A cell to time, and its sizes."""

    cell: str
    inputs: int
    hidden: int

    @property
    def params(self) -> dict[str, Array]:
        """Random parameters of the cell, the same each time, in stepnet's layout."""
        return dict(cells.CELLS[self.cell].parameters(self.inputs, self.hidden))

    @property
    def states(self) -> tuple[str, ...]:
        """The names of the state's arrays, the output first."""
        return STATES[self.cell]

    def sequence(self) -> list[Array]:
        """Returns the inputs of each step, [1, inputs]."""
        return list(np.random.default_rng(0).standard_normal((LENGTH, 1, self.inputs), np.float32))


@dataclass(frozen=True)
class Way:
    """An implementation to time.

    step: runs one step, from an input to the output. form: converts an input to the form that `step` takes.
    around: makes the context that steps run in.
    """

    name: str
    step: Callable[[Any], Any]
    form: Callable[[Array], Any] = lambda x: x
    around: Callable[[], AbstractContextManager[Any]] = nullcontext

    def outputs(self, sequence: list[Array]) -> Array:
        """Runs a sequence; returns the outputs [steps, hidden]."""
        with self.around():
            return np.array([np.ravel(self.step(self.form(x)).tolist()) for x in sequence])

    def turn(self, sequence: list[Any], steps: int) -> float:
        """Returns the mean seconds of a step among `steps`; sequence: inputs converted by `form`."""
        turn = [sequence[at % len(sequence)] for at in range(steps)]
        with self.around():
            for x in sequence[:WARM]:
                self.step(x)
            begun = time.perf_counter()
            for x in turn:
                self.step(x)
            return (time.perf_counter() - begun) / steps


@dataclass(frozen=True)
class Found:
    """The result for one case: seconds of a step in every round, by the implementation's name."""

    cell: str
    inputs: int
    hidden: int
    seconds: dict[str, list[float]]

    @property
    def best(self) -> str:
        """The name of the fastest of onnxruntime's ways."""
        return self.quickest("onnx")

    def quickest(self, begins: str) -> str:
        """Returns the fastest implementation whose name begins with `begins`."""
        return min((name for name in self.seconds if name.startswith(begins)), key=self.time)

    def time(self, name: str) -> float:
        """Returns the median seconds of an implementation."""
        return median(self.seconds[name])

    def ratio(self, other: str, ours: str = OURS) -> float:
        """Returns the median time of `ours`, by default stepnet's stream, over that of `other`."""
        return one_step.ratio(self.seconds[other], self.seconds[ours])

    @property
    def call_of_run(self) -> float:
        """The time of a call of stepnet over that of onnxruntime's `run`."""
        return self.ratio(self.quickest("onnxruntime,"), CALL)

    @property
    def kept(self) -> bool | None:
        """True if stepnet is as fast as promised beside onnxruntime's best; None without a promise."""
        return self.ratio(self.best) <= MOST[self.cell] if self.cell in MOST else None


# ---- what is run -------------------------------------------------------------------------------------------


def streamed(case: Case) -> Way:
    """Returns stepnet's stream of one row, to be timed."""
    return Way(OURS, cells.rnn(case.cell, case.params).stream(rows=1).step)


def called(case: Case) -> Way:
    """Returns stepnet called for each step, from the memory that the call before it gave, to be timed."""
    rnn, memory = cells.rnn(case.cell, case.params), None

    def step(x: Array) -> Array:
        """Calls the recurrence for one step, to be timed; keeps the memory for the next."""
        nonlocal memory
        outputs, memory = rnn(x, memory)
        return outputs

    return Way(CALL, step, lambda x: x[None])


def model(case: Case) -> bytes:
    """Makes the bytes of an ONNX model of a step: x [1, 1, inputs], h (and c) [1, 1, hidden] to new."""

    def value(name: str, features: int) -> Any:
        """Describes a float32 input or output [1, 1, features] of the ONNX model."""
        return onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [1, 1, features])

    inputs = [value("x", case.inputs), *(value(name, case.hidden) for name in case.states)]
    results = [value(f"new_{name}", case.hidden) for name in case.states]
    nodes = [one_step.node(case.cell, "x", case.hidden)]
    return one_step.model(nodes, inputs, results, one_step.in_layout(case.cell, case.params, "onnx"))


def with_run(case: Case, count: int) -> Way:
    """Returns onnxruntime's `run` with `count` threads, to be timed; it is fed its own states."""
    run, names = one_step.session(model(case), count).run, [f"new_{name}" for name in case.states]
    fed = {name: np.zeros((1, 1, case.hidden), np.float32) for name in case.states}

    def gru(x: Array) -> Array:
        """Runs a step of a GRU by onnxruntime, to be timed; returns the new state."""
        fed["x"] = x
        (fed["h"],) = run(names, fed)
        return fed["h"]

    def lstm(x: Array) -> Array:
        """Runs a step of an LSTM by onnxruntime, to be timed; returns the new h."""
        fed["x"] = x
        fed["h"], fed["c"] = run(names, fed)
        return fed["h"]

    return Way(f"onnxruntime, {count}", {"gru": gru, "lstm": lstm}[case.cell], lambda x: x[None])


def with_binding(case: Case, count: int) -> Way:
    """Returns onnxruntime's `run_with_iobinding` with `count` threads, to be timed.

    Two bindings alternate: each one's new state is the other's old one.
    """
    place = np.zeros((1, 1, case.inputs), np.float32)
    memory = [{name: np.zeros((1, 1, case.hidden), np.float32) for name in case.states} for _ in range(2)]

    runs = one_step.bindings(one_step.session(model(case), count), memory, {"x": place})
    outputs = [memory[1]["h"], memory[0]["h"]]
    turn = 1

    def step(x: Array) -> Array:
        """Copies the input to bound memory, and runs the next binding, to be timed; returns the output."""
        nonlocal turn
        turn = 1 - turn
        place[...] = x
        runs[turn]()
        return outputs[turn]

    return Way(f"onnxruntime bound, {count}", step, lambda x: x[None])


def in_torch(case: Case) -> Way:
    """Returns PyTorch's cell under inference mode, to be timed."""
    cell = one_step.torch_cell(case.cell, case.params, case.inputs, case.hidden)
    state: Any = None

    def gru(x: torch.Tensor) -> torch.Tensor:
        """Runs a step of PyTorch's GRU cell, to be timed; returns the new state."""
        nonlocal state
        state = cell(x, state)
        return state

    def lstm(x: torch.Tensor) -> torch.Tensor:
        """Runs a step of PyTorch's LSTM cell, to be timed; returns the new h."""
        nonlocal state
        state = cell(x, state)
        return state[0]

    return Way("torch", {"gru": gru, "lstm": lstm}[case.cell], torch.from_numpy, torch.inference_mode)


def ways(case: Case) -> list[Way]:
    """Returns all implementations of a case, stepnet's stream first."""
    counts = (1, 2)
    bound = [with_binding(case, count) for count in counts]
    return [
        streamed(case),
        called(case),
        *(with_run(case, count) for count in counts),
        *bound,
        in_torch(case),
    ]


# ---- how long it takes -------------------------------------------------------------------------------------


def check(case: Case, found: list[Way]) -> None:
    """Asserts that all implementations give the outputs of the first, stepnet's, but for rounding."""
    sequence = case.sequence()[:CHECKED]
    ours = found[0].outputs(sequence)
    assert np.abs(ours).max() > 0.01, "all outputs are next to nothing"
    most = 2 * tolerance("float32", CHECKED, case.inputs + case.hidden)
    for way in found[1:]:
        away = np.abs(way.outputs(sequence) - ours).max()
        assert away <= most, f"{case}: {way.name} is {away:.1e} away from ours, where {most:.1e} is rounding"


def measured(case: Case, rounds: int, steps: int) -> Found:
    """Times all implementations of a case in alternation; raises `AssertionError` if their outputs differ.

    steps: those of a turn.
    """
    found = ways(case)
    check(case, found)
    given = [[way.form(x) for x in case.sequence()] for way in found]
    seconds: dict[str, list[float]] = {way.name: [] for way in found}
    for _ in range(rounds):
        for way, sequence in zip(found, given, strict=True):
            time.sleep(PAUSE)
            seconds[way.name].append(way.turn(sequence, steps))
    return Found(case.cell, case.inputs, case.hidden, seconds)


# ---- what one sees -----------------------------------------------------------------------------------------


def table(found: list[Found]) -> Table:
    """Returns the table of all results, with a verdict on the promised time."""
    shown = Table(title="one step of a stream: microseconds, and threads")
    shown.add_column("cell, inputs x hidden", no_wrap=True)
    names = list(found[0].seconds)
    for name in (*names, "of onnxruntime's time", "of torch's", "", "call, of run"):
        shown.add_column(name, justify="right")
    for one in found:
        times = [
            f"[bold]{one.time(name) * 1e6:.2f}[/]" if name == one.best else f"{one.time(name) * 1e6:.2f}"
            for name in names
        ]
        ratios = [f"{one.ratio(name):.2f}" for name in (one.best, "torch")]
        verdict = {True: "[green]kept[/]", False: "[red]not kept[/]", None: ""}[one.kept]
        shown.add_row(
            f"{one.cell} {one.inputs}x{one.hidden}", *times, *ratios, verdict, f"{one.call_of_run:.2f}"
        )
    return shown


def main(
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 25,
    steps: Annotated[int, typer.Option(min=1, help="How many steps of a turn count.")] = 500,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Time one step of a stream beside onnxruntime and PyTorch, and print a table or JSON."""
    console = Console(stderr=as_json)
    busy = os.getloadavg()[0]
    torch.set_num_threads(threads())
    cases = [Case(cell, *size) for cell in CELLS for size in SIZES]
    found = [
        measured(case, rounds, steps) for case in track(cases, "stepping", console=console, transient=True)
    ]
    if as_json:
        ratios = [
            {"best": one.best, "ratio": one.ratio(one.best), "kept": one.kept, "call_of_run": one.call_of_run}
            for one in found
        ]
        typer.echo(json.dumps([{**asdict(one), **r} for one, r in zip(found, ratios, strict=True)], indent=1))
        return
    if not console.is_terminal:
        console = Console(width=WIDE)
    console.print(table(found))
    most = ", ".join(f"{most:g} times onnxruntime's best (bold) for a {cell}" for cell, most in MOST.items())
    promise = f"Promised are at most {most}"
    console.print(
        f"{promise}, and {MOST_OF_RUN:g} times its `run` for a call. {threads()} threads; {rounds} rounds; "
        f"load {busy:.1f} at the start.",
        style="dim",
    )


if __name__ == "__main__":
    typer.run(main)
