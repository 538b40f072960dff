"""Times what calls take outside of machine code: Python, new arrays, and the way to machine code and back.

    python -m bench.outside                     a table
    python -m bench.outside --case unseen       the cases whose names contain a text
    python -m bench.outside --json

The cases of `bench.calls` run blocks without tasks in the place of their own: machine code is called and does
nothing, so their results are not those of the model. Streams and searches run whole, with models of 16 units,
of whose time the machine code is a small part: a step of 8 rows takes 2.5 microseconds with it. Figures are
processor time of one thread, in microseconds: the least of many turns, which other processes do not change by
much.
"""

import time
from collections.abc import Callable, Iterator
from ctypes import c_int64
from dataclasses import dataclass
from itertools import cycle
from typing import Annotated, Any

import numpy as np
import typer

import stepnet as sn
from bench import beams, calls
from bench.printing import print_rows
from stepnet.compiler.targets.cpu.machine.memory import pointer
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running import call_block

Array = np.ndarray
Run = Callable[[], Any]
ROWS, INPUTS, STEPS = 8, calls.SIZE, 40


@dataclass(frozen=True)
class Row:
    """The least microseconds of a case."""

    case: str
    microseconds: float


def least(run: Run, turns: int, count: int = 200) -> float:
    """Returns the microseconds of processor time of a call of `run`: the least of some turns of `count`."""
    for _ in range(count):
        run()
    seconds = list[float]()
    for _ in range(turns):
        begun = time.process_time()
        for _ in range(count):
            run()
        seconds.append((time.process_time() - begun) / count)
    return 1e6 * min(seconds)


def outside(text: str, turns: int) -> Iterator[Row]:
    """Times the cases of `bench.calls` whose names contain a text, without their machine code."""
    run_list, held = call_block.run_list, list[Array]()

    class OnEmpty:
        """The function that runs prepared calls, bound to a copy of a block without its tasks."""

        def __init__(self, processor: Processor) -> None:
            """Takes the processor that the function is for."""
            self.processor = processor

        def bound(self, address: int) -> Any:
            """Returns the function, bound to a copy of the block at an address."""
            names = *call_block.HEAD, *call_block.ALLOCATED
            words = np.array((c_int64 * len(names)).from_address(address), np.int64)
            words[[names.index(f"{each}_count") for each in ("copy", "task", "space")]] = 0
            held.append(words)
            return run_list(self.processor).bound(pointer(words))

    for name, case in calls.CASES.items():
        if text in name and case.use is None:
            call_block.run_list = OnEmpty  # type: ignore[assignment]
            run, given = calls.ours(case), cycle(case.inputs())
            yield Row(name, least(lambda run=run, given=given: run(next(given)), turns))
            call_block.run_list = run_list


def stream_runs() -> dict[str, Run]:
    """Returns functions that take a step of a stream of `ROWS` rows, by the name of the case."""
    random = np.random.default_rng(0)
    x, half = random.standard_normal((ROWS, INPUTS), np.float32), ROWS // 2
    halves, numbers = cycle([np.arange(half), np.arange(half, ROWS)]), cycle(range(ROWS))
    orders = cycle([random.integers(0, ROWS, ROWS) for _ in range(16)])
    whole, in_halves, single, changing, moved = (calls.gru().stream(rows=ROWS) for _ in range(5))
    for stream in (whole, in_halves, single, changing, moved):
        stream.step(x)

    def come_and_go() -> None:
        """Drops a row, adds one, and takes a step."""
        changing.drop(3)
        changing.add()
        changing.step(x)

    def reordered() -> None:
        """Moves the memories of rows, and takes a step."""
        moved.reorder(next(orders))
        moved.step(x)

    return {
        "a stream, a step of all rows": lambda: whole.step(x),
        "a stream, halves of the rows in turn": lambda: in_halves.step(x[:half], rows=next(halves)),
        "a stream, one row in turn": lambda: single.step(x[:1], rows=next(numbers)),
        "a stream, a row leaves and one comes": come_and_go,
        "a stream, rows in another order": reordered,
    }


def chunk_runs() -> dict[str, Run]:
    """Returns functions that take a chunk of 1 to 19 steps, by the name of the case."""
    random = np.random.default_rng(0)
    lengths = random.integers(1, 20, 64)
    chunks = [random.standard_normal((1, int(length), INPUTS)).astype("f4") for length in lengths]

    def run(model: Any) -> Run:
        """Makes the function for a graph of a recurrence."""
        stream, given = sn.Graph(lambda x, _: model(x)[0]).stream_chunks(), cycle(chunks)
        return lambda: stream.chunk(next(given))

    return {"chunks of new lengths, a GRU": run(calls.gru()), "chunks, two layers": run(calls.two())}


def search(kept: int, turns: int) -> float:
    """Returns the microseconds of a step of beam search with `kept` beams, over 32 symbols."""
    model, start = beams.language(INPUTS, 32), np.arange(1)

    def of_steps(count: int) -> float:
        """Returns the microseconds of a search of so many steps."""
        return least(lambda: sn.beam_search(model, start, beams=kept, max_steps=count), turns, 5)

    return (of_steps(STEPS + 4) - of_steps(4)) / STEPS


def main(
    case: Annotated[str, typer.Option(help="Cases whose names contain this.")] = "",
    turns: Annotated[int, typer.Option(min=1, help="How many turns each has.")] = 40,
    as_json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Time calls, streams and searches outside of machine code, and print a table or JSON."""
    sn.set_threads(1)
    rows = [*outside(case, turns)]
    runs = {name: run for name, run in (stream_runs() | chunk_runs()).items() if case in name}
    rows += [Row(name, least(run, turns)) for name, run in runs.items()]
    names = {f"a step of beam search, {kept} beams": kept for kept in (1, 4)}
    rows += [Row(name, search(kept, turns)) for name, kept in names.items() if case in name]
    columns = {"case": "{row.case}", "microseconds": "{row.microseconds:.2f}"}
    print_rows(rows, "Microseconds of processor time outside of machine code", columns, as_json)


if __name__ == "__main__":
    typer.run(main)
