"""Measures what a core does, and how many of them a load needs. docs/sizing.md has the tables.

    python -m bench.sizing table                       sequences per second by cell, units and steps
    python -m bench.sizing reading                     reading list columns of Parquet and of Arrow files
    python -m bench.sizing cores --load 2e9 --steps 25 --hours 8 --cell gru --hidden 256
    python -m bench.sizing check                       predicted and measured, by 1 and 2 workers
    python -m bench.sizing blocks                      what stragglers cost, by blocks per worker

Each takes --json. All is measured on one thread. A block is read from a Parquet file and run; its last
outputs are kept. `cores` measures with all processors busy, by one process each.
"""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from math import ceil
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Annotated, Any

import typer

import stepnet as sn
from bench.block_work import Load, read, runner, seconds_of, sequences, worked, write
from bench.rows import write_rows
from bench.simulated_workers import Workers, simulated
from stepnet.compiler.targets.limits import processors

CELLS = "gru", "lstm", "gated_delta_rule"
WIDTHS = 64, 128, 256, 512
STEPS = 25, 100
PER_WORKER = 1, 2, 5, 10, 20, 50, 100
SEEDS = 20

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]
Cell = Annotated[str, typer.Option(help=f"One of {', '.join(CELLS)}.")]
Hidden = Annotated[int, typer.Option(help="Its units.", min=1)]
Steps = Annotated[int, typer.Option(help="The steps of a sequence.", min=1)]
Rows = Annotated[int, typer.Option(help="The sequences of a block.", min=1)]
Rounds = Annotated[int, typer.Option(help="How many times each is measured.", min=1)]
app = typer.Typer(add_completion=False, help=(__doc__ or "").partition("\n")[0])


def load_of(cell: str, hidden: int, steps: int, rows: int) -> Load:
    """Returns the workload of a cell and sizes; raises `typer.BadParameter` for other cells."""
    if cell not in CELLS:
        raise typer.BadParameter(f"{cell} is none of {', '.join(CELLS)}")
    return Load(cell, hidden, steps, rows)


def taken(run: Callable[[], Any], rounds: int) -> float:
    """Returns the median seconds of a call over some rounds, after one that does not count."""
    run()
    return median(seconds_of(run) for _ in range(rounds))


@app.command()
def table(
    widths: Annotated[list[int] | None, typer.Option("--hidden", help="Units; 64, 128, 256, 512.")] = None,
    rows: Rows = 256,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Measure what one thread runs of each cell, of sequences in memory, and print a table or JSON."""
    sn.set_threads(1)
    made = list[dict[str, Any]]()
    for cell in CELLS:
        for hidden in widths or WIDTHS:
            for steps in STEPS:
                load = Load(cell, hidden, steps, rows)
                x = sequences(load)
                rate = rows / taken(lambda load=load, x=x: runner(load)(x), rounds)
                made.append({"cell": cell, "hidden": hidden, "steps": steps})
                made[-1] |= {"sequences/s": rate, "steps/s": rate * steps}
    write_rows(made, as_json, f"one thread, {rows} sequences per call")


@app.command()
def reading(
    hidden: Hidden = 256, steps: Steps = 25, rows: Rows = 2560, rounds: Rounds = 7, as_json: AsJson = False
) -> None:
    """Measure what one thread reads of list columns, from files that the system holds in memory."""
    load, made = Load("gru", hidden, steps, rows), list[dict[str, Any]]()
    with TemporaryDirectory() as folder:
        for name, file in write(load, Path(folder)).items():
            seconds = taken(lambda file=file: read(file).values.max(), rounds)
            made.append({"format": name, "MB/s": load.bytes / 1e6 / seconds, "sequences/s": rows / seconds})
    write_rows(made, as_json, f"{steps} steps of {hidden} float32, {load.bytes / 1e6:.0f} MB")


# ---- how many cores ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Answer:
    """The cores that a load needs, and what that follows from.

    Attributes:
        cores: Workers of one thread each.
        seconds_per_block: The mean of those measured, with all processors of this machine busy.
        blocks: The blocks of the load.
        blocks_per_worker: Those of one worker, on average.
        efficiency: The share of the workers' time that is used, by simulation.
    """

    cores: int
    seconds_per_block: float
    blocks: int
    blocks_per_worker: float
    efficiency: float


def cores_for(times: list[float], blocks: int, seconds: float, workers: Workers) -> Answer:
    """Returns the cores that finish in time, if some are slow or lost as those of `workers` are.

    The work alone gives the first estimate. A simulation of so many workers gives their efficiency, and that
    a new estimate, until a simulated run is in time. times: measured seconds of blocks. seconds: the time
    limit.

    >>> cores_for([2.0], blocks=100, seconds=20.0, workers=Workers(1)).cores
    10
    """
    count = max(1, ceil(blocks * mean(times) / seconds))
    while count <= blocks:
        cluster = Workers(count, workers.slow, workers.factor, min(workers.lost, count - 1))
        run = simulated(times, blocks, cluster)
        if run.seconds <= seconds:
            return Answer(count, mean(times), blocks, blocks / count, run.efficiency)
        count += max(1, round(count * (min(run.seconds / seconds, 1.5) - 1) / 2))
    raise SystemExit(
        f"{blocks} blocks of {mean(times):.3g} s are not done in {seconds:g} s by any number of workers, "
        "some of which are slow: take smaller blocks (--rows)"
    )


@app.command()
def cores(
    load: Annotated[float, typer.Option(help="How many sequences.", min=1)],
    hours: Annotated[float, typer.Option(help="In how many hours.", min=1e-9)],
    cell: Cell = "gru",
    hidden: Hidden = 256,
    steps: Steps = 25,
    rows: Rows = 4000,
    slow: Annotated[float, typer.Option(help="The share of slow workers.", min=0, max=1)] = 0.05,
    factor: Annotated[float, typer.Option(help="How many times as long these take.", min=1)] = 2.0,
    lost: Annotated[int, typer.Option(help="How many workers are lost in the run.", min=0)] = 1,
    measured: Annotated[int, typer.Option(help="How many blocks each processor measures.", min=1)] = 6,
    as_json: AsJson = False,
) -> None:
    """Measure blocks, and print how many cores a load needs."""
    known = load_of(cell, hidden, steps, rows)
    times = worked(known, measured * processors(), processors()).times
    blocks = ceil(load / rows)
    answer = asdict(cores_for(times, blocks, hours * 3600, Workers(lost + 1, slow, factor, lost)))
    title = f"{load:g} sequences of {steps} steps, {cell} {hidden}, in {hours:g} hours; blocks of {rows}"
    write_rows([answer], as_json, title)


# ---- is that so --------------------------------------------------------------------------------------------


@app.command()
def check(
    cell: Cell = "gru",
    hidden: Hidden = 256,
    steps: Steps = 25,
    rows: Rows = 2000,
    blocks: Annotated[int, typer.Option(help="The blocks of a run.", min=1)] = 60,
    rounds: Rounds = 3,
    as_json: AsJson = False,
) -> None:
    """Time runs of 1 and 2 workers, beside runs that are simulated from block times of other runs."""
    load, made = load_of(cell, hidden, steps, rows), list[dict[str, Any]]()
    alone = worked(load, blocks, 1).times
    for workers in (1, 2):
        for _ in range(rounds):
            times = worked(load, blocks, workers).times
            told = simulated(times, blocks, Workers(workers)).seconds
            by_one = simulated(alone, blocks, Workers(workers)).seconds
            seconds = worked(load, blocks, workers).seconds
            made.append({"workers": workers, "measured": seconds, "predicted": told})
            made[-1] |= {"by one worker's times": by_one, "measured / predicted": seconds / told}
    write_rows(made, as_json, f"{blocks} blocks of {rows} sequences, {cell} {hidden}, {steps} steps: seconds")


@app.command()
def blocks(
    workers: Annotated[int, typer.Option(help="How many workers.", min=2)] = 100,
    rows: Rows = 2000,
    slow: Annotated[float, typer.Option(help="The share of slow workers.", min=0, max=1)] = 0.05,
    factor: Annotated[float, typer.Option(help="How many times as long these take.", min=1)] = 2.0,
    measured: Annotated[int, typer.Option(help="How many blocks are measured.", min=1)] = 60,
    as_json: AsJson = False,
) -> None:
    """Simulate many workers, and print the share of their time that is used, by blocks per worker."""
    times = worked(Load("gru", 256, 25, rows), measured, processors()).times
    clusters = {
        "none slow": Workers(workers),
        "slow": Workers(workers, slow, factor),
        "slow, one lost": Workers(workers, slow, factor, 1),
    }
    made = list[dict[str, Any]]()
    for each in PER_WORKER:
        made.append({"blocks per worker": each})
        for name, cluster in clusters.items():
            runs = (simulated(times, each * workers, cluster, seed) for seed in range(SEEDS))
            made[-1][name] = mean(run.efficiency for run in runs)
    write_rows(made, as_json, f"{workers} workers, {slow:.0%} of them {factor:g} times as slow")


if __name__ == "__main__":
    app()
