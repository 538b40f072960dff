"""Compares the products of a recurrence with what the processor can do: multiply-adds, and weights read.

    python -m bench.kernel                                            float32, two cells, all sizes
    python -m bench.kernel --cell lstm --batch 16 --hidden 64,128     some of them
    python -m bench.kernel --target avx2 --threads 1                  other vectors, one thread

A GRU and an LSTM as wide as their inputs, 100 steps, stepnet alone in one process: turns of all cases
alternate with measurements of the machine (bench/runtimes/machine.py), and the least time of each counts.
A turn is disturbed or not as a whole, so shares of PyTorch's rate are of turns side by side: their median.

fma        multiply-adds of the matrix products, of the most that as many threads do on registers
torch.mm   the time of PyTorch's matrix products of the same sizes alone, of ours in the same turns: the
           inputs of all steps by their weights at once, and as many products as steps of the memories by
           theirs
stream     for a single sequence: of its time, what reading the recurrent weights once in each step takes at
           least, where so many bytes lie, and the products with the inputs at the most multiply-adds
"""

import json
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from statistics import median
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.progress import track
from rich.table import Table

import stepnet as sn
from bench.runtimes.cases import Case
from bench.runtimes.machine import multiply_adds, streaming
from stepnet import cells
from stepnet.compiler import targets as engines
from stepnet.compiler.targets.cpu.engine import LlvmEngine
from stepnet.compiler.targets.cpu.machine.processor import Processor, available_processors
from stepnet.compiler.targets.limits import processors
from stepnet.compiler.targets.threads import set_threads

STEPS = 100
TURN = 0.02
"""Seconds of the calls in one turn, at least one call."""


@dataclass(frozen=True)
class Row:
    """The result for a case and a number of threads: seconds, floating operations a second, and the shares of
    the processor's limits, and of the rate of PyTorch's matrix products, that it reaches.
    """

    cell: str
    batch: int
    hidden: int
    threads: int
    seconds: float
    flops: float
    fma: float
    matmul: float
    stream: float | None


def call_of(case: Case) -> Any:
    """Returns a function that calls a cell over a batch of a case."""
    arrays = case.arrays()
    values = arrays.pop("values").reshape(case.batch, case.time, case.inputs)
    del arrays["lengths"]
    memory = {"h": case.hidden, "c": case.hidden} if case.cell == "lstm" else case.hidden
    rnn = sn.RNN({"gru": cells.gru, "lstm": cells.lstm}[case.cell], arrays, memory=memory)
    return lambda: rnn(values, engine="llvm")


def products_of(case: Case) -> Any:
    """Returns a function that computes the matrix products of a case by PyTorch, into arrays that exist."""
    gates = {"gru": 3, "lstm": 4}[case.cell] * case.hidden
    inputs, memories = torch.randn(case.batch * case.time, case.inputs), torch.randn(case.batch, case.hidden)
    weights, recurrent = torch.randn(case.inputs, gates), torch.randn(case.hidden, gates)
    of_inputs, of_memories = torch.empty(len(inputs), gates), torch.empty(case.batch, gates)

    def call() -> None:
        """Computes the products of all inputs, and those of each step."""
        torch.mm(inputs, weights, out=of_inputs)
        for _ in range(case.time):
            torch.mm(memories, recurrent, out=of_memories)

    return call


def turn(call: Any, count: int) -> float:
    """Returns the least seconds of `count` calls, which other processes disturbed least."""
    seconds: list[float] = []
    for _ in range(count):
        begun = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - begun)
    return min(seconds)


def row_of(case: Case, call: Any, threads: int, rounds: int, processor: Processor) -> Row:
    """Times a case on so many threads, and measures the machine after each turn; returns the result."""
    set_threads(threads)
    torch.set_num_threads(threads)
    products = products_of(case)
    call()
    count = max(1, min(200, round(TURN / turn(call, 2))))
    turns: list[tuple[float, float]] = []
    flops = bandwidth = 0.0
    for number in range(rounds):
        # Each goes first in half of the turns: what runs behind the measurements is slower for a while.
        took = {each: turn(each, count) for each in [call, products][:: 1 if number % 2 else -1]}
        turns.append((took[call], took[products]))
        flops = max(flops, multiply_adds(case.dtype, threads)[0])
        if case.batch == 1:
            bandwidth = max(bandwidth, streaming(case.weight_bytes, threads))
    flops *= processor.vector_bytes / available_processors()[0].vector_bytes
    seconds = min(ours for ours, _ in turns)
    reached = case.flops / seconds
    stream = None
    if bandwidth:
        share = case.inputs / (case.inputs + case.hidden)
        least = case.weight_bytes * case.time / bandwidth + case.flops * share / flops
        stream = least / seconds
    return Row(
        case.cell,
        case.batch,
        case.hidden,
        threads,
        seconds,
        reached,
        reached / flops,
        median(theirs / ours for ours, theirs in turns),
        stream,
    )


@contextmanager
def engine_for(processor: Processor) -> Generator[None]:
    """Makes the engine llvm compile for `processor` within the block; resets the number of threads."""
    known = engines.ENGINES
    engines.ENGINES = {**known, "llvm": partial(LlvmEngine, processor)}
    engines.engine.cache_clear()
    try:
        yield
    finally:
        engines.ENGINES = known
        engines.engine.cache_clear()
        set_threads(None)


def numbers(text: str) -> list[int]:
    """Parses whole numbers between commas."""
    return [int(part) for part in text.split(",")]


def main(
    cell: Annotated[str, typer.Option(help="Cells: gru, lstm.")] = "gru,lstm",
    batch: Annotated[str, typer.Option(help="Numbers of sequences.")] = "1,2,4,8,16,64,256",
    hidden: Annotated[str, typer.Option(help="Widths of the memory.")] = "64,128,256,512,1024",
    threads: Annotated[str, typer.Option(help="Numbers of threads; all processors by default.")] = "",
    rounds: Annotated[int, typer.Option(min=1, help="Turns of each case.")] = 9,
    target: Annotated[str, typer.Option(help="avx512, avx2 or generic; the widest by default.")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time recurrences beside the processor's limits, and print a table or JSON."""
    targets = {each.name: each for each in available_processors()}
    if target and target not in targets:
        raise typer.BadParameter(f"this processor runs {', '.join(targets)}, not {target!r}")
    chosen = targets[target] if target else available_processors()[0]
    sizes = [(c, n, h) for c in cell.split(",") for h in numbers(hidden) for n in numbers(batch)]
    counts = numbers(threads) if threads else sorted({1, processors()})
    rows: list[Row] = []
    quiet = Console(stderr=True, quiet=as_json)
    with engine_for(chosen):
        for name, n, h in track(sizes, "timing", console=quiet, transient=True):
            case = Case(name, n, STEPS, h, h)
            call = call_of(case)
            rows += [row_of(case, call, count, rounds, chosen) for count in counts]
    if as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))
        return
    table = Table(title=f"{chosen}, float32, {STEPS} steps")
    for heading in ("case", "threads", "ms", "GFLOP/s", "fma", "torch.mm", "stream"):
        table.add_column(heading, justify="right")
    for row in rows:
        stream = "" if row.stream is None else f"{row.stream:.0%}"
        figures = f"{1e3 * row.seconds:.3f}", f"{row.flops / 1e9:.0f}", f"{row.fma:.0%}"
        figures = *figures, f"{row.matmul:.0%}", stream
        table.add_row(f"{row.cell} {row.batch}x{row.hidden}", str(row.threads), *figures)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
