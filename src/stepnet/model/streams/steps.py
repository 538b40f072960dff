"""The first step of all layers of a stream, and new rows in their slots."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.errors import named
from stepnet.model.streams.beginning import AddedRows, LayerStep, New, begun_step, step_for
from stepnet.model.streams.layers import Layers, Names, StreamedRecurrence
from stepnet.model.streams.moment import Moment
from stepnet.model.streams.prepared import StepKind

Array = np.ndarray
LayerSteps = tuple[tuple[Names, LayerStep], ...]
NO_ROWS = np.zeros(0, np.int64)


def named_layer(names: Names) -> AbstractContextManager[Any]:
    """Returns a context that names the layer in errors, if there are several layers."""
    return named(*names) if names else nullcontext()


def first_moment(pieces: Sequence[AddedRows]) -> Moment:
    """Returns the state of a stream before its first step: the rows added so far, in this order."""
    begun = np.concatenate([NO_ROWS, *(piece.begun[piece.kept] for piece in pieces)])
    return Moment.of(np.arange(len(begun)), np.zeros(len(begun), np.int64), begun)


def put_pieces(pieces: Sequence[AddedRows], place: int, step: LayerStep, engine: Order) -> None:
    """Writes the rows that were added before the first step to a layer's arrays.

    pieces: these rows, in the groups in which they were added. Rows that were dropped since are left out.
    place: the position of the layer.
    step: its prepared step.
    """
    first = 0
    for piece in pieces:
        slots = np.arange(first, first + len(piece.kept))
        piece.new(place, step, engine).of(piece.kept).put(step, slots, 0, piece.begun[piece.kept])
        first += len(piece.kept)


def stepped(
    layers: StreamedRecurrence | Layers,
    pieces: Sequence[AddedRows],
    moment: Moment,
    x: Any,
    places: Array,
    some: bool,
    engine: Order,
) -> tuple[LayerSteps, Any]:
    """Runs the first step of a stream; returns the prepared steps of all layers, and the outputs.

    pieces: the rows that were added so far, in groups. The statics of the first fix the dtypes for all.
    moment: the state of the rows before the step.
    x: the inputs of the rows that take the step.
    places: the indices of the rows that take the step.
    some: whether other rows wait.
    """
    steps: list[tuple[Names, LayerStep]] = []
    count, like = len(moment.slots), pieces[0]
    slots = moment.slots[places] if some else moment.slots
    for place, (names, rnn) in enumerate(layers.named):
        with named_layer(names):
            statics = like.statics[place], like.count
            step = begun_step(rnn, x, len(places), some, *statics, count, engine)
            put_pieces(pieces, place, step, engine)
            x = step.look(x, slots, 0, some)
            steps.append((names, step))
    return tuple(steps), x


def unstepped(
    layers: StreamedRecurrence | Layers,
    pieces: Sequence[AddedRows],
    kinds: Sequence[StepKind],
    count: int,
    engine: Order,
) -> LayerSteps:
    """Prepares the steps of all layers, with the rows that were added so far, without running a step.

    pieces: these rows, in the groups in which they were added.
    kinds: the traced step of each layer.
    count: the number of rows to make room for.
    """
    steps: list[tuple[Names, LayerStep]] = []
    for place, ((names, rnn), kind) in enumerate(zip(layers.named, kinds, strict=True)):
        with named_layer(names):
            step = step_for(rnn, kind, max(1, count), engine)
            put_pieces(pieces, place, step, engine)
            steps.append((names, step))
    return tuple(steps)


def put(steps: LayerSteps, moment: Moment, new: Sequence[New], begun: Array) -> tuple[LayerSteps, Array]:
    """Writes new rows to free slots (positions in the layers' arrays); returns the layers' steps and the
    slots.

    The steps are copies with more slots where there were too few.

    moment: the state of the rows that exist.
    new: the memories and statics of the rows, for each layer.
    begun: the number of steps that each row has taken.
    """
    slots = moment.free(len(begun))
    needed = int(slots.max(initial=-1)) + 1
    if any(needed > step.memories.capacity for _, step in steps):
        room = needed + needed // 2
        steps = tuple((names, step.grown(room, moment.slots)) for names, step in steps)
    for (names, step), own in zip(steps, new, strict=True):
        with named_layer(names):
            own.put(step, slots, moment.side, begun)
    return steps, slots
