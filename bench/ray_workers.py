"""Times workers of Ray: two beside one, and one beside the engine alone.

    python -m bench.ray_workers                      sequences of 25 steps, 256 units, 32 blocks of 64 MB
    python -m bench.ray_workers --blocks 64 --rounds 3
    python -m bench.ray_workers --json

A GRU, float32, inputs as wide as the memory, its last outputs; each worker has one thread. `engine` is one
thread of this process that runs the recurrence over the same block as often. They alternate, and have to give
the same bits. Columns are medians of all rounds:

    seconds       of all blocks, the start of the workers included
    a block       milliseconds of a block, from when the first results are there to when the last are; so many
blocks are left out as there are workers
    times         how many times as many blocks as one worker, by `a block`
    engine        how many times as long as the engine, by `a block`, for so many workers
    workers, driver, others    processors in use in that time: by the workers, by this process, and by Ray's
other processes
    elsewhere     processors in use by all else on the machine, which workers lack: Ray starts them
with a niceness of 15. The figures say what Ray costs if this is near nothing.
"""

import logging
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
import typer

import stepnet as sn
from bench.arrow_batches import MEGABYTE, record_batch, recurrence, rows_of
from bench.rows import write_rows
from stepnet.ray import predict

WAYS = 0, 1, 2
"""The numbers of workers; 0 is the engine alone."""
TICKS = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 0
KINDS = "workers", "driver", "others", "elsewhere"
IDLE = 3, 4
"""The places of the first line of /proc/stat that count idle time, of 8 that count time."""


@dataclass(frozen=True)
class Run:
    """The result of a run: its seconds, those of a block, and the processors used by each kind of process."""

    seconds: float
    block: float
    used: tuple[float, ...]


def processor_seconds() -> dict[tuple[str, int], float]:
    """Returns the processor time of this process and those that it started, by (kind, number); of the whole
    machine under ("busy", 0).
    """
    ticks = [int(word) for word in Path("/proc/stat").read_text().split()[1:9]]
    busy = sum(count for place, count in enumerate(ticks) if place not in IDLE) / TICKS
    stats = dict[int, tuple[int, float, str]]()
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            text, title = entry.read_text(), entry.with_name("cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):  # the process has ended
            continue
        fields = text.rpartition(")")[2].split()
        stats[int(entry.parent.name)] = int(fields[1]), (int(fields[11]) + int(fields[12])) / TICKS, title
    parents, spent = {number: stat[0] for number, stat in stats.items()}, dict[tuple[str, int], float]()
    for number, (_, seconds, title) in stats.items():
        if os.getpid() in ancestors(number, parents):
            child = "workers" if "ModelWorker" in title else "others"
            spent["driver" if number == os.getpid() else child, number] = seconds
    return spent | {("busy", 0): busy}


def ancestors(number: int, parents: dict[int, int]) -> Iterator[int]:
    """Yields a process's number, its parent's, and so on, to find the processes that this one started."""
    while number in parents:
        yield number
        number = parents[number]


def timed(results: Iterator[Any], expected: Any, together: int) -> Run:
    """Times a run, whose results come block by block. Raises `SystemExit` for other bits than `expected`.

    together: the number of workers.
    """
    begun, times, spent = time.perf_counter(), list[float](), dict[tuple[str, int], float]()
    held = list[Any]()  # compared after the clock has stopped, because that takes processor time
    for result in results:
        times.append(time.perf_counter())
        spent = spent or processor_seconds()
        held.append(result)
    after, least = processor_seconds(), times[-1] - times[0]
    if not all(np.array_equal(result, expected) for result in held):
        raise SystemExit("a worker gives other outputs than the engine")
    grown = {key: seconds - spent.get(key, 0.0) for key, seconds in after.items()}
    grown["elsewhere", 0] = grown.pop(("busy", 0)) - sum(grown.values())
    used = tuple(sum(own for (each, _), own in grown.items() if each == kind) / least for kind in KINDS)
    return Run(times[-1] - begun, least / (len(times) - together), used)


def of_engine(rnn: sn.RNN, block: Any, blocks: int) -> Iterator[Any]:
    """Yields the results of the engine alone, for as many blocks."""
    sequences = sn.Ragged.from_arrow(block.column("frames"))
    for _ in range(blocks):
        yield rnn(sequences, last_only=True)[0]


def of_workers(rnn: sn.RNN, reference: Any, blocks: int, count: int) -> Iterator[Any]:
    """Yields the results of `count` workers of one thread; reference: the block in Ray's store."""
    source = ray.data.from_arrow_refs([reference] * blocks)
    results = predict(source, rnn, keep=[], concurrency=count, num_cpus=1)
    for part in results.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=0):
        column = part.column("last").combine_chunks()
        yield column.flatten().to_numpy().reshape(len(column), -1)


def started(size: float) -> None:
    """Starts Ray for two workers, without its messages; size: the bytes of a block."""
    options: dict[str, Any] = {"include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    ray.init(num_cpus=2, object_store_memory=int(max(20 * size, 2e8)), ignore_reinit_error=True, **options)
    ray.data.DataContext.get_current().enable_progress_bars = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def measured(hidden: int, size: float, blocks: int, rounds: int) -> list[dict[str, Any]]:
    """Times the engine, one worker and two, in alternation; returns a row of figures for each."""
    rnn, block = recurrence(hidden), record_batch(hidden, rows_of(hidden, size))
    started(size)
    sn.set_threads(1)
    expected = next(of_engine(rnn, block, 1))
    reference = ray.put(pa.Table.from_batches([block]))
    runs = dict[int, list[Run]]((count, []) for count in WAYS)
    for _ in range(rounds):
        for count in WAYS:
            results = of_workers(rnn, reference, blocks, count) if count else of_engine(rnn, block, blocks)
            runs[count].append(timed(results, expected, count or 1))
    blocks_of = {count: median(run.block for run in own) for count, own in runs.items()}
    return [
        {
            "way": f"workers: {count}" if count else "engine",
            "seconds": median(run.seconds for run in own),
            "a block": 1e3 * blocks_of[count],
            "times": blocks_of[1] / blocks_of[count],
            "engine": blocks_of[count] * (count or 1) / blocks_of[0],
            **{kind: median(run.used[place] for run in own) for place, kind in enumerate(KINDS)},
        }
        for count, own in runs.items()
    ]


def main(
    hidden: Annotated[int, typer.Option(help="Units, and features of a step.")] = 256,
    block: Annotated[float, typer.Option(help="The megabytes of a block.")] = 64,
    blocks: Annotated[int, typer.Option(help="How many blocks.", min=4)] = 32,
    rounds: Annotated[int, typer.Option(help="How many times each is run.", min=1)] = 2,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time two workers beside one, and one beside the engine, and print a table or JSON."""
    rows = measured(hidden, block * MEGABYTE, blocks, rounds)
    write_rows(rows, as_json, f"{hidden} units, {blocks} blocks of {block:g} MB, workers of one thread")


if __name__ == "__main__":
    typer.run(main)
