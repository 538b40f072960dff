"""A schedule as one block of machine code, for calls whose sequences keep their lengths.

    arrays of a call   -> arrays of the block, end to end
    tasks              of all parts, and of each step of loops (`block_writer.py`)
    results            -> new arrays, where the caller has its steps

It is for nets with inner or static sequences, such as loops whose steps are schedules. A run of it is one
call of machine code; only totals that have none are computed by NumPy, behind it.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np

from stepnet.compiler.native.watching import Progress
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.schedule import Part
from stepnet.compiler.plan.waves import Across
from stepnet.compiler.targets.base import Array, Call, OptionalArrays, Places, PreparedCall, Results
from stepnet.compiler.targets.cpu.machine.memory import maker_of
from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.running.across import refusal_of
from stepnet.compiler.targets.cpu.running.block_writer import MOST_BYTES, BlockWriter, Values
from stepnet.compiler.targets.cpu.running.call_block import CallBlock, ThreadedBlock
from stepnet.compiler.targets.cpu.running.moves import pieces_of
from stepnet.compiler.targets.cpu.running.run import Runner
from stepnet.compiler.targets.packed import CallPacking
from stepnet.compiler.targets.part_execution import Frame
from stepnet.compiler.targets.schedule_kernel import BoundParts

NOTHING = np.zeros(0)


class StepReach:
    """Reader of the progress of a block: the rows whose steps of the outermost loops have run."""

    def __init__(self, steps: Sequence[int], sequences: int) -> None:
        """Takes the number of rows that have each step, and the number of sequences."""
        self.done, self.sequences, self.begun = np.cumsum([0, *steps]).tolist(), sequences, 0.0
        self.waves = range(len(self.done))

    def progress(self, at: int, is_done: bool) -> Progress:
        """Returns the progress of a call. at: the number of steps done. is_done: whether it is done."""
        whole, sequences = self.done[-1], self.sequences
        steps = whole if is_done else self.done[at]
        return Progress(steps, whole, sequences * is_done, sequences, time.perf_counter() - self.begun)


class Result(NamedTuple):
    """A result of a block.

    new: allocates its array.
    is_partial: whether the block writes only some rows, so that the others are zeros.
    late: the array that it is copied from after the run; None if the block writes it.
    """

    new: Callable[[], Array]
    is_partial: bool = False
    late: Array | None = None

    def array(self) -> Array:
        """Allocates the array of the result; zeros if the machine code writes only some of its rows."""
        array = self.new()
        if self.is_partial:
            array[...] = 0
        return array


class ScheduleBlock:
    """A schedule with its parameters, prepared for calls of one form. One thread at a time may run it."""

    def __init__(self, bound: BoundParts, call: Call, processor: Processor) -> None:
        """Writes the tasks of a schedule (a net divided into parts, with its parameters), as one block of
        machine code, for calls like `call`, whose arrays are not read.
        """
        self.form, net, given = bound.traced_form, bound.net, call.given
        packing = CallPacking.of(call)
        frame = Frame(packing.segments)
        writer = BlockWriter(processor, len(given) + len(net.results))
        values: Values = {}
        for place, (number, array) in enumerate(zip(bound.given, given, strict=True)):
            type_ = net.type_of(number)
            own = values[number] = writer.rows(("given", place), frame.count(type_.extent), type_)
            if array is None:
                own[...] = 0
            elif place < len(call.sequences) and packing.indices is not None:
                size = own.nbytes // max(1, len(own))
                writer.move(place, own, pieces_of(packing.indices, np.arange(len(own)), size))
            else:
                writer.copy(place, own, own.nbytes)
        writer.parts(bound, values, frame, ())
        self.results = [
            self.result(writer, writer.value(bound, values, number), packing, place, len(given) + place)
            for place, number in enumerate(net.results)
        ]
        self.fits = not writer.is_full
        groups = any(turn.group is not None for turn in writer.turns)
        reach: Any = StepReach(writer.steps, call.positions.rows)
        self.constants, self.after = writer.constants, writer.after
        self.block = (ThreadedBlock if groups else CallBlock)(writer.turns, reach, processor)
        self.held, self.bytes = (call, writer.held, writer.memory, writer.scratch), writer.bytes

    def result(
        self, writer: BlockWriter, array: Array, packing: CallPacking, place: int, index: int
    ) -> Result:
        """Adds the task that copies a result of the net to a new array; returns what a run needs to allocate
        that array.

        writer: adds the tasks; a result that NumPy computes after the run (`writer.late`) needs none. array:
            its value. packing: where the caller has its steps. place: its position among the results.
        index: the index of its new array among those of a run.
        """
        if any(array is late for late in writer.late):
            return Result(maker_of((array.shape, array.dtype)), late=array)
        call, shape = packing.call, array.shape
        if place not in self.form.ends.steps or not (call.last_only or packing.indices is not None):
            writer.copy(array, index, array.nbytes)
            return Result(maker_of((shape, array.dtype)))
        count, read, written = call.positions.total, np.arange(len(array)), packing.indices
        if call.last_only:
            count = call.positions.rows
            written, read = packing.positions.end_step_indices(self.form.backward[place])
        assert written is not None
        writer.move(array, index, pieces_of(read, written, array.itemsize * prod(shape[1:])))
        return Result(maker_of(((count, *shape[1:]), array.dtype)), len(written) < count)

    def run(self, given: OptionalArrays, places: Places | None) -> Results:
        """Runs the schedule (all parts of a net) on other arrays; returns its results in new arrays. Raises
        `InputError` if an index is outside its table.

        given: the sequences, initial memories, which are recurrent states (None for zeros, as in the call
            that it was prepared for), and statics (values that every step reads).
        places: None, as the lengths of the sequences are fixed.
        """
        made = [result.array() for result in self.results]
        read = [np.ascontiguousarray(bound.constants[number]) for bound, number in self.constants]
        arrays = [NOTHING if array is None else array for array in given]
        if not self.block.run([*arrays, *made, *read]):
            self.block.run([*map(np.asarray, arrays), *made, *read])
        for work in self.after:
            work()
        for array, result in zip(made, self.results, strict=True):
            if result.late is not None:
                array[...] = result.late
        return Results(*([made[place] for place in places] for places in self.form.results))


def has_code(bound: BoundParts) -> bool:
    """Tells whether machine code runs all parts of a schedule, but for totals (values over all rows) that
    nothing else reads, which NumPy can compute at the end.
    """
    late = {number for part in bound.schedule.parts if part.kind == "total" for number in part.results}
    for part, own in zip(bound.schedule.parts, bound.bound, strict=True):
        if part.kind == "total":
            continue
        # Windows that a kernel reads in place are addresses, which chains write.
        if part.is_bound_per_call or part.windows or not late.isdisjoint(part.reads):
            return False
        if not part_has_code(bound, part, own):
            return False
        late |= {n for n in part.results if n >= 0 and bound.net.type_of(n).extent == CONST}
    return True


def part_has_code(bound: BoundParts, part: Part, own: Any) -> bool:
    """Tells whether machine code does all work of a part of a schedule (a net divided into parts). bound: the
    schedule with its parameters. own: the compiled code of the part with its parameters.
    """
    if part.kind == "loop":
        return isinstance(own, BoundParts) and has_code(own)
    if part.kind == "across":
        across = Across.of(bound.net, part)
        return refusal_of(across, is_laid=True) is None
    if not isinstance(own, Runner):
        return False
    finish = own.native.finish
    return finish is None or finish.tasks.issuperset(own.native.plan.reduced)


def schedule_block(bound: BoundParts, call: Call) -> PreparedCall | None:
    """Prepares a schedule (a net divided into parts) with its parameters as one block of tasks, for calls
    like `call`, with the same lengths; None if a part has no machine code, or if there would be too many
    tasks, or too much memory.
    """
    first = next((own.native for own in runners_of(bound)), None)
    size = sum(array.nbytes for array in call.given if array is not None)
    if first is None or size > MOST_BYTES or not has_code(bound):
        return None
    block = ScheduleBlock(bound, call, first.processor)
    return PreparedCall(block.run, block.bytes) if block.fits else None


def runners_of(bound: BoundParts) -> Iterator[Runner]:
    """Yields the kernels of the parts of a schedule, and of the parts inside of its loops."""
    for own in bound.bound:
        if isinstance(own, Runner):
            yield own
        elif isinstance(own, BoundParts):
            yield from runners_of(own)
