"""A loop whose steps the host gives one by one: products and kernels of all sequences that still run.

sorted   the longest sequence first, so that those which still run are the first ones: step t has n of them
packed   arrays of all steps, step after step, so that a step is n rows side by side
step     the stages of `step_plan`, on these rows; memories lie where the step before wrote them

Values of a step lie where those of the step before the last one did, so a call needs no more memory for more
steps. All of it may be recorded and captured: the host reads nothing.
"""

from collections.abc import Collection, Generator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net, Recur
from stepnet.compiler.net.recur import OperandsByKind, ResultsByKind
from stepnet.compiler.net.types import CONST
from stepnet.compiler.targets.base import Call
from stepnet.compiler.targets.cuda.device import (
    KNOWN,
    Array,
    Device,
    DeviceArray,
    OwnedMemory,
    allocated,
    allocating,
    empty,
    put,
)
from stepnet.compiler.targets.cuda.kernel import CudaKernel, PlanRun, Values, constants_of
from stepnet.compiler.values.once import computed_once
from stepnet.compiler.values.records import dataclass
from stepnet.ragged.offsets import offsets_of
from stepnet.ragged.positions import Positions

Arrays = Sequence[DeviceArray | None]
Room = tuple[int, OwnedMemory]


@dataclass(frozen=True, eq=False)
class StepPlaces:
    """The steps of a batch, sorted and packed.

    positions: of the batch. device: the device. reverse: whether sequences run from their last step.
    """

    positions: Positions
    device: Device
    reverse: bool

    @classmethod
    def of(cls, positions: Positions, device: Device, reverse: bool) -> "StepPlaces":
        """Returns the places of some positions, which keep them for later calls."""
        made: StepPlaces = positions.derive(
            f"steps of {id(device)} {reverse}", lambda: cls(positions, device, reverse)
        )
        return made

    @computed_once
    def order(self) -> Array:
        """The sequences, the longest first."""
        return np.argsort(-self.positions.lengths, kind="stable")

    @computed_once
    def counts(self) -> Array:
        """The number of sequences that have each step."""
        lengths = self.positions.lengths[self.order]
        return np.searchsorted(-lengths, -np.arange(int(lengths.max(initial=0))), side="left")

    @computed_once
    def first(self) -> list[int]:
        """The first row of each step in packed arrays, and the number of all."""
        found: list[int] = offsets_of(self.counts).tolist()
        return found

    @computed_once
    def rows(self) -> DeviceArray:
        """The sequences in their order."""
        return put(self.device, self.order)

    @computed_once
    def entries(self) -> DeviceArray:
        """The entry of each row of packed arrays."""
        counts, positions = self.counts, self.positions
        first = np.array(self.first, np.int64)
        rows = self.order[np.arange(first[-1]) - np.repeat(first[:-1], counts)]
        steps = np.repeat(np.arange(len(counts)), counts)
        if self.reverse:
            steps = positions.lengths[rows] - 1 - steps
        return put(self.device, positions.step_indices(rows, steps, np.ones_like(rows)))

    @computed_once
    def calls(self) -> dict[int, Call]:
        """The positions of one step of some sequences, by their number."""
        return {}

    def call(self, count: int) -> Call:
        """Returns a call of some rows, without arrays."""
        if count not in self.calls:
            nothing: list[Any] = [None]
            self.calls[count] = Call(Positions.end_to_end(np.arange(count + 1)), nothing, nothing)
        return self.calls[count]


class StepRooms:
    """Memory for the values of a step; the step after the next one has the same memory."""

    def __init__(self) -> None:
        """Takes the present way to allocate memory."""
        self.outer, self.rooms = copy_context(), (list[Room](), list[Room]())
        self.free, self.place = list[Room](), 0

    @contextmanager
    def step(self) -> Generator[None]:
        """Context of a step, whose values lie in this memory."""
        self.place = 1 - self.place
        self.free = [*self.rooms[self.place]]
        token = KNOWN.set(None)
        try:
            with allocating(self.allocate):
                yield
        finally:
            KNOWN.reset(token)

    def allocate(self, device: Device, count: int) -> OwnedMemory:
        """Returns memory of at least `count` bytes that is not used in this step."""
        for at, (size, _) in enumerate(self.free):
            if size >= count:
                return self.free.pop(at)[1]
        room = self.outer.run(allocated, device, count)
        self.rooms[self.place].append((count, room))
        return room


@dataclass
class StepRun(PlanRun):
    """One step of the sequences that have it. filled: the arrays that values are written to, by node."""

    filled: Values

    def made(self, net: Net, number: int) -> DeviceArray:
        """Returns the memory of a value."""
        return self.filled.get(number) or super().made(net, number)


@dataclass
class SteppedLoop:
    """All steps of one call.

    run: the call. operands, results: the arrays that the loop reads and fills; None for memories of zeros,
    and for results that nothing reads.
    """

    run: PlanRun
    operands: Arrays
    results: Arrays

    @computed_once
    def kernel(self) -> CudaKernel:
        """The kernel of a step."""
        kernel = self.run.kernel.of_step
        assert kernel is not None
        return kernel

    @computed_once
    def places(self) -> StepPlaces:
        """Where the steps lie."""
        return StepPlaces.of(self.run.call.positions, self.run.memory.device, self.run.plan.reverse)

    @property
    def net(self) -> Net:
        """The net of a step."""
        return self.kernel.plan.net

    @property
    def recur(self) -> Recur:
        """The recurrence, which divides operands and results by kind."""
        return self.run.plan.recurrence.recur

    @computed_once
    def inputs(self) -> OperandsByKind:
        """The inputs of a step, by kind."""
        return self.recur.operands_by_kind(self.net.inputs[:-2])

    @computed_once
    def numbers(self) -> ResultsByKind:
        """The results of a step, by kind."""
        return self.recur.results_by_kind(self.net.results[:-1])

    def run_all(self) -> None:
        """Runs all steps, and fills the results."""
        places, given = self.places, self.recur.operands_by_kind(self.operands)
        made = self.recur.results_by_kind(self.results)
        sequences = [self.moved(array, places.entries) for array in given.sequences]
        pairs = zip(self.inputs.memories, given.memories, strict=True)
        state = [self.memory_of(number, array) for number, array in pairs]
        final = [self.run.memory.copy(array) for array in state]
        packed = [
            array and self.empty(places.first[-1], number)
            for number, array in zip(self.numbers.outputs, made.outputs, strict=True)
        ]
        known, statics = self.others(given.others)
        rooms, counts = StepRooms(), [*places.counts.tolist(), 0]
        for begin, count, following in zip(places.first, counts, counts[1:], strict=False):
            values = known | {n: rows_of(array, 0, count) for n, array in statics.items()}
            for number, array in zip(self.inputs.sequences, sequences, strict=True):
                values[number] = rows_of(array, begin, count)
            for number, array in zip(self.inputs.memories, state, strict=True):
                values[number] = rows_of(array, 0, count)
            with rooms.step():
                state = self.step(count, values, [array and rows_of(array, begin, count) for array in packed])
            for target, array in zip(final, state, strict=True):
                copied(*(rows_of(each, following, count - following) for each in (target, array)))
        self.fill(made.outputs, packed, places.entries)
        self.fill(made.memories, final, places.rows)

    def step(self, count: int, values: Values, outputs: Arrays) -> list[DeviceArray]:
        """Runs a step of the first `count` sequences; returns their next memories.

        values: the inputs, by node. outputs: the arrays to fill; None for one that nothing reads.
        """
        given, pairs = {*values}, [*zip(self.numbers.outputs, outputs, strict=True)]
        filled = {number: array for number, array in pairs if array is not None and number not in given}
        arrays: list[Any] = [values[self.net.inputs[place]] for place in self.kernel.plan.ends.statics]
        call = replace(self.places.call(count), statics=arrays)
        run = StepRun(self.kernel, call, values, filled)
        run.errors = self.run.errors
        run.stage("sequence")
        for number, array in pairs:
            if array is not None and run.values[number].address != array.address:
                copied(array, run.values[number])
        return [self.own(run, number, given) for number in self.numbers.memories]

    def own(self, run: PlanRun, number: int, given: Collection[int]) -> DeviceArray:
        """Returns the value of a node, in memory that later steps leave as it is; a copy of an input."""
        return self.run.memory.copy(run.values[number]) if number in given else run.values[number]

    def others(self, arrays: Arrays) -> tuple[Values, Values]:
        """Returns the constants of a step, and the statics of sequences in their order, by node."""
        pairs = [(n, array) for n, array in zip(self.inputs.others, arrays, strict=True) if array is not None]
        constants = [array for number, array in pairs if self.net.type_of(number).extent == CONST]
        statics = {
            n: self.moved(a, self.places.rows) for n, a in pairs if self.net.type_of(n).extent != CONST
        }
        return constants_of(self.kernel, constants), statics

    def fill(self, targets: Arrays, sources: Arrays, places: DeviceArray) -> None:
        """Copies the rows of arrays to their places in others."""
        for target, source in zip(targets, sources, strict=True):
            if target is not None and source is not None:
                self.run.memory.move(target, source, source.shape[0], places, None)

    def moved(self, array: DeviceArray | None, origins: DeviceArray) -> DeviceArray:
        """Returns the rows of an array from these places."""
        assert array is not None
        made = empty(array.device, (origins.shape[0], *array.shape[1:]), array.dtype)
        self.run.memory.move(made, array, origins.shape[0], None, origins)
        return made

    def memory_of(self, number: int, array: DeviceArray | None) -> DeviceArray:
        """Returns a memory before the first step, of sequences in their order. number: its node."""
        if array is not None:
            return self.moved(array, self.places.rows)
        type_ = self.net.type_of(number)
        return self.run.memory.zeros((len(self.places.order), *type_.shape), type_.dtype)

    def empty(self, count: int, number: int) -> DeviceArray:
        """Allocates some rows of a value. number: its node."""
        type_ = self.net.type_of(number)
        return empty(self.run.memory.device, (count, *type_.shape), type_.dtype)


def rows_of(array: DeviceArray, begin: int, count: int) -> DeviceArray:
    """Returns some rows of an array, where they lie."""
    row = array.nbytes // max(1, array.shape[0])
    return DeviceArray(
        array.device, array.address + begin * row, (count, *array.shape[1:]), array.dtype, array.owner
    )


def copied(target: DeviceArray, source: DeviceArray) -> None:
    """Copies the elements of an array to another one of the same shape."""
    target.device.copy(target.address, source.address, target.nbytes)
