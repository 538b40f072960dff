"""Measures the overhead of `stepnet.arrow.predict` beyond the bare engine, and the memory that it takes.

    python -m bench.arrow_batches                    sequences of 25 steps, 256 units, batches of 64 MB
    python -m bench.arrow_batches --batch 0.1        batches of 100 kB, which are joined
    python -m bench.arrow_batches --total 640        more of them
    python -m bench.arrow_batches --memory           the most memory over 1 and 4 GB of batches
    python -m bench.arrow_batches --json

A GRU, float32, inputs as wide as the memory, lists of fixed-size lists. `engine` is a call of the recurrence
for every 64 MB, on a `Ragged` that is there already, with `last_only` if the last outputs are asked for. The
time of `predict` beyond that is its overhead. Both have to give the same bits, and alternate; a time is the
median of all rounds, a ratio that of each round's.

Memory is the peak of a new process, less its memory after the first batch. A batch is made when it is asked
for, of the same numbers.
"""

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import typer

import stepnet as sn
from bench.rows import write_rows
from stepnet import arrow, cells
from stepnet.compiler.targets.threads import threads

STEPS = 25
MEGABYTE = 1_000_000
CALL = 64 * MEGABYTE
"""Bytes of sequences in a call of the engine alone."""


@dataclass(frozen=True)
class Row:
    """The result for one kind of output: median milliseconds for all batches, and the ratio of both."""

    output: str
    batches: int
    rows: int
    predict: float
    engine: float
    ratio: float


def recurrence(hidden: int) -> sn.RNN:
    """Returns a GRU whose inputs are as wide as its memory, with initial parameters."""
    return cells.rnn("gru", cells.CELLS["gru"].parameters(hidden, hidden))


def record_batch(hidden: int, rows: int, seed: int = 0) -> Any:
    """Returns an Arrow batch of `rows` random sequences, "frames", and a number for each, "id"."""
    values = np.random.default_rng(seed).standard_normal((rows * STEPS, hidden), np.float32)
    offsets = np.arange(rows + 1, dtype=np.int64) * STEPS
    return pa.record_batch({"id": np.arange(rows), "frames": sn.Ragged(values, (offsets,)).to_arrow()})


def rows_of(hidden: int, size: float) -> int:
    """Returns the number of sequences in a batch of `size` bytes, at least 1."""
    return max(1, int(size / (STEPS * hidden * 4)))


def timed(output: str, hidden: int, size: float, total: float, rounds: int) -> Row:
    """Times `predict` and the bare engine on the same batches. Raises `SystemExit` if their outputs differ.

    output: "last" or "outputs". size, total: the bytes of a batch, and of all batches.
    """
    rnn, last = recurrence(hidden), output == "last"
    batches = [
        record_batch(hidden, rows_of(hidden, size), seed) for seed in range(max(1, round(total / size)))
    ]
    together = max(1, round(CALL / size))
    calls = [
        sn.Ragged.from_arrow(pa.chunked_array([each.column("frames") for each in batches[k : k + together]]))
        for k in range(0, len(batches), together)
    ]

    def ours() -> Any:
        """Runs `predict` over all batches, to be timed; returns the columns of results."""
        return [part.column(output) for part in arrow.predict(iter(batches), rnn, result=output)]

    def bare() -> Any:
        """Calls the engine for the same sequences, to be timed; returns the results."""
        return [rnn(sequences, last_only=last)[0] for sequences in calls]

    made = [column.flatten() if last else column.flatten().flatten() for column in ours()]
    expected = [each if last else each.values for each in bare()]
    if not np.array_equal(np.concatenate(made), np.concatenate(expected).reshape(-1)):
        raise SystemExit(f"predict gives other {output} than the engine")
    del made, expected
    seconds = [(seconds_of(ours), seconds_of(bare)) for _ in range(rounds)]
    our_time, engine_time = (1e3 * median(times) for times in zip(*seconds, strict=True))
    ratio = median(mine / engine for mine, engine in seconds)
    return Row(output, len(batches), sum(map(len, calls)), our_time, engine_time, ratio)


def seconds_of(run: Callable[[], Any]) -> float:
    """Returns the seconds of one call; its results are freed in that time."""
    begun = time.perf_counter()
    run()
    return time.perf_counter() - begun


def peak() -> float:
    """Returns the most megabytes of memory that this process has held so far."""
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / MEGABYTE


def held(hidden: int, size: float, total: float, output: str, memory: int) -> dict[str, float]:
    """Runs `predict` in this process; returns the peak megabytes after the first results and after all.

    size, total: the bytes of a batch, and of all. memory: the limit for `predict`, in bytes.
    """
    source = record_batch(hidden, rows_of(hidden, size))

    def batches() -> Iterator[Any]:
        """Yields copies of one batch, as many as make `total` bytes, so that each takes memory of its own."""
        for _ in range(max(1, round(total / size))):
            columns = [pa.concat_arrays([column, column[:0]]) for column in source.columns]  # makes a copy
            yield pa.record_batch(columns, source.schema.names)

    rows, first = 0, 0.0
    for number, batch in enumerate(
        arrow.predict(batches(), recurrence(hidden), result=output, memory=memory)
    ):
        rows += batch.num_rows
        del batch
        if number == 2:  # by now, one batch was made while another was in memory
            first = peak()
    return {"rows": rows, "first": first, "peak": peak()}


def held_apart(*arguments: Any) -> dict[str, float]:
    """Calls `held` in a new process, so that only its own memory counts; returns what it returns."""
    text = f"import json\nfrom bench.arrow_batches import held\nprint(json.dumps(held(*{arguments!r})))"
    made = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    return json.loads(made.stdout)


def main(
    hidden: Annotated[int, typer.Option(help="Units, and features of a step.")] = 256,
    batch: Annotated[float, typer.Option(help="The megabytes of a batch.")] = 64,
    total: Annotated[
        list[float] | None, typer.Option(help="The megabytes of all batches: 128; 1000 and 4000 for memory.")
    ] = None,
    rounds: Annotated[int, typer.Option(help="How many times each is run.", min=1)] = 7,
    memory: Annotated[bool, typer.Option("--memory", help="Measure memory, not time.")] = False,
    limit: Annotated[int, typer.Option(help="With --memory: the megabytes of memory=.")] = 256,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")] = False,
) -> None:
    """Time `predict` beside the engine, or measure its memory, and print a table or JSON."""
    rows = list[dict[str, Any]]()
    for megabytes in total or ([1000, 4000] if memory else [128]):
        for output in ("last", "outputs"):
            sizes = hidden, batch * MEGABYTE, megabytes * MEGABYTE
            if memory:
                rows.append({"total": megabytes, "output": output})
                rows[-1] |= held_apart(*sizes, output, limit * MEGABYTE)
            else:
                rows.append({"total": megabytes} | asdict(timed(output, *sizes, rounds)))
    title = f"memory={limit} MB: megabytes at most" if memory else f"{threads()} threads: milliseconds"
    write_rows(rows, as_json, f"{hidden} units, batches of {batch:g} MB, {title}")


if __name__ == "__main__":
    typer.run(main)
