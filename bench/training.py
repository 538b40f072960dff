"""How long a training step takes: forward, backward and all gradients, beside PyTorch.

    python bench/training.py                      GRU and LSTM, N in 1 4 16 64, hidden 64 128 256 512
    python bench/training.py --cell gru --batch 16 --hidden 256 --rounds 31
    python bench/training.py --custom             a custom cell, beside a loop in PyTorch
    python bench/training.py --step               a whole step with Adam, of a small model
    python bench/training.py --json

float32, 100 steps, inputs as wide as the state, inputs require gradients too. Both have the same parameters,
inputs, cotangents and number of threads, and are checked to give the same outputs and gradients. They take
turns in one process, each after a call that does not count and a pause, since threads may spin for a while. A
time is the median of all turns; a ratio that of each round's. `fma` is the share of the most multiply-adds a
second that this machine reaches in the same round.
"""

import copy
import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
import stepnet.torch as st
from bench.runtimes.machine import multiply_adds
from stepnet.engines.threads import threads
from stepnet.net.tolerance import tolerance

STEPS = 100
PAUSE = 0.02
GATES = {"gru": 3, "lstm": 4, "custom": 2}
BATCHES, WIDTHS = (1, 4, 16, 64), (64, 128, 256, 512)
Run = Callable[[], list[Any]]


@dataclass(frozen=True)
class Row:
    """One case: medians in milliseconds, theirs over ours, and ours as a share of the machine's peak."""

    cell: str
    batch: int
    hidden: int
    steps: int
    ours: float
    theirs: float
    ratio: float
    fma: float
    against: str


class Gated(torch.nn.Module):
    """A cell that no library has: h' = f h + (1 - f) tanh(x V + h U), f = sigmoid(x W + h R)."""

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.input = torch.nn.Linear(inputs, 2 * hidden)
        self.memory = torch.nn.Linear(hidden, 2 * hidden, bias=False)

    def forward(self, x: Any, h: Any) -> Any:
        """The next memory."""
        f, n = (self.input(x) + self.memory(h)).chunk(2, dim=-1)
        f = torch.sigmoid(f)
        return f * h + (1 - f) * torch.tanh(n)


def looped(cell: Any, x: Any) -> Any:
    """The outputs of a cell in a loop, with the product of the inputs ahead of it."""
    h = x.new_zeros(x.shape[0], cell.memory.in_features)
    outputs: list[Any] = []
    for part in cell.input(x).unbind(1):
        f, n = (part + cell.memory(h)).chunk(2, dim=-1)
        f = torch.sigmoid(f)
        h = f * h + (1 - f) * torch.tanh(n)
        outputs.append(h)
    return torch.stack(outputs, 1)


def modules(cell: str, hidden: int) -> tuple[Any, Any, Callable[[Any], Any], Callable[[Any], Any]]:
    """Our module and theirs with the same parameters, and what gives the outputs of each."""
    if cell == "custom":
        theirs = Gated(hidden, hidden)
        example = torch.zeros(1, hidden), torch.zeros(1, hidden)
        ours = st.Recurrence(copy.deepcopy(theirs), example, batch_first=True)
        return ours, theirs, lambda x: ours(x)[0], lambda x: looped(theirs, x)
    theirs = getattr(torch.nn, cell.upper())(hidden, hidden, batch_first=True)
    ours = getattr(st, cell.upper())(hidden, hidden, batch_first=True)
    ours.load_state_dict(theirs.state_dict())
    return ours, theirs, lambda x: ours(x)[0], lambda x: theirs(x)[0]


def training(module: Any, outputs: Callable[[Any], Any], x: Any, cotangent: Any) -> Run:
    """What runs forward and backward, and gives the outputs and all gradients."""

    def run() -> list[Any]:
        x.grad = None
        for parameter in module.parameters():
            parameter.grad = None
        y = outputs(x)
        y.backward(cotangent)
        return [y.detach(), x.grad, *(parameter.grad for parameter in module.parameters())]

    return run


def stepping(module: Any, outputs: Callable[[Any], Any], x: Any, target: Any) -> Run:
    """What does a whole step of training, with Adam, and gives the loss."""
    adam = torch.optim.Adam(module.parameters(), lr=1e-3)

    def run() -> list[Any]:
        adam.zero_grad()
        loss = torch.nn.functional.mse_loss(outputs(x), target)
        loss.backward()
        adam.step()
        return [loss.detach()]

    return run


def check(ours: list[Any], theirs: list[Any], hidden: int, rows: int) -> None:
    """Raises `SystemExit` where the two do not compute the same."""
    for one, other in zip(ours, theirs, strict=True):
        scale = max(1.0, float(other.abs().max()))
        away = float((one - other).abs().max()) / scale
        if away > 2 * tolerance("float32", length=rows, width=2 * hidden):
            raise SystemExit(f"stepnet and PyTorch differ by {away:.2g}: not timed")


def turn(run: Run) -> float:
    """The seconds of one call."""
    time.sleep(PAUSE)
    run()
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def timed(cell: str, batch: int, hidden: int, steps: int, rounds: int, whole: bool) -> Row:
    """One case."""
    torch.manual_seed(0)
    ours, theirs, our_outputs, their_outputs = modules(cell, hidden)
    x = torch.randn(batch, steps, hidden, requires_grad=not whole)
    other = torch.randn(batch, steps, hidden)
    make = stepping if whole else training
    a, b = make(ours, our_outputs, x, other), make(theirs, their_outputs, x, other)
    check(a(), b(), hidden, batch * steps)
    turns: list[tuple[float, float, float]] = []
    for _ in range(rounds):
        peak, _ = multiply_adds("float32", threads())
        turns.append((turn(a), turn(b), peak))
    # Products with inputs and memory, three times: forward, for cotangents, for parameters.
    flops = 3 * 2 * 2 * batch * steps * hidden * hidden * GATES[cell]
    fma = median(flops / one / peak for one, _, peak in turns)
    one, two = (1e3 * median(turn[place] for turn in turns) for place in (0, 1))
    ratio = median(two / one for one, two, _ in turns)
    against = "torch loop" if cell == "custom" else "torch.nn"
    return Row(cell, batch, hidden, steps, one, two, ratio, fma, against)


def main(
    cell: Annotated[list[str] | None, typer.Option(help="gru, lstm.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sequences.")] = None,
    hidden: Annotated[list[int] | None, typer.Option(min=1, help="Features of the state.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each sequence.")] = STEPS,
    custom: Annotated[bool, typer.Option("--custom", help="A custom cell, beside a loop.")] = False,
    whole: Annotated[bool, typer.Option("--step", help="A whole step with Adam.")] = False,
    rounds: Annotated[int, typer.Option(min=1, help="How often each has a turn.")] = 15,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time training steps beside PyTorch."""
    sn.set_threads(threads_)
    torch.set_num_threads(threads())
    names = ["custom"] if custom else (cell or ["gru", "lstm"])
    cases = [(name, n, h) for name in names for n in batch or BATCHES for h in hidden or WIDTHS]
    quiet = Console(stderr=True, quiet=as_json)
    rows = [
        timed(name, n, h, steps, rounds, whole)
        for name, n, h in track(cases, "training", console=quiet, transient=True)
    ]
    if as_json:
        print(json.dumps({"threads": threads(), "rows": [asdict(row) for row in rows]}, indent=2))
        return
    what = "A step with Adam" if whole else "Forward, backward and all gradients"
    table = Table(title=f"{what}, {steps} steps, {threads()} threads: milliseconds")
    for name in ("cell", "batch", "hidden", "stepnet", "peer", "peer's", "times as fast", "fma"):
        table.add_column(name, justify="right")
    for row in rows:
        numbers = (f"{row.ours:.2f}", row.against, f"{row.theirs:.2f}", f"{row.ratio:.2f}", f"{row.fma:.0%}")
        table.add_row(row.cell, str(row.batch), str(row.hidden), *numbers)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
