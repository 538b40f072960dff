"""Times calls of unusual sizes beside what the cost model predicts: long, thin, short, wide and ragged ones.

    python -m bench.extremes                  all of them
    python -m bench.extremes --only long      those whose name has this in it
    python -m bench.extremes --json

one long         a single sequence of a million steps, 8 units
many short       10,000 sequences of 1 to 3 steps
wide             4,096 units
proteins         lengths of 100 to 1,344, as of chains of amino acids
speech           log-normal lengths, as of recordings

The prediction is `explain`'s: by the rates that `stepnet tune` measured on this machine, or else those of the
table. All cases take turns; the least time counts. ratio: the measured time over the predicted one.
"""

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import numpy as np
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from bench.runtimes.cases import lognormal
from stepnet.compiler.plan.load import CallSize
from stepnet.compiler.plan.partition import partition
from stepnet.compiler.targets.cpu import host_processor
from stepnet.compiler.targets.cpu.costs import machine_for
from stepnet.compiler.targets.cpu.lower.program import lowered
from stepnet.compiler.targets.threads import threads

Lengths = Callable[[np.random.Generator], np.ndarray]
CASES: dict[str, tuple[str, int, Lengths]] = {
    "one long": ("gru", 8, lambda random: np.array([1_000_000])),
    "one long lstm": ("lstm", 8, lambda random: np.array([1_000_000])),
    "many short": ("gru", 64, lambda random: random.integers(1, 4, 10_000)),
    "many short lstm": ("lstm", 64, lambda random: random.integers(1, 4, 10_000)),
    "wide, one": ("gru", 4096, lambda random: np.array([10])),
    "wide, 16": ("gru", 4096, lambda random: np.full(16, 10)),
    "proteins, 64": ("lstm", 256, lambda random: random.integers(100, 1345, 64)),
    "proteins, 16": ("gru", 128, lambda random: random.integers(100, 1345, 16)),
    "speech, 64": ("gru", 256, lambda random: lognormal(64, 1500)),
    "speech, 16": ("lstm", 128, lambda random: lognormal(16, 1500)),
}
"""The cases by name: the cell, its units, which are as many as its inputs, and the lengths of sequences."""


@dataclass(frozen=True)
class Outcome:
    """Predicted and measured milliseconds of a case, and the way in which threads share it."""

    case: str
    sequences: int
    steps: int
    way: str
    predicted: float
    measured: float

    @property
    def ratio(self) -> float:
        """The measured time over the predicted one."""
        return self.measured / self.predicted


@dataclass(frozen=True)
class Extreme:
    """Case that is ready to run."""

    name: str
    way: str
    predicted: float
    lengths: np.ndarray
    call: Callable[[], object]

    @classmethod
    def of(cls, name: str) -> "Extreme":
        """Makes the recurrence and the sequences of a case, and predicts its time."""
        cell, units, lengths_of = CASES[name]
        random = np.random.default_rng(0)
        lengths = lengths_of(random)
        rnn = sn.cells.rnn(cell, sn.cells.CELLS[cell].parameters(units, units, seed=0))
        values = random.standard_normal((int(lengths.sum()), units), np.float32)
        sequences = sn.Ragged(values, (np.append(0, np.cumsum(lengths)),))
        load = lowered(rnn.plan, host_processor()).load
        size = CallSize(len(lengths), int(lengths.max()), len(values))
        chosen = partition(load, size, threads(), machine_for(host_processor())).chosen
        return cls(
            name,
            f"{chosen.how}, {chosen.threads}",
            chosen.seconds,
            lengths,
            lambda: rnn(sequences, engine="llvm"),
        )

    def seconds(self) -> float:
        """Times one call."""
        begun = time.perf_counter()
        self.call()
        return time.perf_counter() - begun


def main(
    only: Annotated[str, typer.Option(help="Cases whose names have this in them.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Calls of each case.")] = 7,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time calls of unusual sizes, and print a table or JSON."""
    cases = [Extreme.of(name) for name in CASES if only in name]
    if not cases:
        raise typer.BadParameter(f"the cases are {', '.join(CASES)}; none has {only!r} in its name")
    for case in cases:
        case.call()
    least = dict.fromkeys((case.name for case in cases), float("inf"))
    for _ in track(range(rounds), "timing", console=Console(stderr=True, quiet=as_json), transient=True):
        for case in cases:
            least[case.name] = min(least[case.name], case.seconds())
    outcomes = [
        Outcome(
            case.name,
            len(case.lengths),
            int(case.lengths.sum()),
            case.way,
            1e3 * case.predicted,
            1e3 * least[case.name],
        )
        for case in cases
    ]
    if as_json:
        print(json.dumps([{**asdict(each), "ratio": each.ratio} for each in outcomes], indent=2))
        return
    table = Table(title=f"{host_processor()}, float32, {threads()} threads, milliseconds")
    for heading in ("case", "sequences", "steps", "predicted", "measured", "ratio", "way"):
        table.add_column(heading, justify="left" if heading in ("case", "way") else "right")
    for each in outcomes:
        numbers = f"{each.predicted:.2f}", f"{each.measured:.2f}", f"{each.ratio:.2f}"
        table.add_row(each.case, f"{each.sequences:,}", f"{each.steps:,}", *numbers, each.way)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
