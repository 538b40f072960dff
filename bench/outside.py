"""Times what calls take outside of machine code: Python, new arrays, and the way to machine code and back.

    python -m bench.outside                     a table
    python -m bench.outside --case unseen       the cases whose names contain a text
    python -m bench.outside --json

The cases of `bench.calls` run with a function in the place of prepared machine code that does nothing; so
their results are not those of the model. Streams and searches run whole, with models of 16 units, of whose
time the machine code is a small part: a step of 8 rows takes 2.5 microseconds with it. Processor time of one
thread, in microseconds: the least of many turns, which other processes do not change by much.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from itertools import cycle
from typing import Annotated, Any

import llvmlite.binding as llvm
import numpy as np
import typer
from llvmlite import ir

import stepnet as sn
from bench import beams, calls
from bench.printing import print_rows
from stepnet.compiler.targets.cpu.machine.machine_code import NativeFunction
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


class NoCode:
    """A function of machine code that does nothing and returns 0. It stays loaded as long as this lives."""

    def __init__(self) -> None:
        """Compiles the function."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        module, number = ir.Module(), ir.IntType(64)
        function = ir.Function(module, ir.FunctionType(number, [number]), "nothing")
        ir.IRBuilder(function.append_basic_block()).ret(number(0))
        machine = llvm.Target.from_default_triple().create_target_machine()
        self.engine = llvm.create_mcjit_compiler(llvm.parse_assembly(str(module)), machine)
        self.engine.finalize_object()
        self.address = self.engine.get_function_address("nothing")

    def in_place_of(self, function: NativeFunction) -> NativeFunction:
        """Returns a function of machine code as Python calls it, with this code in the place of its own."""
        kind: Any = type(function.call)
        return replace(function, call=kind(self.address))


def outside(text: str, turns: int) -> Iterator[Row]:
    """Times the cases of `bench.calls` whose names contain a text, without their machine code."""
    nothing, run_block = NoCode(), call_block.run_block

    def no_block(processor: Processor) -> NativeFunction:
        """Returns the function in the place of that which runs a prepared call."""
        return nothing.in_place_of(run_block(processor))

    for name, case in calls.CASES.items():
        if text in name and case.use is None:
            call_block.run_block = no_block  # type: ignore[assignment]
            run, given = calls.ours(case), cycle(case.inputs())
            yield Row(name, least(lambda run=run, given=given: run(next(given)), turns))
            call_block.run_block = run_block


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
