"""Times a step of training: forward, loss, backward and Adam, beside torch.nn's layer.

    python -m bench.adam                      GRU and LSTM: 16 sequences of 25 steps, hidden 64
    python -m bench.adam --batch 64 --hidden 256 --steps 100
    python -m bench.adam --json

float32, inputs as wide as the memory. Both train the same parameters on the same numbers, in one process, in
alternating turns. A turn is 20 steps one after the other, as training is; before them are a pause, since
threads may spin for a while, and a step that does not count. Their losses are compared after each turn. A
time is the median of all turns, and a ratio that of each round's.

`python -m bench --training` times forward and backward alone, beside every peer.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track

import stepnet as sn
import stepnet.torch as st
from bench.printing import print_rows
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads

PAUSE, IN_A_ROW = 0.02, 20
Step = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """The result for one cell: median milliseconds of a step of each, and PyTorch's time over stepnet's."""

    cell: str
    batch: int
    steps: int
    hidden: int
    ours: float
    theirs: float
    ratio: float


def training(layer: Any, inputs: Any, target: Any) -> Step:
    """Returns a function that trains a layer for one step with Adam on a mean square error, for its loss."""
    adam = torch.optim.Adam(layer.parameters(), lr=1e-3)

    def step() -> float:
        """Trains for one step: forward, backward and the optimiser; returns the loss. This is timed."""
        adam.zero_grad()
        loss = torch.nn.functional.mse_loss(layer(inputs)[0], target)
        loss.backward()
        adam.step()
        return float(loss.detach())

    return step


def turn(step: Step) -> tuple[float, float]:
    """Trains for some steps in a row; returns the last loss, and the seconds of a step."""
    time.sleep(PAUSE)
    step()
    begun = time.perf_counter()
    losses = [step() for _ in range(IN_A_ROW)]
    return losses[-1], (time.perf_counter() - begun) / IN_A_ROW


def timed(cell: str, batch: int, steps: int, hidden: int, rounds: int) -> Row:
    """Times training of a cell by stepnet and PyTorch; raises `SystemExit` if they do not learn the same."""
    torch.manual_seed(0)
    theirs = getattr(torch.nn, cell.upper())(hidden, hidden, batch_first=True)
    ours = getattr(st, cell.upper())(hidden, hidden, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    numbers = [torch.randn(batch, steps, hidden) for _ in range(2)]
    pair = [training(layer, *numbers) for layer in (ours, theirs)]
    seconds: list[tuple[float, float]] = []
    for done in range(rounds):
        (our_loss, our_time), (their_loss, their_time) = map(turn, pair)
        # Each step moves both by what rounding makes of its gradients.
        away, allowed = (
            abs(our_loss - their_loss),
            (done + 1) * (IN_A_ROW + 1) * tolerance("float32", batch * steps, hidden),
        )
        if away > allowed:
            raise SystemExit(f"the losses of stepnet and PyTorch differ by {away:.2g} in turn {done + 1}")
        seconds.append((our_time, their_time))
    our_time, their_time = (1e3 * median(times) for times in zip(*seconds, strict=True))
    ratio = median(theirs / ours for ours, theirs in seconds)
    return Row(cell, batch, steps, hidden, our_time, their_time, ratio)


def main(
    cell: Annotated[list[str] | None, typer.Option(help="gru, lstm.")] = None,
    batch: Annotated[int, typer.Option(min=1, help="Sequences.")] = 16,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each sequence.")] = 25,
    hidden: Annotated[int, typer.Option(min=1, help="Features of the memory.")] = 64,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 31,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time steps of training with Adam beside PyTorch, and print a table or JSON."""
    sn.set_threads(threads_)
    torch.set_num_threads(threads())
    quiet = Console(stderr=True, quiet=as_json)
    rows = [
        timed(name, batch, steps, hidden, rounds)
        for name in track(cell or ["gru", "lstm"], "training", console=quiet, transient=True)
    ]
    columns = {
        **{name: f"{{row.{name}}}" for name in ("cell", "batch", "steps", "hidden")},
        "stepnet": "{row.ours:.2f}",
        "torch.nn": "{row.theirs:.2f}",
        "times as fast": "{row.ratio:.2f}",
    }
    print_rows(rows, "Milliseconds for a step with Adam", columns, as_json)


if __name__ == "__main__":
    typer.run(main)
