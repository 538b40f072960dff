"""Measures the memory of a training step beyond its arguments and results, beside PyTorch.

    python -m bench.training_memory                      GRU and LSTM, N in 1 4, 10,000 steps, hidden 256
    python -m bench.training_memory --cell gru --batch 16 --steps 1000 --hidden 64
    python -m bench.training_memory --json

Forward, backward and all gradients, float32, inputs as wide as the state, inputs require gradients too. In
four ways: stepnet's layer, the same with checkpoint="sqrt" and with saved="bfloat16", and torch.nn's. Each
has a process of its own, where a short run comes first. `peak` is the most memory that the process holds from
there on, less what it held before, and less outputs and gradients. `held` is what it holds between forward
and backward, less the outputs. The time is the median of the runs that follow. All are checked to give the
same gradients.
"""

import gc
import json
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
import stepnet.torch as st
from bench.length import ANEW, STATUS, peak
from stepnet.compiler.net.tolerance import tolerance
from stepnet.compiler.targets.threads import threads

ROOT = Path(__file__).resolve().parents[1]
BATCHES, HIDDEN, STEPS, WARM = (1, 4), 256, 10_000, 100
SQRT, LOW, ALL, THEIRS = "checkpoint", "saved", "stepnet", "torch.nn"
WAYS = (SQRT, LOW, ALL, THEIRS)
OPTIONS = {SQRT: {"checkpoint": "sqrt"}, LOW: {"saved": "bfloat16"}}
"""The arguments of stepnet's layer for a way."""


@dataclass(frozen=True)
class Run:
    """The result of a process: bytes beyond arguments and results, seconds, sums of all gradients."""

    peak: int
    held: int
    seconds: float
    sums: list[float]


@dataclass(frozen=True)
class Row:
    """The results for one case, by way."""

    cell: str
    batch: int
    steps: int
    hidden: int
    runs: dict[str, Run]

    @property
    def share(self) -> float:
        """The peak with checkpoints as a share of PyTorch's."""
        return self.runs[SQRT].peak / max(1, self.runs[THEIRS].peak)


# ---- what is run, in a process of its own ------------------------------------------------------------------


def module_of(way: str, cell: str, hidden: int) -> Any:
    """Makes the layer of a way (an element of `WAYS`), with the same parameters in every process."""
    torch.manual_seed(0)
    made = getattr(torch.nn, cell.upper())(hidden, hidden, batch_first=True)
    if way == THEIRS:
        return made
    ours = getattr(st, cell.upper())(hidden, hidden, batch_first=True, **OPTIONS.get(way, {}))
    ours.load_state_dict(made.state_dict())
    return ours


def now() -> int:
    """Returns the bytes that this process holds; if the system does not say, the most it has held."""
    if not STATUS.exists():
        return peak()
    lines = dict(line.split(":", 1) for line in STATUS.read_text().splitlines())
    return int(lines["VmRSS"].split()[0]) * 1024


def trained(module: Any, x: Any, cotangent: Any) -> tuple[int, list[Any]]:
    """Runs forward and backward; returns the bytes held in between, and the outputs and all gradients."""
    x.grad = None
    module.zero_grad()
    outputs = module(x)[0]
    held = now()
    outputs.backward(cotangent)
    return held, [outputs.detach(), x.grad, *(one.grad for one in module.parameters())]


def alone(way: str, cell: str, batch: int, steps: int, hidden: int, rounds: int) -> Run:
    """Measures a way in this process: memory, seconds and gradients."""
    torch.set_num_threads(threads())
    module = module_of(way, cell, hidden)
    torch.manual_seed(1)
    x, cotangent = (torch.randn(batch, steps, hidden) for _ in range(2))
    short = x[:, : min(steps, WARM)].clone().requires_grad_()
    trained(module, short, cotangent[:, : min(steps, WARM)].contiguous())
    x.requires_grad_()
    module.zero_grad()
    gc.collect()
    with suppress(OSError):
        ANEW.write_text("5")
    before = now()
    held, results = trained(module, x, cotangent)
    taken = peak() - before - sum(one.nbytes for one in results)
    sums = [float(one.double().abs().sum()) for one in results]
    held -= before + results[0].nbytes
    seconds = [timed(module, x, cotangent) for _ in range(rounds)]
    return Run(max(0, taken), max(0, held), median(seconds), sums)


def timed(module: Any, x: Any, cotangent: Any) -> float:
    """Returns the seconds of forward and backward."""
    begun = time.perf_counter()
    trained(module, x, cotangent)
    return time.perf_counter() - begun


# ---- all of them -------------------------------------------------------------------------------------------


def in_a_process(*given: Any) -> Run:
    """Measures a way (`alone`, with these arguments) in a new process, so that only its own memory counts."""
    command = [sys.executable, "-m", "bench.training_memory", "--alone", json.dumps(given)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT)
    return Run(**json.loads(done.stdout))


def measured(cell: str, batch: int, steps: int, hidden: int, rounds: int) -> Row:
    """Measures all ways of one case; raises `SystemExit` if they do not compute the same."""
    runs = {way: in_a_process(way, cell, batch, steps, hidden, rounds) for way in WAYS}
    for way, run in runs.items():
        dtype = "bfloat16" if way == LOW else "float32"
        most = 2 * tolerance(dtype, length=batch * steps, width=2 * hidden)
        for one, other in zip(run.sums, runs[THEIRS].sums, strict=True):
            if not abs(one - other) <= most * max(1.0, abs(other)):
                raise SystemExit(f"{way} gives {one}, and torch.nn {other}: not measured")
    return Row(cell, batch, steps, hidden, runs)


def main(
    cell: Annotated[list[str] | None, typer.Option(help="gru, lstm.")] = None,
    batch: Annotated[list[int] | None, typer.Option(min=1, help="Sequences.")] = None,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each sequence.")] = STEPS,
    hidden: Annotated[int, typer.Option(min=1, help="Features of the state.")] = HIDDEN,
    rounds: Annotated[int, typer.Option(min=1, help="How many runs are timed.")] = 3,
    threads_: Annotated[int | None, typer.Option("--threads", min=1, help="Threads of both.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
    one: Annotated[str, typer.Option("--alone", hidden=True)] = "",
) -> None:
    """Measure the memory of training steps beside PyTorch, and print a table or JSON."""
    sn.set_threads(threads_)
    if one:
        print(json.dumps(asdict(alone(*json.loads(one)))))
        return
    cases = [(name, n) for name in cell or ["gru", "lstm"] for n in batch or BATCHES]
    quiet = Console(stderr=True, quiet=as_json)
    rows = [
        measured(name, n, steps, hidden, rounds)
        for name, n in track(cases, "training", console=quiet, transient=True)
    ]
    if as_json:
        told = [asdict(row) | {"share": row.share} for row in rows]
        print(json.dumps({"threads": threads(), "rows": told}, indent=2))
        return
    title = f"Beyond arguments and results, {steps:,} steps, hidden {hidden}, {threads()} threads"
    table = Table(title=title)
    for name in ("cell", "batch", "way", "peak MB", "held MB", "seconds"):
        table.add_column(name, justify="right")
    for row in rows:
        for way, run in row.runs.items():
            numbers = f"{run.peak / 1e6:.1f}", f"{run.held / 1e6:.1f}", f"{run.seconds:.2f}"
            table.add_row(row.cell, str(row.batch), way, *numbers)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
