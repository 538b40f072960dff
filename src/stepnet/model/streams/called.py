"""Steps over inputs or statics that are sequences.

The lengths of these change from step to step, so each step is a call of its own, over sequences of length 1.
"""

from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.values.structure import arranged, leaves, rebuild, skeleton, titled_leaves, transform
from stepnet.errors import InputError
from stepnet.model.batch import checked_array
from stepnet.model.streams.layers import CalledRecurrence
from stepnet.model.streams.memories import Memories
from stepnet.model.streams.prepared import StepKind
from stepnet.model.streams.rows import check_rows, titled
from stepnet.model.streams.statics import checked_statics, empty_slots, rows_of, with_slots
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray


class CalledStep:
    """Runs the steps of one layer of a stream as separate calls, for up to `capacity` rows."""

    def __init__(self, rnn: CalledRecurrence, kind: StepKind, engine: Order, memories: Memories) -> None:
        """Sets up a step that runs as a separate call of a recurrence, and allocates statics (values that
        each sequence has once) for as many rows (sequences) as the memories have room for.

        rnn: the recurrence whose calls are the steps. kind: its step, as traced for the inputs and statics of
        the stream.
        """
        self.rnn, self.kind, self.engine, self.memories = rnn, kind, engine, memories
        self.capacity = memories.capacity
        self.statics: list[Any] = empty_slots(kind.statics, self.capacity)

    def grown(self, capacity: int, slots: Array) -> "CalledStep":
        """Returns a copy of this step of a layer with arrays for more rows (sequences), and with the statics
        (values that each sequence has once) of the present rows.

        capacity: the number of rows that it has room for. slots: the positions of the present rows in the
        arrays.
        """
        larger = CalledStep(self.rnn, self.kind, self.engine, self.memories.grown(capacity))
        larger.put_statics(slots, self.statics_of(slots))
        return larger

    def checked_statics(self, statics: Any, count: int) -> list[Any]:
        """Checks the statics (values that each sequence has once) of `count` new rows of a stream; returns
        them as arrays and Raggeds.

        Raises `InputError` unless they have the structure, features and dtypes of the statics of earlier
        rows.
        """
        return checked_statics(statics, self.kind.statics, count)

    def put_statics(self, slots: Array, statics: list[Any]) -> None:
        """Writes the statics of some rows of the stream. slots: the positions of the rows in the arrays."""
        for index, new in enumerate(statics):
            kept = self.statics[index]
            if isinstance(kept, Ragged):
                self.statics[index] = with_slots(kept, slots, new)
            else:
                kept[slots] = new

    def statics_of(self, slots: Array) -> list[Any]:
        """Returns copies of the statics of a stream's rows, given by their slots (array positions)."""
        return rows_of(self.statics, slots)

    def step_rows(self, x: Any, slots: Array, side: int, some: bool = False) -> Any:
        """Runs a step of some rows (sequences) of a stream; writes their next memories and returns the
        outputs.

        x: the inputs of these rows. slots: their positions in the arrays of memories. side: the one of each
        row's two memories to read, 0 or 1; the step writes the other, so that it can be undone. some: whether
        other rows of the stream wait, for messages.
        """
        sequences = in_sequences(self.checked(x, len(slots), some), len(slots))
        memories, specs = self.memories, self.kind.traced.memory
        memory = rebuild(specs, [array[slots] for array in memories.sides[side]])
        begun = memories.begun[side][slots]
        statics = rebuild(self.kind.statics, self.statics_of(slots))
        reading = self.rnn.read(sequences, memory, statics, None, begun=begun)
        outputs, after = reading.unrounded(reading.running.bound(self.engine))
        memories.put(slots, 1 - side, after, begun + 1)
        return transform(of_the_step, outputs)

    def checked(self, x: Any, count: int, some: bool) -> Any:
        """Checks the inputs of a step; raises `InputError` if their features or dtypes are not as before.

        x: the inputs.
        count: the number of rows that take the step.
        some: whether other rows of the stream wait, for messages.
        """
        argument = self.kind.traced.arguments[0]
        x = step_inputs(arranged(x, self.kind.inputs), count, some, argument)
        if skeleton(x) != skeleton(self.kind.inputs):
            raise InputError(
                f"a step's inputs are {skeleton(x)}; those before were {skeleton(self.kind.inputs)}"
            )
        for (name, leaf), spec in zip(titled_leaves(x, argument), leaves(self.kind.inputs), strict=True):
            features, levels = (
                (leaf.features, leaf.levels) if isinstance(leaf, Ragged) else (leaf.shape[1:], 0)
            )
            if (features, levels, leaf.dtype) != (spec.shape, spec.levels, np.dtype(spec.dtype)):
                raise InputError(
                    f"{titled(name)} is of {leaf.dtype}{list(features)} and {levels} levels; those before "
                    f"were of {spec.dtype}{list(spec.shape)} and {spec.levels}"
                )
        return x


def step_inputs(x: Any, count: int, some: bool, argument: str) -> Any:
    """Checks the inputs of one step of a stream (sequences, its rows, that get one step per call); returns
    each as a `Ragged` or an array.

    x: the inputs.
    count: the number of rows that take the step.
    some: whether other rows of the stream wait, for messages.
    argument: the name of the step's argument for the inputs, for messages; "" for none.
    """
    inputs: list[Any] = []
    for name, leaf in titled_leaves(x, argument):
        if isinstance(leaf, Ragged):
            if len(leaf) != count:
                has = f"rows= names {count}" if some else f"the stream has {count} rows"
                raise InputError(f"{titled(name)} has {len(leaf)} sequences; {has}")
            inputs.append(leaf)
        else:
            array = checked_array(leaf, titled(name))
            check_rows(name, array, count, some)
            inputs.append(array)
    return rebuild(x, inputs)


def in_sequences(x: Any, count: int) -> Any:
    """Converts the inputs of a step to sequences of length 1, to run the step as a call.

    All are Raggeds if one is, as a call does not mix Raggeds and arrays; else arrays [rows, 1, features...].

    x: the inputs of the step.
    count: the number of rows.
    """
    lengths = np.ones(count, np.int64)
    deep = any(isinstance(leaf, Ragged) for leaf in leaves(x))

    def sequence(leaf: Any) -> Any:
        """Turns an input of one step into sequences of one step: an array, or a Ragged if any input is."""
        if isinstance(leaf, Ragged):
            return leaf.group(lengths)
        return Ragged(leaf, (offsets_of(lengths),)) if deep else leaf[:, None]

    return transform(sequence, x)


def of_the_step(output: Any) -> Any:
    """Converts an output of a call over sequences of length 1, an array [rows, 1, ...] or a `Ragged`, to that
    of a single step, without the axis of steps.
    """
    if isinstance(output, Ragged):
        return output.inner() if output.levels > 1 else output.values
    return output[:, 0]
