"""Streams on a device: memories stay there, and a step copies its inputs there and its outputs back.

    rows        host: slots, sides, counts of steps, statics, memories to reset to
    memories    device: two arrays [slots, features...] for each, as a step reads one side and makes the other

A step of all rows in the order of their slots is one call on these arrays as they are. Where some rows wait,
or slots are free, the memories of the others are gathered before the call and scattered after it. Inputs that
are arrays of the device are taken where they lie, and then outputs stay there.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from stepnet.compiler.net.memory import HOST, AnyMemory, Buffer
from stepnet.compiler.targets import AddressEngine, Bound, Call, Order, choose, engines_of
from stepnet.compiler.values.structure import arranged, leaves, rebuild, skeleton, titled_leaves
from stepnet.errors import IndexOutsideError, InputError
from stepnet.model.batch import checked_array
from stepnet.model.jax_arrays import is_on_device
from stepnet.model.program import NetProgram, StepProgram
from stepnet.model.streams.memories import Memories
from stepnet.model.streams.moment import Moment, is_in_order
from stepnet.model.streams.prepared import PreparedStep, StepKind
from stepnet.model.streams.rows import check_rows, titled
from stepnet.ragged.positions import Positions

Array = np.ndarray


def engine_on_device(program: NetProgram, asked: Order) -> AddressEngine | None:
    """Returns the engine of a device that runs a step, by a call for each; None for engines of the host.
    asked: the engines in order of preference.
    """
    if not any(isinstance(engine, AddressEngine) for engine in engines_of(asked)):
        return None
    chosen, _ = choose(program.schedule_for(asked), asked)
    return chosen if isinstance(chosen, AddressEngine) else None


class RowsOnDevice:
    """An array [slots, features...] on a device, read and written by slots as one of the host is.

    memory: of the device. buffer: the array there, which a step of all rows replaces.
    """

    def __init__(self, memory: AnyMemory, array: Any) -> None:
        """Copies an array of the host to the device; takes one of the device as it is."""
        self.memory = memory
        self.buffer: Buffer = memory.put(array)

    def __getitem__(self, slots: Array) -> Array:
        """Copies the rows in some slots to the host."""
        return self.memory.get(self.memory.take(self.buffer, slots))

    def __setitem__(self, slots: Array, rows: Any) -> None:
        """Replaces the rows in some slots by arrays of the host, or of the device."""
        if len(slots):
            self.memory.write(self.buffer, slots, self.memory.put(rows))

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Array:
        """Copies all rows to the host, as NumPy asks for it. The arguments are NumPy's, and not used."""
        return self.memory.get(self.buffer)

    def of(self, slots: Array, in_order: bool) -> Buffer:
        """Returns the rows in some slots, on the device. in_order: whether these are all slots, in order."""
        return self.buffer if in_order else self.memory.take(self.buffer, slots)

    def put(self, slots: Array, in_order: bool, rows: Buffer) -> None:
        """Replaces the rows in some slots by rows of the device, without a copy where they are all."""
        if in_order:
            self.buffer = rows
        else:
            self.memory.write(self.buffer, slots, rows)


class PlacedRows(NamedTuple):
    """Some rows of a stream, as their steps read them.

    slots: the positions of their memories. in_order: whether these are all positions, in order.
    statics: their statics, on the device. positions: of one step of each.
    """

    slots: Array
    in_order: bool
    statics: list[Any]
    positions: Positions


class DeviceMemories(Memories):
    """Memories of one layer of a stream whose two sides lie on a device; the others lie on the host."""

    sides: tuple[list[Any], list[Any]]

    def __init__(self, specs: Any, capacity: int, memory: AnyMemory) -> None:
        """Allocates memories of zeros for `capacity` rows. memory: of the device."""
        super().__init__(specs, capacity)
        self.memory = memory
        one, other = ([RowsOnDevice(memory, array) for array in side] for side in self.sides)
        self.sides = one, other

    def grown(self, capacity: int) -> "DeviceMemories":
        """Returns a copy of a stream's memories with room for more rows (sequences): `capacity` in all."""
        larger, slots = DeviceMemories(self.specs, capacity, self.memory), np.arange(self.capacity)
        for new, old in zip(larger.sides, self.sides, strict=True):
            for target, source in zip(new, old, strict=True):
                target.put(slots, False, source.buffer)
        for target, source in zip((*larger.first, *larger.begun), (*self.first, *self.begun), strict=True):
            target[: self.capacity] = source
        return larger

    def clear(self, slots: Array, side: int, begun: Array) -> None:
        """Writes zeros for new rows of a stream; see `Memories.clear`."""
        zeros = self.zeros(len(slots))
        self.put(slots, side, zeros, begun)
        self.put_first(slots, zeros)

    def of(self, moment: Moment) -> list[Array]:
        """Returns copies of the memories of all rows, after the steps that they have taken, on the host.

        moment: the state of the stream, with each row's position in the arrays, and which of its two memories
        is in use.
        """
        sides, arrays = moment.all_sides, list[Array]()
        for one, two in zip(*self.sides, strict=True):
            array = one[moment.slots]
            if sides.any():
                array[sides == 1] = two[moment.slots[sides == 1]]
            arrays.append(array)
        return arrays

    def move(self, moment: Moment, side: int, rows: Array) -> None:
        """Writes the memory and step count of row rows[i] of a stream to row i, on the side that is not in
        use. Nothing is copied to the host.

        moment: the state of the stream. side: the side that all rows use, 0 or 1.
        """
        before, after = side, 1 - side
        for source, target in zip(self.sides[before], self.sides[after], strict=True):
            moved = source.of(moment.slots[rows], False)
            target.put(moment.slots, moment.in_order and len(moment.slots) == self.capacity, moved)
        self.begun[after][moment.slots] = self.begun[before][moment.slots[rows]]


class DeviceStep(PreparedStep):
    """Runs the steps of one layer of a stream on a device, a call for each, for up to `capacity` rows.

    engine: of the device.
    """

    def __init__(
        self, kind: StepKind, bind: Callable[[], Bound], memories: Memories, engine: AddressEngine
    ) -> None:
        """Takes the traced step, its compiler, and the rows' memories on the engine's device."""
        super().__init__(kind, bind, memories)
        self.engine, self.memory = engine, engine.memory
        self.bound: Bound | None = None
        self.placed: PlacedRows | None = None

    def grown(self, capacity: int, slots: Array) -> "DeviceStep":
        """Returns a copy of this step with room for more rows (sequences), and with the statics (values that
        each sequence has once) of the present rows.

        capacity: the number of rows that it has room for. slots: the positions of the present rows.
        """
        larger = DeviceStep(self.kind, self.bind, self.memories.grown(capacity), self.engine)
        larger.put_statics(slots, self.statics_of(slots))
        return larger

    def put_statics(self, slots: Array, statics: list[Array]) -> None:
        """Writes the statics (values that are the same at all steps) of some rows of a stream; the next step
        copies them to the device. slots: the positions of the rows in the arrays.
        """
        for kept, new in zip(self.statics, statics, strict=True):
            kept[slots] = new
        self.placed = None

    def placed_rows(self, slots: Array) -> PlacedRows:
        """Returns some rows as their steps read them, which is kept for later steps of the same rows. slots:
        the positions of the rows in the arrays.
        """
        if self.placed is None or self.placed.slots is not slots:
            in_order = len(slots) == self.memories.capacity and is_in_order(slots)
            statics: list[Any] = [self.memory.put(array) for array in self.statics_of(slots)]
            positions = Positions.end_to_end(np.arange(len(slots) + 1))
            self.placed = PlacedRows(slots, in_order, statics, positions)
        return self.placed

    def step_rows(
        self, x: Any, slots: Array, side: int, some: bool = False, stays: bool | None = None
    ) -> Any:
        """Runs a step of some rows (sequences) of a stream; their next memories stay on the device. Returns
        the outputs.

        x: the inputs of these rows. slots: their positions in the arrays. side: the one of each row's two
        memories to read, 0 or 1; the step makes the other, so that it can be undone. some: whether other rows
        of the stream wait, for messages. stays: whether outputs stay on the device; None for as inputs are.
        """
        memories, count = self.memories, len(slots)
        given = self.given(x, count, some)
        inputs: list[Any] = [self.memory.put(value) for value in given]
        placed = self.placed_rows(slots)
        sides: Sequence[Sequence[RowsOnDevice]] = cast("Any", memories.sides)
        before: list[Any] = [array.of(slots, placed.in_order) for array in sides[side]]
        begun = memories.begun[side][slots] if self.counts else None
        self.bound = self.bound or self.bind()
        call = Call(placed.positions, inputs, before, placed.statics, step_offset=begun)
        try:
            results = self.bound(call)
        except IndexOutsideError as error:
            raise self.located(error, [self.memory.get(each) for each in inputs], slots) from None
        final: list[Any] = results.final
        for kept, new in zip(sides[1 - side], final, strict=True):
            kept.put(slots, placed.in_order, new)
        memories.begun[1 - side][slots] = memories.begun[side][slots] + 1
        stays = stays_on_device(self, x) if stays is None else stays
        outputs = [each if stays else self.memory.get(each) for each in results.outputs]
        return rebuild(self.kind.traced.output, outputs)

    def given(self, x: Any, count: int, some: bool) -> list[Any]:
        """Checks the inputs of a step; returns them as arrays of the host, or of the device for those that
        lie there. Raises `InputError` if their features or dtypes are not as before.

        x: the inputs. count: the number of rows that take the step. some: whether other rows of the stream
        wait, for messages.
        """
        kind, found = self.kind, list[Any]()
        if self.alone and type(x) is np.ndarray:  # checking takes a tenth of a short step
            like = self.inputs[0]
            if (x.dtype, x.shape) == (like.dtype, (count, *like.shape[1:])):
                return [x]
        x = arranged(x, kind.inputs)
        if skeleton(x) != skeleton(kind.inputs):
            raise InputError(f"a step's inputs are {skeleton(x)}; those before were {skeleton(kind.inputs)}")
        named = titled_leaves(x, kind.traced.arguments[0])
        for (name, leaf), spec in zip(named, leaves(kind.inputs), strict=True):
            array = self.engine.array_of(leaf) if is_on_device(leaf) else checked_array(leaf, titled(name))
            if array is None:
                raise InputError(f"{titled(name)} is on another device than the stream")
            check_rows(name, array, count, some)
            if (array.shape[1:], array.dtype) != (spec.shape, spec.dtype):
                raise InputError(
                    f"{titled(name)} is {array.dtype}{list(array.shape)}; those before were "
                    f"{spec.dtype}{[count, *spec.shape]}"
                )
            found.append(array)
        return found


def stays_on_device(step: object, x: Any) -> bool:
    """Tells whether the outputs of a step stay on its device: where one of the inputs `x` is there."""
    return isinstance(step, DeviceStep) and any(map(is_on_device, leaves(x)))


def step_on(
    program: StepProgram, kind: StepKind, asked: Order, memories: Callable[[AnyMemory], Memories]
) -> PreparedStep:
    """Makes the step of a stream's layer, or of several as one, on the device or the host that runs it.

    program, kind: of the layer, and its traced step. asked: the engines in order of preference.
    memories: returns the memories of the rows, which lie in a given memory.
    """
    engine = engine_on_device(program, asked)
    if engine is None:
        return PreparedStep(kind, lambda: program.bound(asked), memories(HOST))
    return DeviceStep(kind, lambda: program.bound(asked), memories(engine.memory), engine)


def memories_in(specs: Any, capacity: int, memory: AnyMemory) -> Memories:
    """Allocates memories of zeros for `capacity` rows of a stream, in a memory of the host or of a device.
    specs: the features and dtype of each, in their structure.
    """
    return Memories(specs, capacity) if memory is HOST else DeviceMemories(specs, capacity, memory)
