"""Measures how well the estimate chooses how threads share a call: predicted and measured times of each way.

    python -m bench.partition                       all of the table KINDS
    python -m bench.partition --what one --hidden 64 --hidden 128 --cell gru --rounds 15
    python -m bench.partition --what layers         stacks: by one thread, layer by layer, as wavefronts
    python -m bench.partition --what attention      decoders that attend to few keys, and to many
    python -m bench.partition --random 200 --seed 1    one recurrence, of sizes that are drawn
    python -m bench.partition --random 100 --training  both passes of training, of sizes that are drawn
    python -m bench.partition --json

100 steps, float32, inputs as wide as the memory; those of decoders are of `bench/attention.py`. Drawn sizes
are of 8 to 1,024 units, 1 to 64 rows and 10 to 300 steps, all log-uniform. All ways of a group of cases
alternate, in turns of some milliseconds, while each thread stays on its processor. The least time counts, of
calls in which no thread was late because of another process. Cases in which the chosen way was not the
fastest have as many turns again. `regret` is how much longer the chosen way takes than the best one, as the
geometric mean over all cases.
"""

import json
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from math import ceil, isfinite
from statistics import geometric_mean
from typing import Annotated, Any, Literal

import numpy as np
import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

import stepnet as sn
from bench.attention import Case as Decoder
from bench.attention import decoder
from stepnet import cells
from stepnet.compiler.plan import partition as model
from stepnet.compiler.plan.load import CallSize, Load, Machine
from stepnet.compiler.plan.partition import CallPartition, Concurrency, Partition, Wavefront
from stepnet.compiler.targets.cpu.running import arrangement, native
from stepnet.compiler.targets.cpu.threads.workers import WORKER_POOL
from stepnet.compiler.targets.limits import processors

STEPS, TURN = 100, 4e-3
GROUP = 25
"""So many cases are in memory, and take turns, at a time."""
MOST_WORK = 2e8
"""The multiply-adds of a drawn call, from which it has fewer steps."""
NAMES = {"alone": "one thread", "rows": "by rows", "units": "by units"}
TURNS = {"turn": "one by one", "once": "at once", "front": "wavefront"}


@dataclass(frozen=True)
class Timed:
    """The result for one way to share a call: microseconds predicted, and measured."""

    way: str
    predicted: float
    measured: float


@dataclass(frozen=True)
class Case:
    """The results for all ways to share a call, and the way that the estimate chose."""

    what: str
    hidden: int
    rows: int
    steps: int
    ways: tuple[Timed, ...]
    chosen: str

    @property
    def is_complete(self) -> bool:
        """Tells whether all ways were timed with all their threads."""
        return all(isfinite(way.measured) for way in self.ways)

    @property
    def regret(self) -> float:
        """The time of the chosen way over that of the best one; 1 if the choice was the best."""
        times = {way.way: way.measured for way in self.ways}
        return times[self.chosen] / min(times.values())

    @property
    def best(self) -> str:
        """The way that takes the least time."""
        return min(self.ways, key=lambda way: way.measured).way


@contextmanager
def replaced(module: Any, name: str, value: Any) -> Generator[None]:
    """Sets an attribute of a module to another value within the block, to override the estimate's choice."""
    before = getattr(module, name)
    setattr(module, name, value)
    try:
        yield
    finally:
        setattr(module, name, before)


@dataclass(frozen=True)
class Trial:
    """A case before it is timed: its ways as (name, predicted seconds), and the calls in that order."""

    what: str
    hidden: int
    rows: int
    ways: tuple[tuple[str, float], ...]
    chosen: str
    calls: Sequence[Callable[[], Any]]
    steps: int = STEPS

    def case(self, seconds: Sequence[float]) -> Case:
        """Returns the results of the case, from the measured seconds of each way."""
        pairs = zip(self.ways, seconds, strict=True)
        ways = tuple(Timed(name, 1e6 * guess, 1e6 * taken) for (name, guess), taken in pairs)
        return Case(self.what, self.hidden, self.rows, self.steps, ways, self.chosen)


def timed(call: Callable[[], Any]) -> float:
    """Calls for some milliseconds; returns the least seconds of a call, infinity if its threads were late in
    all of them.
    """
    call()
    least, count, begin = float("inf"), 0, time.perf_counter()
    while time.perf_counter() < begin + TURN or count < 2:
        seconds = WORKER_POOL.timed(call)
        least, count = min(least, float("inf") if seconds is None else seconds), count + 1
    return least


def made(cell: str, hidden: int, both: bool) -> sn.RNN | sn.Bidirectional:
    """Makes a recurrence of a cell, or both directions of one."""
    parameters = cells.CELLS[cell].parameters(hidden, hidden, seed=1)
    ahead = cells.rnn(cell, parameters)
    return sn.Bidirectional(ahead, cells.rnn(cell, parameters, reverse=True)) if both else ahead


def inputs(hidden: int, rows: int, steps: int = STEPS) -> np.ndarray:
    """Returns random inputs of a call [rows, steps, hidden]."""
    return np.random.default_rng(0).normal(size=(rows, steps, hidden)).astype("float32")


def one_case(cell: str, hidden: int, rows: int, steps: int = STEPS) -> Trial:
    """Prepares the ways to share a call of one recurrence."""
    x = inputs(hidden, rows, steps)
    trial = each_way(cell, hidden, rows, lambda: made(cell, hidden, both=False), lambda rnn: rnn(x))
    return replace(trial, steps=steps)


def forward_case(cell: str, hidden: int, rows: int, steps: int) -> Trial:
    """Prepares the ways to share the forward pass of training, which saves values for the backward pass."""
    x = inputs(hidden, rows, steps)
    trial = each_way(f"{cell} saving", hidden, rows, lambda: gradient(cell, hidden), lambda run: run(x))
    return replace(trial, steps=steps)


def backward_case(cell: str, hidden: int, rows: int, steps: int) -> Trial:
    """Prepares the ways to share the backward pass of training: its loop, with the sums behind it."""
    x, cotangent = inputs(hidden, rows, steps), inputs(hidden, rows, steps)

    def make() -> Callable[[Any], Any]:
        """Runs the forward pass; returns the backward pass."""
        return gradient(cell, hidden)(x)[1]

    trial = each_way(f"{cell} backward", hidden, rows, make, lambda backward: backward(cotangent))
    return replace(trial, steps=steps)


def gradient(cell: str, hidden: int) -> Any:
    """Makes the function that runs a recurrence and gives its gradients by the inputs and parameters."""
    return partial(sn.vjp(made(cell, hidden, both=False)), wrt=("params", "inputs"))


def drawn(count: int, seed: int) -> list[tuple[str, int, int, int]]:
    """Draws sizes of calls of one recurrence: a cell, its units, and the rows and steps of a call. Calls of
    more work than `MOST_WORK` have fewer steps.
    """
    random = np.random.default_rng(seed)

    def between(least: int, most: int) -> int:
        """Draws a number whose logarithm is uniform."""
        return round(float(np.exp(random.uniform(np.log(least), np.log(most)))))

    sizes = list[tuple[str, int, int, int]]()
    for _ in range(count):
        cell, units, rows, steps = (
            str(random.choice(CELLS)),
            between(8, 1024),
            between(1, 64),
            between(10, 300),
        )
        most = int(MOST_WORK / (rows * 8 * units * units))
        sizes.append((cell, units, rows, max(4, min(steps, most))))
    return sizes


def attending(name: str, hidden: int, rows: int) -> Trial:
    """Prepares the ways to share a call of a decoder with attention, such as "additive 10" (10 keys)."""
    scores, keys = name.rsplit(" ", 1)
    case, x = Decoder(scores, rows, int(keys), hidden), inputs(hidden, rows)
    random = np.random.default_rng(1)
    statics = [random.standard_normal((case.keys, hidden), np.float32) for _ in range(rows)]
    joined = sn.Ragged.from_list(statics)
    return each_way(name, hidden, rows, lambda: decoder(case), lambda rnn: rnn(x, statics=joined))


def each_way(what: str, hidden: int, rows: int, make: Callable[[], Any], run: Callable[[Any], Any]) -> Trial:
    """Prepares all ways to share a call among threads.

    make: returns the recurrence, which has a loop of steps. run: calls it. what: the name for the table.
    """
    seen: list[Partition] = []

    def as_chosen(*arguments: Any) -> Partition:
        """Notes the partition that the estimate chooses, and returns it."""
        seen.append(model.partition(*arguments))
        return seen[-1]

    ready = make()
    with replaced(native, "partition", as_chosen):
        run(ready)
    partition = max(seen, key=lambda each: each.weighed[0].seconds)
    names = [named(way) for way in partition.weighed]
    calls = [forced(make(), run, name) for name in names]
    ways = tuple((name, way.seconds) for name, way in zip(names, partition.weighed, strict=True))
    return Trial(what, hidden, rows, ways, named(partition.chosen), calls)


def named(way: CallPartition) -> str:
    """Returns the name of a way to share a call among threads, which is its column in the table."""
    return NAMES[way.how] + (f" ({way.threads})" if way.threads > 2 else "")


def forced(rnn: Any, run: Callable[[Any], Any], name: str) -> Callable[[], Any]:
    """Compiles a recurrence to be shared in the way `name`, or else by one thread; returns the call."""

    def in_that_way(load: Load, size: CallSize, most: int, machine: Machine, _: Any = None) -> Partition:
        """Chooses the way of that name in place of the estimate."""
        ways = tuple(model.ways_of(load, size, most, machine))
        return Partition(next((way for way in ways if named(way) == name), ways[0]), ways)

    with replaced(native, "partition", in_that_way):
        for _ in range(3):
            run(rnn)
    return lambda: run(rnn)


def both_directions(cell: str, hidden: int, rows: int) -> Trial:
    """Prepares both directions of a layer, at the same time and one after the other."""
    x, seen = inputs(hidden, rows), list[Concurrency]()

    def as_chosen(*arguments: Any) -> Concurrency:
        """Notes what the estimate chooses, and returns it."""
        seen.append(model.at_once(*arguments))
        return seen[-1]

    def prepared(decided: Callable[..., Concurrency]) -> Callable[[], Any]:
        """Compiles both directions as `decided` says; returns the call."""
        rnn = made(cell, hidden, both=True)
        with replaced(arrangement, "at_once", decided):
            for _ in range(3):
                rnn(x)
        return lambda: rnn(x)

    prepared(as_chosen)
    decided = seen[-1]
    in_turn = prepared(lambda *_: Concurrency(None, (), 0, 0))

    def at_the_same_time(
        loads: Sequence[Load], sizes: Sequence[CallSize], most: int, machine: Machine
    ) -> Concurrency:
        """Chooses to run both directions at the same time."""
        ways = [model.by_rows(*pair, 1, machine) for pair in zip(loads, sizes, strict=True)]
        return Concurrency(tuple(range(len(loads))), tuple(ways), 0, 0)

    names = [TURNS["turn"], TURNS["once"]]
    ways = tuple(zip(names, (decided.in_turn, decided.seconds), strict=True))
    chosen = names[decided.order is not None]
    return Trial(f"both {cell}", hidden, rows, ways, chosen, (in_turn, prepared(at_the_same_time)))


def stack(name: str, hidden: int, rows: int) -> Trial:
    """Prepares a stack (name: as in `2 gru`) by one thread, layer by layer, and two layers as a wavefront."""
    count, cell = name.split()
    x = np.random.default_rng(0).normal(size=(rows, STEPS, hidden)).astype("float32")
    seen: list[tuple[Wavefront, float, float]] = []

    def prepared(
        decide: Callable[[Sequence[Load], Sequence[CallSize], Machine], Wavefront],
    ) -> Callable[[], Any]:
        """Compiles the stack as `decide` says; returns the call."""

        def decided(
            loads: Sequence[Load], sizes: Sequence[CallSize], most: int, machine: Machine
        ) -> Wavefront:
            """Notes what the estimate chooses and predicts, and returns what `decide` says."""
            chosen = model.wavefront(loads, sizes, most, machine)
            alone, front = by_one(loads, sizes, machine), in_pairs(loads, sizes, machine)
            seen.append((chosen, alone.seconds, front.seconds))
            return decide(loads, sizes, machine)

        stacked = sn.Stack([made(cell, hidden, both=False) for _ in range(int(count))])
        with replaced(arrangement, "wavefront", decided):
            for _ in range(3):
                stacked(x)
        return lambda: stacked(x)

    calls = tuple(map(prepared, (by_one, in_turn, in_pairs)))
    chosen, alone, front = seen[-1]
    names = NAMES["alone"], TURNS["turn"], TURNS["front"]
    ways = tuple(zip(names, (alone, chosen.in_turn, front), strict=True))
    is_front = any(count > 1 for count, _ in chosen.groups)
    is_shared = {way.how for way in chosen.ways} != {"alone"}
    return Trial(name, hidden, rows, ways, names[2 if is_front else int(is_shared)], calls)


def by_one(loads: Sequence[Load], sizes: Sequence[CallSize], machine: Machine) -> Wavefront:
    """Returns the arrangement of layers by one thread, with the predicted seconds."""
    ways = tuple(
        CallPartition("alone", 1, load.seconds(size, 1, 1, machine))
        for load, size in zip(loads, sizes, strict=True)
    )
    seconds = sum(way.seconds for way in ways)
    return Wavefront(((1, 0),) * len(loads), ways, seconds, seconds)


def in_turn(loads: Sequence[Load], sizes: Sequence[CallSize], machine: Machine) -> Wavefront:
    """Returns the arrangement of layers one after the other, each shared as the estimate finds best."""
    ways = tuple(
        model.partition(load, size, processors(), machine).chosen
        for load, size in zip(loads, sizes, strict=True)
    )
    return replace(by_one(loads, sizes, machine), ways=ways)


def in_pairs(loads: Sequence[Load], sizes: Sequence[CallSize], machine: Machine) -> Wavefront:
    """Returns the arrangement of two layers at a time as a wavefront; the last of an odd number alone."""
    pairs, whole = len(loads) // 2, in_turn(loads, sizes, machine)
    ways = by_one(loads[: 2 * pairs], sizes[: 2 * pairs], machine).ways + whole.ways[2 * pairs :]
    seconds, block = model.wavefront_time(loads[:2], sizes[:2], machine)
    groups = ((2, block),) * pairs + ((1, 0),) * (len(loads) % 2)
    seconds = pairs * seconds + sum(way.seconds for way in ways[2 * pairs :])
    return Wavefront(groups, ways, seconds, whole.seconds)


@dataclass(frozen=True)
class Kind:
    """Cases of one kind: the function that prepares one, and the names, units and sequences to time."""

    measure: Callable[[str, int, int], Trial]
    names: tuple[str, ...]
    hidden: tuple[int, ...]
    rows: tuple[int, ...]


CELLS, HIDDEN, ROWS = ("gru", "lstm"), (64, 128, 256, 512), (1, 2, 3, 4, 6, 8, 16)
STACKS = ("2 gru", "3 gru", "2 lstm", "3 lstm")
DECODERS = ("additive 10", "additive 100", "dot product 10", "dot product 100")
KINDS = {
    "one": Kind(one_case, CELLS, HIDDEN, ROWS),
    "both": Kind(both_directions, CELLS, HIDDEN, ROWS),
    "layers": Kind(stack, STACKS, HIDDEN, ROWS),
    "attention": Kind(attending, DECODERS, (128, 256), (1, 4, 16)),
}


def table(cases: Sequence[Case]) -> Table:
    """Returns the table of all cases: predicted and measured microseconds."""
    shown = Table(title=f"{processors()} threads: microseconds predicted / measured")
    ways = list(dict.fromkeys(way.way for case in cases for way in case.ways))
    for name in ("cell", "hidden", "rows", "steps", *ways, "chosen", "of the best"):
        shown.add_column(name, justify="right")
    for case in cases:
        times = {way.way: f"{way.predicted:.0f} / {way.measured:.0f}" for way in case.ways}
        colour = "red" if case.regret > 1.1 else "yellow" if case.chosen != case.best else "green"
        sizes = map(str, (case.hidden, case.rows, case.steps))
        row = [case.what, *sizes, *(times.get(way, "") for way in ways)]
        shown.add_row(*row, case.chosen, f"[{colour}]{case.regret:.2f}[/]")
    return shown


def summary(cases: Sequence[Case]) -> str:
    """Returns a text on how often the choice is best, what is lost, and how good the estimates are."""
    best = sum(case.chosen == case.best for case in cases)
    regrets = [case.regret for case in cases]
    near = sum(regret <= 1.05 for regret in regrets)
    ratios = [way.predicted / way.measured for case in cases for way in case.ways]
    off = geometric_mean(max(ratio, 1 / ratio) for ratio in ratios)
    losses = ", ".join(f"{share}%: {np.quantile(regrets, share / 100) - 1:.1%}" for share in (50, 90, 95, 99))
    return (
        f"{len(cases)} cases: the best way {best} times, within a twentieth of it {near} times "
        f"({near / len(cases):.1%}); regret {geometric_mean(regrets):.3f}, at most {max(regrets):.2f}; "
        f"estimates are off by a factor of {off:.2f} (geometric mean)\n"
        f"loss that so many of the cases do not exceed: {losses}"
    )


def measured(trials: Sequence[Trial], rounds: int, progress: Callable[[], object]) -> list[Case]:
    """Times all ways of some cases in alternation, so many rounds, and those in which the chosen way was not
    the fastest once more. progress: is called after each round.

    What disturbs the machine for a second falls into one turn of many cases, not into all turns of one.
    """
    least = [[float("inf")] * len(trial.calls) for trial in trials]
    cases, doubtful = list[Case](), set(range(len(trials)))
    for _ in range(2):
        for _ in range(rounds):
            for index in sorted(doubtful):
                for way, call in enumerate(trials[index].calls):
                    least[index][way] = min(least[index][way], timed(call))
            progress()
        cases = [trial.case(seconds) for trial, seconds in zip(trials, least, strict=True)]
        doubtful = {index for index, case in enumerate(cases) if case.chosen != case.best}
    return cases


def main(
    cell: Annotated[list[str] | None, typer.Option(help="A cell or decoder; all by default.")] = None,
    hidden: Annotated[list[int] | None, typer.Option(help="So many units.")] = None,
    rows: Annotated[list[int] | None, typer.Option(help="So many sequences.")] = None,
    rounds: Annotated[int, typer.Option(min=1, help="How often each way has a turn.")] = 9,
    what: Annotated[
        Literal["one", "both", "layers", "attention", "all"],
        typer.Option(help="One direction of a layer, both, a stack, or a decoder with attention."),
    ] = "all",
    random: Annotated[int, typer.Option(min=0, help="Draw so many sizes of one recurrence instead.")] = 0,
    seed: Annotated[int, typer.Option(help="The seed of the sizes that are drawn.")] = 0,
    training: Annotated[bool, typer.Option(help="Both passes of training, for drawn sizes.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of a table.")] = False,
) -> None:
    """Compare predicted and measured times of each way to share a call, and print a table or JSON."""
    console = Console(stderr=as_json, width=140)
    prepared: list[Callable[[], Trial]] = [
        partial(kind.measure, name, units, count)
        for kind in (KINDS.values() if what == "all" else [KINDS[what]])
        for name in kind.names
        if not cell or name in cell
        for units in hidden or kind.hidden
        for count in rows or kind.rows
    ]
    if random:
        measures = (forward_case, backward_case) if training else (one_case,)
        prepared = [partial(measure, *sizes) for sizes in drawn(random, seed) for measure in measures]
    cases = list[Case]()
    with Progress(console=console, transient=True) as bar, WORKER_POOL.apart():
        task = bar.add_task("timing", total=ceil(len(prepared) / GROUP) * 2 * rounds)
        for first in range(0, len(prepared), GROUP):
            trials = [prepare() for prepare in prepared[first : first + GROUP]]
            cases += measured(trials, rounds, lambda: bar.advance(task))
    count, cases = len(cases), [case for case in cases if case.is_complete]
    if len(cases) < count:
        console.print(f"{count - len(cases)} cases left out: threads were late in all calls of a way")
    if as_json:
        typer.echo(json.dumps([{**asdict(case), "regret": case.regret} for case in cases], indent=1))
    else:
        console.print(table(cases))
    console.print(summary(cases))


if __name__ == "__main__":
    typer.run(main)
