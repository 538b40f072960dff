"""Times small calls beside onnxruntime, and beside another revision of stepnet.

    python -m bench.calls                               a table
    python -m bench.calls --against 3e0a93ad            beside another revision, or a folder with a checkout
    python -m bench.calls --case "mean" --rounds 51     the cases whose names contain a text
    python -m bench.calls --json

One thread, float32, 16 inputs and 16 units, small enough that what surrounds the machine code counts. Calls
of fixed lengths are prepared by then. Of unseen lengths each turn has sequences of 5 to 64 steps, each once,
so that no length comes often enough to be prepared alone. onnxruntime runs the same equations and weights
with one thread; results are compared first. It has no model of several sequences of different lengths here,
no gradients and no streams.

Each revision is a process that waits for its turn, and imports its own package; the other one runs this
file's cases, too. onnxruntime has a process of its own. All alternate in each round, which has some turns of
a few milliseconds. A figure is the mean of the calls of a turn; the table has the median of all turns and the
least, in microseconds.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import numpy as np
import onnx
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from bench import one_step
from bench.versions import ROOT, check_out
from stepnet import cells
from stepnet.compiler.net.tolerance import tolerance

Array = np.ndarray
Run = Callable[[Any], Any]
SIZE, STEPS, WORDS, TAGS = 16, 20, 100, 5
SHORTEST, LONGEST = 5, 64
WARM, SECONDS = 20, 4e-3  # calls before the first turn, and the time of a turn
HERE, OTHER = "stepnet", "onnxruntime"
F32, I64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64


@dataclass(frozen=True)
class Case:
    """Calls to time.

    model: makes stepnet's model.
    inputs: the arguments of the calls of a turn, each a tuple.
    other: makes the bytes of the model for onnxruntime, and the name of its sequence; None for no comparison.
    use: makes the function that a turn calls from the model, if it does not call the model itself.
    """

    model: Callable[[], Any]
    inputs: Callable[[], list[tuple[Any, ...]]]
    other: Callable[[], bytes] | None = None
    use: Callable[[Any], Run] | None = None


# ---- stepnet's models --------------------------------------------------------------------------------------


def weights(inputs: int, seed: int) -> dict[str, Array]:
    """Makes random parameters of a GRU of `SIZE` units, in stepnet's layout."""
    random = np.random.default_rng(seed)
    shapes = cells.CELLS["gru"].parameters(inputs, SIZE)
    return {name: random.uniform(-0.5, 0.5, array.shape).astype("f4") for name, array in shapes.items()}


def gru(inputs: int = SIZE, seed: int = 0, reverse: bool = False) -> sn.RNN:
    """Makes a GRU with random parameters."""
    return cells.rnn("gru", weights(inputs, seed), reverse=reverse)


def both(inputs: int, seed: int) -> sn.Bidirectional:
    """Makes a bidirectional layer of two GRUs."""
    return sn.Bidirectional(gru(inputs, seed), gru(inputs, seed + 1, reverse=True))


def two() -> sn.Stack:
    """Makes two GRUs, one on the other."""
    return sn.Stack([gru(seed=0), gru(seed=1)])


def directions() -> sn.Stack:
    """Makes two bidirectional layers."""
    return sn.Stack([both(SIZE, 0), both(2 * SIZE, 2)])


def mean() -> sn.Graph:
    """Makes a graph of a GRU whose inputs are the outputs of another one less their mean over the steps."""
    first, second = gru(seed=0), gru(seed=1)

    def model(x: Any, _: Any) -> Any:
        """Returns the outputs of the second recurrence."""
        y = first(x)[0]
        return second(y - sn.expand(sn.reduce(y, "mean"), y))[0]

    return sn.Graph(model)


def matrix(rows: int, columns: int) -> Array:
    """Makes a random matrix."""
    return np.random.default_rng(rows).uniform(-0.5, 0.5, (rows, columns)).astype("f4")


def tagger() -> sn.Graph:
    """Makes an embedding, two bidirectional layers and a softmax over tags."""
    layers, params = directions(), {"E": matrix(WORDS, SIZE), "W": matrix(2 * SIZE, TAGS)}
    return sn.Graph(lambda words, p: sn.softmax(layers(p["E"][words])[0] @ p["W"]), params)


# ---- the same for onnxruntime ------------------------------------------------------------------------------


class Written:
    """Writer of an ONNX model: nodes and the arrays that they read."""

    def __init__(self) -> None:
        """Begins an empty model."""
        self.nodes, self.arrays = list[onnx.NodeProto](), dict[str, Array]()

    def node(self, operation: str, *inputs: str, **options: Any) -> str:
        """Adds a node with one result; returns the name of this."""
        name = f"value{len(self.nodes)}"
        self.nodes.append(onnx.helper.make_node(operation, inputs, [name], **options))
        return name

    def array(self, array: Array) -> str:
        """Adds an array; returns its name."""
        name = f"array{len(self.arrays)}"
        self.arrays[name] = array
        return name

    def layer(self, x: str, inputs: int, seeds: Sequence[int], memory: str = "") -> str:
        """Adds a GRU, of a direction for each of the seeds; returns its outputs [time, 1, features]."""
        own = [one_step.in_layout("gru", weights(inputs, seed), "onnx") for seed in seeds]
        arrays = [self.array(np.concatenate([each[name] for each in own])) for name in ("W", "R", "B")]
        options = {"hidden_size": SIZE, "linear_before_reset": 1}
        direction = "bidirectional" if len(seeds) == 2 else "forward"
        y = self.node("GRU", x, *arrays, "", memory, direction=direction, **options)
        turned = self.node("Transpose", y, perm=[0, 2, 1, 3])  # from [time, directions, batch, units]
        return self.node("Reshape", turned, self.array(np.array([0, 0, -1])))

    def model(self, result: str, inputs: dict[str, tuple[int, list[Any]]]) -> bytes:
        """Returns the bytes of the model. inputs: the type and the shape of each input by name."""
        given = [onnx.helper.make_tensor_value_info(name, *value) for name, value in inputs.items()]
        results = [onnx.helper.make_tensor_value_info(result, F32, [None, 1, None])]
        return one_step.model(self.nodes, given, results, self.arrays)


SEQUENCE: dict[str, tuple[int, list[Any]]] = {"x": (F32, ["steps", 1, SIZE])}


def layers_elsewhere(written: Written, x: str) -> str:
    """Adds two bidirectional layers."""
    return written.layer(written.layer(x, SIZE, (0, 1)), 2 * SIZE, (2, 3))


def step_elsewhere() -> bytes:
    """Makes the model of a GRU that begins with a memory."""
    written = Written()
    return written.model(written.layer("x", SIZE, (0,), "h"), {**SEQUENCE, "h": (F32, [1, 1, SIZE])})


def gru_elsewhere() -> bytes:
    """Makes the model of a GRU."""
    written = Written()
    return written.model(written.layer("x", SIZE, (0,)), SEQUENCE)


def two_elsewhere() -> bytes:
    """Makes the model of two GRUs."""
    written = Written()
    return written.model(written.layer(written.layer("x", SIZE, (0,)), SIZE, (1,)), SEQUENCE)


def directions_elsewhere() -> bytes:
    """Makes the model of two bidirectional layers."""
    written = Written()
    return written.model(layers_elsewhere(written, "x"), SEQUENCE)


def mean_elsewhere() -> bytes:
    """Makes the model of two GRUs, of which the second reads the first's outputs less their mean."""
    written = Written()
    y = written.layer("x", SIZE, (0,))
    centred = written.node("Sub", y, written.node("ReduceMean", y, axes=[0]))
    return written.model(written.layer(centred, SIZE, (1,)), SEQUENCE)


def tagger_elsewhere() -> bytes:
    """Makes the model of a tagger."""
    written = Written()
    y = layers_elsewhere(written, written.node("Gather", written.array(matrix(WORDS, SIZE)), "x"))
    scores = written.node("MatMul", y, written.array(matrix(2 * SIZE, TAGS)))
    return written.model(written.node("Softmax", scores, axis=-1), {"x": (I64, ["steps", 1])})


# ---- the cases ---------------------------------------------------------------------------------------------


def array(*shape: int) -> Array:
    """Makes random inputs."""
    return np.random.default_rng(0).standard_normal(shape, np.float32)


def unseen(rows: int, words: bool = False) -> list[tuple[sn.Ragged]]:
    """Makes sequences of 5 to 64 steps: of one sequence each length once, in random order.

    words: whether a step is the number of a word.
    """
    random = np.random.default_rng(rows)
    lengths = random.permuted(np.tile(np.arange(SHORTEST, LONGEST + 1), (rows, 1)), axis=1).T
    made = list[tuple[sn.Ragged]]()
    for own in lengths:
        total = int(own.sum())
        values = random.integers(0, WORDS, total) if words else random.standard_normal((total, SIZE), "f4")
        made.append((sn.Ragged(values, (np.cumsum([0, *own]),)),))
    return made


def padded(rows: int) -> list[tuple[Any, ...]]:
    """Makes the sequences of `unseen` as padded arrays, with their lengths."""
    return [(each.to_padded()[0], None, None, np.diff(each.offsets[0])) for (each,) in unseen(rows)]


def of_some_rows(most: int) -> list[tuple[sn.Ragged]]:
    """Makes the first sequences of each of those of `unseen`, another number of them in each call."""
    return [(each[: 1 + number % most],) for number, (each,) in enumerate(unseen(most))]


def gradients(model: Any) -> Run:
    """Makes the function that runs a model and its backward pass, with the outputs as their cotangents."""
    forward = sn.vjp(model)

    def run(given: tuple[Any, ...]) -> Any:
        """Returns the gradients of parameters, inputs and memories."""
        (outputs, _), backward = forward(given[0])
        return backward(outputs)

    return run


def stream(model: Any) -> Run:
    """Makes the function that runs a step of a stream of a model."""
    step = model.stream(rows=1).step
    return lambda given: step(given[0])


CASES: dict[str, Case] = {
    "a step of a GRU": Case(gru, lambda: [(array(1, 1, SIZE), array(1, SIZE))], step_elsewhere),
    "a step of two layers": Case(two, lambda: [(array(1, 1, SIZE),)], two_elsewhere),
    "two bidirectional layers, 20 steps": Case(
        directions, lambda: [(array(1, STEPS, SIZE),)], directions_elsewhere
    ),
    "a graph with a mean, 20 steps": Case(mean, lambda: [(array(1, STEPS, SIZE),)], mean_elsewhere),
    "unseen lengths, a GRU": Case(gru, lambda: unseen(1), gru_elsewhere),
    "unseen lengths, two bidirectional layers": Case(directions, lambda: unseen(1), directions_elsewhere),
    "unseen lengths, a tagger": Case(tagger, lambda: unseen(1, words=True), tagger_elsewhere),
    "unseen lengths, a graph with a mean": Case(mean, lambda: unseen(1), mean_elsewhere),
    "unseen lengths, 16 sequences, a GRU": Case(gru, lambda: unseen(16)),
    "unseen lengths, 40 sequences, a GRU": Case(gru, lambda: unseen(40)),
    "unseen lengths, 40 sequences, two bidirectional layers": Case(directions, lambda: unseen(40)),
    "unseen lengths, 4 padded sequences, a GRU": Case(gru, lambda: padded(4)),
    "unseen lengths, 4 padded sequences, two bidirectional layers": Case(directions, lambda: padded(4)),
    "unseen numbers of sequences, 1 to 60, a GRU": Case(gru, lambda: of_some_rows(60)),
    "the gradients of a GRU, 20 steps": Case(gru, lambda: [(array(1, STEPS, SIZE),)], use=gradients),
    "the gradients of a GRU, 16 sequences": Case(gru, lambda: [(array(16, STEPS, SIZE),)], use=gradients),
    "the gradients of two layers, 20 steps": Case(two, lambda: [(array(1, STEPS, SIZE),)], use=gradients),
    "a step of a stream of two layers": Case(two, lambda: [(array(1, SIZE),)], use=stream),
}


# ---- a process that runs turns -----------------------------------------------------------------------------


def ours(case: Case) -> Run:
    """Makes the function that runs stepnet's model on the arguments of a call; returns the outputs."""
    model = case.model()
    if case.use is not None:
        return case.use(model)
    if isinstance(model, sn.Graph):
        return lambda given: model(given[0])
    return lambda given: model(*given)[0]


def theirs(case: Case) -> Run:
    """Makes the function that runs onnxruntime's model on the inputs of a call; returns the outputs."""
    assert case.other is not None
    session = one_step.session(case.other(), 1)
    names = [each.name for each in session.get_inputs()]
    return lambda given: session.run(None, dict(zip(names, given, strict=True)))[0]


def time_major(given: tuple[Any, ...]) -> tuple[Array, ...]:
    """Returns the arguments of a call as onnxruntime reads them: [time, 1, features]."""
    x, *memory = given
    x = x.values[:, None] if isinstance(x, sn.Ragged) else np.moveaxis(x, 0, 1)
    return np.ascontiguousarray(x), *(each[None] for each in memory)


def flat(outputs: Any) -> Array:
    """Returns the outputs of one sequence as [time, features]."""
    values = outputs.values if isinstance(outputs, sn.Ragged) else outputs
    return values.reshape(-1, values.shape[-1])


class Turns:
    """Runs of one side of a case, in turns."""

    def __init__(self, name: str, side: str) -> None:
        """Makes the model, compares its results with those of stepnet, and runs it some times."""
        case = CASES[name]
        given = case.inputs()
        self.run, self.given, self.at = ours(case), given, 0
        if side == OTHER:
            expected, self.run, self.given = self.run, theirs(case), list(map(time_major, given))
            for one, other in zip(given, self.given, strict=True):
                away = np.abs(flat(expected(one)) - flat(self.run(other))).max()
                if away > 4 * tolerance("float32", LONGEST, 2 * SIZE):
                    raise SystemExit(f"{name}: the results of stepnet and {side} differ by {away:.2g}")
        for _ in range(WARM):
            self.call()
        begun = time.perf_counter()
        for _ in range(WARM):
            self.call()
        self.calls = max(1, round(SECONDS * WARM / (time.perf_counter() - begun)))

    def call(self) -> None:
        """Runs the next call."""
        self.at = (self.at + 1) % len(self.given)
        self.run(self.given[self.at])

    def turn(self) -> float:
        """Runs the calls of a turn; returns the mean microseconds of one."""
        run, given, calls = self.run, self.given, self.calls
        turn = [given[(self.at + number) % len(given)] for number in range(calls)]
        self.at += calls
        begun = time.perf_counter()
        for each in turn:
            run(each)
        return (time.perf_counter() - begun) / calls * 1e6


def answer() -> None:
    """Runs a turn for each line on stdin, ["case", "side"] as JSON, and writes its microseconds to stdout."""
    sn.set_threads(1)
    known = dict[tuple[str, str], Turns]()
    for line in sys.stdin:
        name, side = json.loads(line)
        if (name, side) not in known:
            known[name, side] = Turns(name, side)
        print(known[name, side].turn(), flush=True)


# ---- the alternation ---------------------------------------------------------------------------------------


@contextmanager
def process(tree: Path) -> Iterator[Callable[[str, str], float]]:
    """Starts a process with the package of a checkout; yields the function that gives a case and a side a
    turn there, and returns the microseconds of a call.
    """
    path = os.pathsep.join(map(str, (tree / "src", ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "bench.calls", "--answer"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdin is not None
        assert running.stdout is not None
        to, back = running.stdin, running.stdout

        def turn(name: str, side: str) -> float:
            """Gives a case a turn in this process."""
            print(json.dumps([name, side]), file=to, flush=True)
            answered = back.readline()
            if not answered:
                raise SystemExit(f"{name}, {side}: the process of {tree} has ended; its error is above")
            return float(answered)

        yield turn
        to.close()


@dataclass(frozen=True)
class Found:
    """The result for one case: microseconds of a call in every turn, by side."""

    name: str
    turns: dict[str, list[float]]

    def text(self, side: str) -> str:
        """Returns the median and the least time of a side; nothing if it did not run."""
        times = self.turns.get(side, [])
        return f"{median(times):.1f}  {min(times):.1f}" if times else ""


def measured(names: Sequence[str], trees: dict[str, Path], rounds: int, quiet: Console) -> list[Found]:
    """Times the cases in all processes in alternation. trees: the checkout of each side."""
    with ExitStack() as stack:
        sides = {**trees, OTHER: ROOT}
        turns = {side: stack.enter_context(process(tree)) for side, tree in sides.items()}
        found = [Found(name, {}) for name in names]
        for _ in track(range(rounds), "rounds", console=quiet, transient=True):
            for each in found:
                for side, turn in turns.items():
                    if side != OTHER or CASES[each.name].other is not None:
                        each.turns.setdefault(side, []).append(turn(each.name, side))
    return found


def table(found: Sequence[Found], sides: Sequence[str], rounds: int) -> Table:
    """Returns the table of all cases."""
    shown = Table("case", *sides, title=f"microseconds of a call, median and least of {rounds} turns")
    for each in found:
        shown.add_row(each.name, *map(each.text, sides))
    return shown


def main(
    case: Annotated[list[str] | None, typer.Option(help="Cases whose names contain this.")] = None,
    against: Annotated[str | None, typer.Option(help="A revision, or a folder with a checkout.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 31,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    as_process: Annotated[bool, typer.Option("--answer", hidden=True)] = False,
) -> None:
    """Time small calls beside onnxruntime and another revision, and print a table or JSON."""
    if as_process:
        answer()
        return
    names = [name for name in CASES if case is None or any(text in name for text in case)]
    quiet = Console(stderr=True, quiet=as_json)
    with TemporaryDirectory() as folder:
        trees = {HERE: ROOT}
        if against is not None:
            given = Path(against)
            trees[against] = given if given.is_dir() else check_out(against, Path(folder))
        found = measured(names, trees, rounds, quiet)
    if as_json:
        print(json.dumps([{"case": each.name, "microseconds": each.turns} for each in found], indent=1))
        return
    Console(width=None if sys.stdout.isatty() else 160).print(table(found, [*trees, OTHER], rounds))


if __name__ == "__main__":
    typer.run(main)
