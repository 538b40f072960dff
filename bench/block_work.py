"""Blocks of sequences, as a worker of a cluster reads and runs them: on one thread, from a file on disk.

Parquet or Arrow file  ->  Ragged  ->  the recurrence, last outputs
read                       run
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from multiprocessing import get_context
from pathlib import Path
from queue import Empty
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as parquet

import stepnet as sn
from stepnet import cells

WIDE = 64
"""Keys and values of a head of the delta rule."""


@dataclass(frozen=True)
class Load:
    """A workload: a cell, its units, and sequences of some steps, of which a block has `rows`.

    Inputs are as wide as the memory of a GRU or an LSTM. The gated delta rule has heads of 64 x 64 and gets
    queries, keys and values ready.
    """

    cell: str
    hidden: int
    steps: int
    rows: int = 256

    @property
    def bytes(self) -> int:
        """The bytes of the inputs of a block of the workload, in float32."""
        return self.rows * self.steps * self.features * 4

    @property
    def features(self) -> int:
        """The number of input features of a step."""
        return self.hidden if self.cell != "gated_delta_rule" else 3 * self.hidden + 2 * self.heads

    @property
    def heads(self) -> int:
        """The number of heads of the delta rule."""
        return max(1, self.hidden // WIDE)


def recurrence(load: Load) -> tuple[sn.RNN, Callable[[Any], Any]]:
    """Returns a workload's recurrence, and a function that makes its inputs of a `Ragged` of all features."""
    if load.cell != "gated_delta_rule":
        return cells.rnn(load.cell, cells.CELLS[load.cell].parameters(load.hidden, load.hidden)), lambda x: x
    heads, wide = load.heads, load.hidden // load.heads

    def inputs(x: Any) -> dict[str, Any]:
        """Splits the features into the delta rule's queries, keys, values, decays and rates."""
        parts = np.split(x.values, np.cumsum([load.hidden] * 3 + [heads]), axis=1)
        shapes = [(-1, heads, wide)] * 3 + [(-1, heads)] * 2
        arrays = [
            np.ascontiguousarray(part).reshape(shape) for part, shape in zip(parts, shapes, strict=True)
        ]
        q, k, v, g, beta = arrays
        k = k / np.linalg.norm(k, axis=-1, keepdims=True)
        rows = {"q": q, "k": k, "v": v, "g": -np.abs(g), "beta": 1 / (1 + np.exp(-beta))}
        return {name: x.with_values(array) for name, array in rows.items()}

    return sn.RNN(cells.gated_delta_rule, memory=(heads, wide, wide)), inputs


def sequences(load: Load) -> sn.Ragged:
    """Returns the random sequences of a block of a workload."""
    total = load.rows * load.steps
    values = np.random.default_rng(0).standard_normal((total, load.features), np.float32)
    return sn.Ragged(values, (np.arange(load.rows + 1, dtype=np.int64) * load.steps,))


def write(load: Load, folder: Path) -> dict[str, Path]:
    """Writes a block of sequences as a Parquet and as an Arrow file; returns their paths by format."""
    table = pa.table({"frames": sequences(load).to_arrow()})
    files = {"parquet": folder / "block.parquet", "arrow": folder / "block.arrow"}
    parquet.write_table(table, files["parquet"])
    with pa.ipc.new_file(files["arrow"], table.schema) as writer:
        writer.write_table(table)
    return files


def read(file: Path) -> sn.Ragged:
    """Reads the sequences of a block's file; those of an Arrow file stay in the mapped memory."""
    if file.suffix == ".parquet":
        return sn.Ragged.from_arrow(parquet.read_table(file, use_threads=False)["frames"])
    with pa.memory_map(str(file)) as source:
        return sn.Ragged.from_arrow(pa.ipc.open_file(source).read_all()["frames"])


@cache
def runner(load: Load) -> Callable[[sn.Ragged], Any]:
    """Returns a function that runs a workload's recurrence on a block, and gives the last outputs."""
    rnn, inputs = recurrence(load)
    return lambda x: rnn(inputs(x), last_only=True)[0]


def done(load: Load, file: Path) -> Any:
    """Reads a block from a file and runs it; returns the last outputs."""
    return runner(load)(read(file))


def seconds_of(run: Callable[[], Any]) -> float:
    """Returns the seconds of one call."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


# ---- real workers ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Worked:
    """The result of workers: seconds from the first block's begin to the last one's end, and per block."""

    seconds: float
    times: list[float]


def worker(load: Load, file: Path, blocks: int, taken: Any, ready: Any, results: Any) -> None:
    """Runs blocks in this process until `blocks` are taken by all workers; puts its begin, end and times.

    file: the block that is run each time. taken: the shared count of blocks. ready: the barrier at the start.
    """
    sn.set_threads(1)
    done(load, file)  # compiles
    ready.wait()
    begun, times = time.monotonic(), list[float]()
    while True:
        with taken.get_lock():
            number = taken.value
            taken.value += 1
        if number >= blocks:
            break
        times.append(seconds_of(lambda: done(load, file)))
    results.put((begun, time.monotonic(), times))


def answer(results: Any, processes: Sequence[Any]) -> Any:
    """Returns the next worker's result; raises `SystemExit` if a process ended without any."""
    while True:
        try:
            return results.get(timeout=1)
        except Empty:
            if codes := [process.exitcode for process in processes if process.exitcode]:
                for process in processes:
                    process.terminate()
                raise SystemExit(f"a worker ended with code {codes[0]}") from None


def worked(load: Load, blocks: int, workers: int) -> Worked:
    """Runs `blocks` blocks of a workload by `workers` new processes of one thread each, and times them."""
    context = get_context("spawn")
    taken, ready, results = context.Value("q", 0), context.Barrier(workers), context.Queue()
    with TemporaryDirectory() as folder:
        file = write(load, Path(folder))["parquet"]
        arguments = load, file, blocks, taken, ready, results
        processes = [context.Process(target=worker, args=arguments) for _ in range(workers)]
        for process in processes:
            process.start()
        told = [answer(results, processes) for _ in processes]
        for process in processes:
            process.join()
    begun, ended, times = zip(*told, strict=True)
    return Worked(max(ended) - min(begun), [each for own in times for each in own])
