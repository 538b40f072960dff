"""The first step of all layers of a stream, and new rows in their slots."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves
from stepnet.errors import InputError, StepnetError, named
from stepnet.model.statics import Statics
from stepnet.model.streams.beginning import (
    AddedRows,
    LayerStep,
    New,
    declared_memory,
    kind_for,
    prepare_step,
    step_for,
)
from stepnet.model.streams.layers import Layers, Names, StreamedRecurrence
from stepnet.model.streams.memories import Memories
from stepnet.model.streams.moment import Moment
from stepnet.model.streams.on_device import DeviceStep, stays_on_device, step_on
from stepnet.model.streams.prepared import PreparedStep, StepKind
from stepnet.ragged import Ragged

Array = np.ndarray
LayerSteps = tuple[tuple[Names, LayerStep], ...]
NO_ROWS = np.zeros(0, np.int64)
UNKNOWN_MEMORY = (
    "the memory of a {0} follows from its inputs, which are not known yet: take a step, call the {0} first, "
    "or make it with inputs="
)
NOWHERE = nullcontext()
"""The context of the only layer, which is not named."""


def named_layer(names: Names) -> AbstractContextManager[Any]:
    """Returns a context that names the layer in errors which are raised in it. names: the names of the layer,
    outermost first; none for the only layer, whose errors stay as they are.
    """
    return named(*names) if names else NOWHERE


def first_moment(pieces: Sequence[AddedRows]) -> Moment:
    """Returns the state of a stream before its first step, in which row i lies at position i of the arrays.
    pieces: the groups of rows that were added so far.
    """
    begun = np.concatenate([NO_ROWS, *(piece.begun[piece.kept] for piece in pieces)])
    return Moment.of(np.arange(len(begun)), np.zeros(len(begun), np.int64), begun)


def are_zeros(steps: LayerSteps) -> bool:
    """Tells whether new rows begin with zeros in all layers, and have no statics (values that each sequence
    has once). steps: for each layer, its names and its prepared step.
    """
    return all(step.kind.begin is None and step.kind.statics is None for _, step in steps)


def put_pieces(pieces: Sequence[AddedRows], index: int, step: LayerStep, engine: Order) -> None:
    """Writes the first memories and statics (values that each sequence has once) of a stream's rows
    (sequences) to the arrays of a layer, when the stream takes its first step. The rows get positions in the
    arrays in the order in which they were added.

    pieces: the rows that were added before that step, in the groups in which `Stream.add` got them. Rows that
        were dropped since are left out.
    index: the position of the layer.
    step: its prepared step, which has the arrays.
    engine: the engines that compute initial memories, in order of preference.
    """
    first = 0
    for piece in pieces:
        slots = np.arange(first, first + len(piece.kept))
        piece.new(index, step, engine).of(piece.kept).put(step, slots, 0, piece.begun[piece.kept])
        first += len(piece.kept)


def first_step(
    layers: StreamedRecurrence | Layers,
    pieces: Sequence[AddedRows],
    moment: Moment,
    x: Any,
    row_indices: Array,
    some: bool,
    engine: Order,
) -> tuple[LayerSteps, Any]:
    """Runs the first step of a stream; returns the prepared steps of all layers, and the outputs.

    layers: the recurrences of the stream.
    pieces: the rows that were added so far, in groups. The statics (values that each sequence has once) of
        the first group fix the dtypes for all.
    moment: the state of the rows before the step.
    x: the inputs of the rows that take the step.
    row_indices: the indices of the rows that take the step.
    some: whether other rows wait.
    engine: the engines in order of preference.
    """
    steps: list[tuple[Names, LayerStep]] = []
    count, like = len(moment.slots), pieces[0]
    slots = moment.slots[row_indices] if some else moment.slots
    as_one = layers.as_one is not None and not any(isinstance(leaf, Ragged) for leaf in leaves(x))
    as_one = as_one and all(still is None for still in like.statics)
    value = x
    for index, (names, rnn) in enumerate(layers.named_recurrences):
        with named_layer(names):
            statics = like.statics[index], like.count
            step = prepare_step(rnn, value, len(row_indices), some, *statics, count, engine)
            put_pieces(pieces, index, step, engine)
            if as_one and isinstance(step, PreparedStep):
                value = step.blank(len(row_indices))
            else:
                value = step.step_rows(value, slots, 0, some)
            steps.append((names, step))
    results = tuple(steps)
    return results, run(results, whole_step(layers, results, engine), x, slots, 0, some) if as_one else value


@dataclass(frozen=True)
class WholeStep:
    """The steps of all layers of a stream as one, on the same memories.

    layers: the steps of the layers.
    step: the step of all of them.
    """

    layers: LayerSteps
    step: PreparedStep


def whole_step(layers: StreamedRecurrence | Layers, steps: LayerSteps, engine: Order) -> WholeStep | None:
    """Prepares one step that runs all layers of a stream; returns None for layers that must run one by one.

    Layers with statics (values that each sequence has once), and layers that read the number of earlier
    steps, run one by one.

    layers: the recurrences of the stream.
    steps: for each layer, its names and its prepared step.
    engine: the engines in order of preference.
    """
    own = [step for _, step in steps if isinstance(step, PreparedStep)]
    apart = len(own) < len(steps) or any(step.counts or leaves(step.kind.statics) for step in own)
    if layers.as_one is None or apart or (program := layers.as_one(own[0].kind.inputs)) is None:
        return None
    kind = StepKind(program.traced, own[0].kind.inputs, None)
    memories = Memories.of_layers([step.memories for step in own])
    return WholeStep(steps, step_on(program, kind, engine, lambda memory: memories))


def run(
    steps: LayerSteps, whole: WholeStep | None, x: Any, slots: Array, side: int, some: bool = False
) -> Any:
    """Runs a step of some rows (sequences) of a stream through all layers; returns the outputs of the last
    layer.

    If the step of all layers as one raises an error, the layers are run one by one, so that the error names
    the layer; this is safe, as a step writes only to memories that are not in use.

    steps: for each layer, its names and its prepared step. whole: the steps of the layers as one; None to run
    them one by one. x: the inputs of these rows. slots: their positions in the layers' arrays. side: the one
    of each row's two memories to read, 0 or 1; the step writes the other. some: whether other rows of the
    stream wait, for messages.
    """
    if whole is not None and whole.layers is steps:
        try:
            return whole.step.step_rows(x, slots, side, some)
        except StepnetError:
            pass
    stays = stays_on_device(steps[-1][1], x)
    for names, step in steps:
        try:
            if isinstance(step, DeviceStep):
                x = step.step_rows(x, slots, side, some, stays or step is not steps[-1][1])
            else:
                x = step.step_rows(x, slots, side, some)
        except StepnetError:
            with named_layer(names):
                raise
    return x


def prepare_steps(
    layers: StreamedRecurrence | Layers,
    pieces: Sequence[AddedRows],
    kinds: Sequence[StepKind],
    count: int,
    engine: Order,
) -> LayerSteps:
    """Prepares the steps of all layers, with the rows that were added so far, without running a step.

    layers: the recurrences of the stream.
    pieces: these rows, in the groups in which `Stream.add` got them.
    kinds: the traced step of each layer.
    count: the number of rows to make room for.
    engine: the engines in order of preference.
    """
    steps: list[tuple[Names, LayerStep]] = []
    for index, ((names, rnn), kind) in enumerate(zip(layers.named_recurrences, kinds, strict=True)):
        with named_layer(names):
            step = step_for(rnn, kind, max(1, count), engine)
            put_pieces(pieces, index, step, engine)
            steps.append((names, step))
    return tuple(steps)


def first_memories(
    layers: StreamedRecurrence | Layers, pieces: Sequence[AddedRows], engine: Order
) -> list[Any]:
    """Returns the memory of each layer before the first step of a stream, in its structure. Raises
    `InputError` for a graph whose inputs are not known, and for `initial` that does not fit.

    layers: the recurrences of the stream. pieces: the rows that were added so far, in groups.
    engine: the engines that compute initial memories, in order of preference.
    """
    moment, found = first_moment(pieces), list[Any]()
    for index, (names, rnn) in enumerate(layers.named_recurrences):
        with named_layer(names):
            if rnn.memory is not None:
                found.append(declared_memory(rnn, pieces, index))
                continue
            if (inputs := rnn.known_inputs) is None:
                raise InputError(UNKNOWN_MEMORY.format(rnn.noun))
            statics = Statics.of(pieces[0].statics[index], pieces[0].count).specs if pieces else None
            step = step_for(rnn, kind_for(rnn, inputs, statics), max(1, len(moment.slots)), engine)
            put_pieces(pieces, index, step, engine)
            found.append(step.memories.state(moment))
    return found


def put(steps: LayerSteps, moment: Moment, new: Sequence[New], begun: Array) -> tuple[LayerSteps, Array]:
    """Writes new rows (sequences) of a stream to free positions of the layers' arrays; returns the layers'
    prepared steps and these positions.

    Where there is no room, the steps are copies with larger arrays.

    moment: the state of the rows that exist. new: the memories and statics (values that each sequence has
    once) of the rows, for each layer.
    begun: the number of steps that each row has taken.
    """
    slots = moment.free(len(begun))
    needed = slots.item(-1) + 1 if len(slots) else 0
    if needed > steps[0][1].memories.capacity:  # as large in all layers
        room = needed + needed // 2
        steps = tuple((names, step.grown(room, moment.slots)) for names, step in steps)
    side = moment.free_side
    for (names, step), own in zip(steps, new, strict=True):
        with named_layer(names):
            own.put(step, slots, side, begun)
    return steps, slots
