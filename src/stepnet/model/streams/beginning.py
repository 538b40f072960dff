"""Rows before the first step of a stream, and the step that they begin with.

The memory of a step is known once the step is traced, which needs its inputs. So until the first step, rows
are kept as the user gave them, in copies.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.values.arguments import is_tensor
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, rebuild, transform
from stepnet.errors import InputError, named
from stepnet.model.batch import Batch, checked_array
from stepnet.model.initial import is_zeros
from stepnet.model.jax_arrays import is_on_device
from stepnet.model.specs import check_inputs, with_dtypes
from stepnet.model.statics import Statics
from stepnet.model.streams.called import CalledStep, in_sequences, step_inputs
from stepnet.model.streams.layers import CalledRecurrence, Stepped
from stepnet.model.streams.memories import Memories
from stepnet.model.streams.on_device import memories_in, step_on
from stepnet.model.streams.prepared import PreparedStep, StepKind
from stepnet.model.streams.statics import rows_of
from stepnet.ragged import Ragged

Array = np.ndarray
LayerStep = PreparedStep | CalledStep
AN_AXIS = "a step of a stream takes [rows, features...], without an axis of steps, and an input is "
"""The beginning of messages where an input may have such an axis, of one step."""


@dataclass(frozen=True)
class New:
    """The checked memories and statics of new rows for one layer of a stream, to be written to its arrays.

    memory: the memories of the rows; None for zeros.
    first: the memories that `reset` goes back to; None for zeros.
    statics: the statics of the rows, as arrays and Raggeds; None to keep the present ones.
    """

    memory: list[Array] | None
    first: list[Array] | None
    statics: list[Any] | None

    def of(self, rows: Array) -> "New":
        """Returns the memories and statics (values that each sequence has once) of some of these rows, such
        as those that were not dropped since.

        rows: the indices of the rows.
        """
        memory, first = (
            None if arrays is None else [array[rows] for array in arrays]
            for arrays in (self.memory, self.first)
        )
        return New(memory, first, None if self.statics is None else rows_of(self.statics, rows))

    def put(self, step: LayerStep, slots: Array, side: int, begun: Array) -> None:
        """Writes the memories and statics of these new rows (sequences) of a stream into the arrays of a
        layer.

        step: the prepared step of the layer, which has the arrays. slots: the position of each row in the
        arrays. side: the one of each row's two memories to write, 0 or 1; a step reads one and writes the
        other. begun: the number of steps that each row has taken.
        """
        if self.memory is None or self.first is None:
            step.memories.clear(slots, side, begun)
        else:
            step.memories.put(slots, side, self.memory, begun)
            step.memories.put_first(slots, self.first)
        if self.statics:
            step.put_statics(slots, self.statics)


ZEROS = New(None, None, [])
"""New rows of a layer whose rows begin with zeros, and have no statics."""


@dataclass(frozen=True)
class AddedRows:
    """Rows that were added to a stream together before its first step, with the arguments that the user gave.

    count: the number of rows that were added.
    initial, statics: the arguments for each layer.
    begun: the number of steps of each row that ran before.
    kept: the indices of the rows that were not dropped since.
    """

    count: int
    initial: Sequence[Any]
    statics: Sequence[Any]
    begun: Array
    kept: Array

    def new(self, index: int, step: LayerStep, engine: Order) -> New:
        """Returns the checked initial memories and statics (values that each sequence has once) of the added
        rows (sequences) for one layer, also of rows dropped since.

        index: the position of the layer. step: its prepared step; raises `InputError` if the arguments for
        the rows do not fit it. engine: the engines that compute initial memories, in order of preference.
        """
        statics = step.checked_statics(self.statics[index], self.count)
        computed = computed_memories(step, statics, self.count, engine)
        if computed is None and self.initial[index] is None:  # as usual
            return New(None, None, statics)
        argument = step.kind.traced.arguments[1]
        memories = step.memories.initial(self.initial[index], self.count, argument, computed)
        return New(memories, memories, statics)


def declared_memory(rnn: Stepped, pieces: Sequence[AddedRows], index: int) -> Any:
    """Returns the initial memory of rows in a layer with a declared memory, in the structure of the memory.

    A dtype that was left open follows from the latest or declared inputs. While no inputs are known, it
    follows from the parameters and the given initial memories.

    rnn: the recurrence of the layer, at the position `index`. pieces: the rows that were added so far.
    """
    inputs, given = rnn.known_inputs, leaves(rnn.params)
    if inputs is None:
        own = [leaf for piece in pieces for leaf in leaves(piece.initial[index])]
        given += [checked_array(leaf, "initial") for leaf in own if leaf is not None and not is_zeros(leaf)]
    memories = Memories(with_dtypes(rnn.memory, given, () if inputs is None else inputs), 0)
    parts = [memories.zeros(0)]
    for piece in pieces:
        arrays = memories.initial(piece.initial[index], piece.count, rnn.arguments[1])
        parts.append([array[piece.kept] for array in arrays])
    return rebuild(memories.specs, [np.concatenate(each) for each in zip(*parts, strict=True)])


def computed_memories(step: LayerStep, statics: list[Any], count: int, engine: Order) -> list[Array] | None:
    """Returns the initial memories of `count` rows, if the model computes some from statics (values that each
    sequence has once); else None.

    The memories that it does not compute are zeros.

    step: the prepared step of a layer.
    statics: the statics of these rows.
    engine: the engines in order of preference.
    """
    if step.kind.begin is None:
        return None
    memories = step.memories.zeros(count)
    for index, array in step.kind.begin.memories(statics, count, engine).items():
        memories[index] = array
    return memories


def with_piece(pieces: Sequence[AddedRows], piece: AddedRows) -> tuple[AddedRows, ...]:
    """Appends a group of rows, those that one call added to a stream before its first step, to the groups so
    far; leaves out groups of which all rows were dropped. Returns the groups.

    A group without rows is appended too if it has any arrays, as the first step checks their shapes. Its
    arrays are copied, as the caller may fill them anew before the first step.

    pieces: the groups so far. piece: the new group.
    """
    has = bool(piece.count or leaves(list(piece.initial)) or leaves(list(piece.statics)))
    piece = replace(piece, initial=copied(list(piece.initial)), statics=copied(list(piece.statics)))
    return (*(own for own in pieces if len(own.kept)), *([piece] if has else []))


def copied(structure: Any) -> Any:
    """Returns a structure with copies of its arrays, tensors and Raggeds, which stay as they are when the
    caller fills the given ones anew.
    """

    def copy(leaf: Any) -> Any:
        """Copies an array, a tensor or a Ragged; returns anything else as it is."""
        if isinstance(leaf, Ragged):
            return Ragged(leaf.values.copy(), leaf.offsets)
        if is_tensor(leaf):
            return leaf.clone()
        return cast("Array", leaf).copy() if isinstance(leaf, np.ndarray) else leaf

    return transform(copy, structure)


def without(pieces: Sequence[AddedRows], rows: Array) -> tuple[AddedRows, ...]:
    """Returns the groups of rows that were added to a stream before its first step, without some rows, and
    without groups that have none left.

    pieces: the groups; each has the rows that one call added. rows: the indices of the rows, counted through
    all groups.
    """
    remaining: list[AddedRows] = []
    first = 0
    for piece in pieces:
        gone = rows[(rows >= first) & (rows < first + len(piece.kept))] - first
        remaining.append(replace(piece, kept=np.delete(piece.kept, gone)))
        first += len(piece.kept)
    return tuple(piece for piece in remaining if len(piece.kept))


def prepare_step(
    rnn: Stepped, x: Any, rows: int, some: bool, statics: Any, count: int, capacity: int, engine: Order
) -> LayerStep:
    """Traces the step of a stream's layer for its first inputs, and allocates the arrays that it reads and
    writes.

    rnn: the recurrence of the layer. x: the inputs of `rows` rows. some: whether other rows of the stream
    wait, for messages. statics: the statics (values that each sequence has once) of `count` rows, which fix
    the features and dtypes for all rows of the stream. capacity: the number of rows that the arrays have room
    for. engine: the engines in order of preference.
    """
    x = transform(lambda leaf: np.empty(leaf.shape, leaf.dtype) if is_on_device(leaf) else leaf, x)
    if any(isinstance(leaf, Ragged) for leaf in leaves(x)):
        x = step_inputs(x, rows, some, rnn.arguments[0])
    else:
        x = step_inputs(rnn.as_declared(x), rows, some, rnn.arguments[0])
    batch = Batch.of(in_sequences(x, rows), None)
    shapes: list[tuple[int, ...]] = [spec.shape for spec in leaves(batch.specs) if not spec.levels]
    longer = [[rows, *shape] for shape in shapes if len(shape) > 1 and shape[0] == 1]
    with named(*[f"{AN_AXIS}{shape}" for shape in longer[:1]]):
        kind = kind_for(rnn, batch.specs, Statics.of(statics, count).specs)
    return step_for(rnn, kind, capacity, engine)


def kind_for(rnn: Stepped, inputs: Any, statics: Any) -> StepKind:
    """Traces a layer's step for inputs and statics (values that each sequence has once) of these features and
    dtypes; raises `InputError` if the inputs are not as declared.

    rnn: the recurrence of the layer. inputs, statics: the structures, with a `Spec` (features and dtype) for
    each value.
    """
    check_inputs(rnn.inputs, inputs, owner=rnn.noun, argument=rnn.arguments[0])
    program = rnn.program_of(inputs, statics)
    return StepKind(program.traced, inputs, program.traced.statics, program.begin)


def step_for(rnn: Stepped, kind: StepKind, capacity: int, engine: Order) -> LayerStep:
    """Makes the step of a stream's layer from its traced step, with memories of zeros for up to `capacity`
    rows (sequences).

    A step with inputs or statics (values that each sequence has once) that are sequences runs as a separate
    call each time.

    rnn, kind: the recurrence of the layer, and its traced step. engine: the engines in order of preference.
    """
    if any(spec.levels for spec in leaves(kind.inputs)) or any(spec.axis for spec in leaves(kind.statics)):
        assert isinstance(rnn, CalledRecurrence)  # a graph with inner sequences has no stream
        return CalledStep(rnn, kind, engine, Memories(kind.traced.memory, capacity))
    program = rnn.program_of(kind.inputs, kind.statics)
    return step_on(program, kind, engine, partial(memories_in, kind.traced.memory, capacity))


def check_there_are_rows(count: int) -> None:
    """Raises `InputError` if a stream without rows takes its first step."""
    if not count:
        raise InputError("the stream has no rows yet; add(...) some before the first step")
