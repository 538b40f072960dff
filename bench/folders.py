"""Measures the overhead of `stepnet.arrow.run` beyond the bare engine, from Parquet to Parquet, and its
memory.

    python -m bench.folders                        sequences of 25 steps of 12 features, 256 units
    python -m bench.folders --format arrow         results in Arrow files
    python -m bench.folders --compression zstd     of the inputs and the results
    python -m bench.folders --memory               the most memory over 1, 4 and 20 GB of inputs
    python -m bench.folders --json

A GRU, float32, lists of lists of floats, files of 4000 sequences. `engine` is a call of the recurrence for
every file, on a `Ragged` that is there already, with `last_only` if the last outputs are asked for. Both have
to give the same bits, and alternate; a time is the median of all rounds, a ratio the median of each round's:
the share of the engine's speed that is left. `read` and `write` are what pyarrow alone takes for the same
files, in seconds of one processor.

Memory is the peak of a new process. The inputs are written before, 512 MB in each file, of the same numbers.
"""

import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import typer

import stepnet as sn
from bench.arrow_batches import MEGABYTE
from bench.rows import write_rows
from stepnet import arrow, cells
from stepnet.compiler.targets.threads import threads

STEPS, FEATURES, ROWS = 25, 12, 4000


@dataclass(frozen=True)
class Row:
    """The result for one kind of output: median seconds for all files, and the engine's share of them."""

    result: str
    sequences: int
    run: float
    engine: float
    share: float
    read: float
    write: float


def recurrence(hidden: int) -> sn.RNN:
    """Returns a GRU over the features of the files."""
    return cells.rnn("gru", cells.CELLS["gru"].parameters(FEATURES, hidden))


def sequences(rows: int, seed: int) -> sn.Ragged:
    """Returns `rows` random sequences."""
    values = np.random.default_rng(seed).standard_normal((rows * STEPS, FEATURES), np.float32)
    return sn.Ragged(values, (np.arange(rows + 1, dtype=np.int64) * STEPS,))


def write_file(path: Path, batch: sn.Ragged, compression: str) -> None:
    """Writes sequences to a Parquet file as lists of lists, each with a number in "id"."""
    column = batch.to_arrow().cast(pa.list_(pa.list_(pa.float32())))
    table = pa.table({"id": np.arange(len(batch)), "frames": column})
    pq.write_table(table, path, compression=compression, row_group_size=ROWS, use_dictionary=False)


def cpu_of(run: Callable[[], Any]) -> float:
    """Returns the seconds of processor time that a call takes."""
    begun = time.process_time()
    run()
    return time.process_time() - begun


def seconds_of(run: Callable[[], Any]) -> float:
    """Returns the seconds of one call; its results are freed in that time."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def timed(result: str, hidden: int, files: int, rounds: int, form: str, compression: str) -> Row:
    """Times `stepnet.arrow.run` over files, and the bare engine. Raises `SystemExit` if their outputs differ.

    result: "last" or "outputs". files: the number of files. form: the format of the results.
    """
    rnn, last = recurrence(hidden), result == "last"
    with tempfile.TemporaryDirectory() as name:
        inputs, output = Path(name, "in"), Path(name, "out")
        inputs.mkdir()
        batches = [sequences(ROWS, seed) for seed in range(files)]
        for number, batch in enumerate(batches):
            write_file(inputs / f"{number:04}.parquet", batch, compression)

        def ours() -> Any:
            """Runs the folder of inputs to the folder of results, to be timed."""
            arrow.run(inputs, rnn, output, result=result, file_format=form, compression=compression)

        def bare() -> None:
            """Calls the engine for the same sequences, to be timed."""
            for batch in batches:
                rnn(batch, last_only=last)

        ours()
        made = [table_of(path) for path in sorted(output.iterdir())]
        for table, batch in zip(made, batches, strict=True):
            check_numbers(table[result].combine_chunks(), rnn(batch, last_only=last)[0], result)
        read = sum(cpu_of(lambda path=path: pq.read_table(path)) for path in sorted(inputs.iterdir()))
        again = Path(name, "again.parquet")
        plain = {"use_dictionary": ["id"], "write_statistics": ["id"], "compression": compression}
        packed = sum(cpu_of(lambda table=table: pq.write_table(table, again, **plain)) for table in made)
        del made
        pairs = list[tuple[float, float]]()
        for _ in range(rounds):
            shutil.rmtree(output)
            pairs.append((seconds_of(ours), seconds_of(bare)))
    mine, engine = (median(times) for times in zip(*pairs, strict=True))
    share = median(alone / whole for whole, alone in pairs)
    return Row(result, files * ROWS, mine, engine, share, read, packed)


def check_numbers(column: Any, expected: Any, result: str) -> None:
    """Raises `SystemExit` if a column of results has other bits than the engine gives."""
    last = result == "last"
    numbers = column.flatten() if last else column.flatten().flatten()
    if not np.array_equal(numbers, (expected if last else expected.values).reshape(-1)):
        raise SystemExit(f"run gives other {result} than the engine")


def table_of(path: Path) -> Any:
    """Reads a file of results as an Arrow table."""
    return pq.read_table(path) if path.suffix == ".parquet" else pa.ipc.open_file(path).read_all()


def write_inputs(folder: Path, size: float) -> None:
    """Writes `size` bytes of numbers into files of 512 MB, in row groups of 4000 sequences."""
    batch = sequences(ROWS, 0)
    table = pa.table({"frames": batch.to_arrow().cast(pa.list_(pa.list_(pa.float32())))})
    folder.mkdir()
    left, number = size, 0
    while left > 0:
        path = folder / f"{number:04}.parquet"
        with pq.ParquetWriter(path, table.schema, compression="none", use_dictionary=False) as writer:
            written = 0
            while written < min(left, 512 * MEGABYTE):
                writer.write_table(table)
                written += batch.values.nbytes
        left, number = left - written, number + 1


def peak(folder: str, output: str, result: str, hidden: int) -> None:
    """Runs over a folder, and prints the most megabytes that this process held."""
    import resource

    arrow.run(folder, recurrence(hidden), output, result=result)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE)


def peak_apart(size: float, result: str, hidden: int, place: str | None = None) -> float:
    """Returns the peak megabytes of a new process that runs over `size` bytes of inputs in folder `place`."""
    with tempfile.TemporaryDirectory(dir=place) as name:
        write_inputs(Path(name, "in"), size)
        arguments = f"{name}/in", f"{name}/out", result, hidden
        text = f"from bench.folders import peak\npeak(*{arguments!r})"
        made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
        return float(made.stdout)


def main(
    hidden: Annotated[int, typer.Option(help="Units.")] = 256,
    files: Annotated[int, typer.Option(help="How many files.", min=1)] = 8,
    rounds: Annotated[int, typer.Option(help="How many times each is run.", min=1)] = 5,
    form: Annotated[str, typer.Option("--format", help="Of the results: parquet or arrow.")] = "parquet",
    compression: Annotated[str, typer.Option(help="none, snappy or zstd.")] = "none",
    memory: Annotated[bool, typer.Option("--memory", help="Measure memory, not time.")] = False,
    total: Annotated[list[float] | None, typer.Option(help="With --memory: gigabytes of inputs.")] = None,
    place: Annotated[str | None, typer.Option(help="With --memory: a folder for the files.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time `run` beside the engine, or measure its memory, and print a table or JSON."""
    rows = list[dict[str, Any]]()
    if memory:
        for size in total or [1, 4, 20]:
            megabytes = peak_apart(size * 1000 * MEGABYTE, "last", hidden, place)
            rows.append({"gigabytes": size, "peak": megabytes})
    else:
        for result in ("last", "outputs"):
            rows.append(asdict(timed(result, hidden, files, rounds, form, compression)))
    write_rows(rows, as_json, f"{hidden} units, {threads()} threads, {form}, {compression}")


if __name__ == "__main__":
    typer.run(main)
