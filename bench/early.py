"""Times sequences that end early, beside the same sequences with lengths that are known beforehand.

    python -m bench.early                       640 sequences of 20 steps in the mean
    python -m bench.early --mean 100 --rows 64
    python -m bench.early --json

GRU and LSTM of 64 and 256, float32, inputs as wide as the memory. Each sequence may have `--most` steps, and
ends after so many as a geometric distribution draws: by `until=`, of which nothing is known ahead of the
call. `known` is a call of the same step without `until=`, of a `Ragged` of exactly these lengths. The first
takes longer for two reasons: outputs are put in order behind the call, and the longest sequences cannot begin
first.

Both have to give the same bits. They alternate; a time is the median of all turns, a ratio that of each
round's.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.progress import track

import stepnet as sn
from bench.printing import print_rows
from stepnet import cells

Array = np.ndarray
STEPS: dict[str, Any] = {"gru": cells.gru, "lstm": cells.lstm}
END = sn.Spec((), "bool")


@dataclass(frozen=True)
class Row:
    """The result for one cell: median milliseconds with `until=`, with known lengths, and their ratio."""

    cell: str
    hidden: int
    until: float
    known: float
    ratio: float


def recurrences(cell: str, hidden: int) -> tuple[sn.RNN, sn.RNN]:
    """Returns two recurrences of a cell: one that ends a sequence at a flagged step, and one without ends."""
    function = STEPS[cell]

    def step(x: Any, memory: Any, p: Any) -> Any:
        """Runs the cell, and carries the input's flag in the memory."""
        output, after = function(x["x"], memory["cell"], p)
        return output, {"cell": after, "end": x["end"]}

    params = dict(cells.CELLS[cell].parameters(hidden, hidden))
    own = hidden if cell == "gru" else {"h": hidden, "c": hidden}
    options: dict[str, Any] = {"memory": {"cell": own, "end": END}, "inputs": {"x": hidden, "end": END}}
    until = sn.RNN(step, params, until=lambda _, memory: memory["end"], **options)
    return until, sn.RNN(step, params, **options)


def timed(cell: str, hidden: int, lengths: Array, most: int, rounds: int) -> Row:
    """Times a cell with `until=` and with known lengths. Raises `SystemExit` if the outputs differ.

    lengths: of the sequences. most: the steps that each may have.
    """
    until, known = recurrences(cell, hidden)
    x = np.random.default_rng(1).standard_normal((len(lengths), most, hidden), np.float32)
    whole = {"x": x, "end": np.arange(most) == lengths[:, None] - 1}
    cut = {
        name: sn.Ragged.from_list([row[:length] for row, length in zip(each, lengths, strict=True)])
        for name, each in whole.items()
    }
    if not until(whole)[0].equal(known(cut)[0]):
        raise SystemExit(f"a {cell} of {hidden} has other outputs where the lengths are known")
    runs: list[Callable[[], Any]] = [lambda: until(whole), lambda: known(cut)]
    seconds = [tuple(map(seconds_of, runs)) for _ in range(rounds)]
    our_time, known_time = (1e3 * median(times) for times in zip(*seconds, strict=True))
    ratio = median(early / other for early, other in seconds)
    return Row(cell, hidden, our_time, known_time, ratio)


def seconds_of(run: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def main(
    cell: Annotated[list[str] | None, typer.Option(help="gru, lstm.")] = None,
    hidden: Annotated[list[int] | None, typer.Option(min=1, help="Features of the memory.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Sequences.")] = 640,
    mean: Annotated[float, typer.Option(min=1, help="Steps of a sequence in the mean.")] = 20,
    most: Annotated[int, typer.Option(min=1, help="Steps that each sequence may have.")] = 400,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 51,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time sequences that end early, and print a table or JSON."""
    sn.set_threads(threads_)
    quiet = Console(stderr=True, quiet=as_json)
    lengths = np.minimum(np.random.default_rng(0).geometric(1 / mean, rows), most)
    cases = [(name, units) for name in cell or STEPS for units in hidden or (64, 256)]
    found = [
        timed(*case, lengths, most, rounds)
        for case in track(cases, "early ends", console=quiet, transient=True)
    ]
    columns = {
        "cell": "{row.cell}",
        "hidden": "{row.hidden}",
        "until=": "{row.until:.2f}",
        "lengths known": "{row.known:.2f}",
        "times as long": "{row.ratio:.2f}",
    }
    title = f"Milliseconds for {rows} sequences of {lengths.mean():.0f} steps in the mean"
    print_rows(found, title, columns, as_json)


if __name__ == "__main__":
    typer.run(main)
