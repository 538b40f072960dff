"""The parts of generation: a model with a function from symbols to inputs and one from outputs to
scores, and the sequences that are being generated.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.targets import Order
from stepnet.compiler.values.arguments import (
    LARGEST,
    array_of,
    checked_integer,
    checked_integers,
    function,
    is_integer,
)
from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, transform
from stepnet.errors import InputError, named
from stepnet.model.compose import Layer, Stack
from stepnet.model.generation.feeds import Feed, feeder
from stepnet.model.model import Model, checked_model
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN
from stepnet.ragged import Ragged

Array = np.ndarray
FOLLOW = "symbols follow one another"
"""The beginning of messages about a model that a stream cannot run, which generates no symbols."""


@dataclass(frozen=True)
class Front:
    """The state of generated sequences between two calls.

    layer: the recurrences that continue them.
    scores: the scores of their next symbols, [rows, symbols].
    state: their memories.
    statics: their statics (values that each sequence has once).
    begun: the number of steps of each sequence that were run.
    """

    layer: Layer
    scores: Array
    state: Any
    statics: Any
    begun: Array


def entries_of(structure: Any, rows: Array) -> Any:
    """Returns a structure of arrays and Raggeds with only some rows of each."""
    return transform(
        lambda leaf: leaf.take(rows) if isinstance(leaf, Ragged) else np.asarray(leaf)[rows], structure
    )


class Live:
    """Sequences that are being generated step by step, as rows of a stream.

    The rows of ended sequences stay in the stream until at most half of its rows are left.
    """

    def __init__(self, writer: "Writer", front: Front, rows: Array) -> None:
        """Starts a stream with one row for each of some sequences.

        writer: the model, with the conversion from symbols to inputs.
        front: the state of all sequences.
        rows: the indices in `front` of those to run; one may repeat.
        """
        self.writer, self.layer, self.places, self.steps = writer, front.layer, np.arange(len(rows)), 0
        self.symbols = np.zeros(len(rows), np.int64)
        self.statics, self.begun = entries_of(front.statics, rows), front.begun[rows]
        state = entries_of(front.state, rows)
        self.stream = self.layer.stream(len(rows), state, self.statics, writer.engine, begun=self.begun)

    def take(self, left: Array) -> "Live":
        """Continues the generation of symbols with fewer sequences, as others have ended; returns this
        object, or one of fewer rows if at most half remain.

        left: the indices of the remaining sequences among the present ones.
        """
        if 2 * len(left) <= len(self.symbols):
            return self.anew(left)
        self.places = self.places[left]
        return self

    def anew(self, rows: Array) -> "Live":
        """Returns some of the sequences that are being generated, in a new stream, in the given order. rows:
        their indices among the present ones. One that is repeated continues in several ways.
        """
        front = Front(self.layer, np.zeros(0), self.stream.state, self.statics, self.begun + self.steps)
        return Live(self.writer, front, self.places[rows])

    def reorder(self, rows: Array) -> None:
        """Moves memories between sequences: sequence i goes on from the memory of sequence rows[i].

        Statics (values that each sequence has once) stay, and so do the memories of ended sequences.
        """
        order = rows
        if len(self.places) < len(self.symbols):
            order = np.arange(len(self.symbols))
            order[self.places] = self.places[rows]
        self.stream.reorder(order)

    def step(self, symbols: Array) -> Any:
        """Feeds one symbol to each sequence; returns the outputs of the recurrence.

        Ended sequences that are still rows of the stream get their last symbol again.

        symbols: the symbol of each sequence that has not ended.
        """
        self.symbols[self.places] = symbols
        output = self.stream.step(self.writer.feed(self.symbols))
        self.steps += 1
        return output if len(self.places) == len(self.symbols) else entries_of(output, self.places)


@dataclass(frozen=True)
class Writer:
    """A model for generation, with functions from symbols to inputs and from outputs to scores."""

    model: Model
    feed: Feed | Callable[[Array], Any]
    scores: Callable[[Any], Any] | None
    engine: Order

    @classmethod
    def of(cls, model: Any, feed: Any, scores: Any, engine: Asked) -> "Writer":
        """Makes the writer, which runs a model in generation; raises `InputError` for one with `until`, and
        for one that a stream cannot run, with the part that prevents it.

        model, feed, scores, engine: the arguments `rnn`, `feed`, `scores` and `engine` of `generate`.
        """
        order = checked_model(model, "rnn is").engine_order(engine)
        if model.ends_early:
            raise InputError("generated sequences end by stop=; make the recurrence without until=")
        with named(FOLLOW):
            model.for_stream(order)
        if scores is not None:
            function(scores, "scores is a function of a step's output")
        return cls(model, feeder(model, feed), scores, order)

    def begin(self, start: Any, initial: Any, statics: Any, stops: Array) -> Front:
        """Runs the given first symbols of each sequence; returns the state after them.

        start, initial, statics: the arguments of `generate`.
        stops: the stop symbols; raises `InputError` for one that has no score.
        """
        symbols = start_symbols(start)
        sequences = self.inputs(symbols)
        with named(FOLLOW):
            layer, initial = self.model.as_layers(sequences, initial, statics, self.engine)
        assert isinstance(layer, RNN | Stack)
        outputs, state = layer(sequences, initial, statics, last_only=True, engine=self.engine)
        scores = self.scored(outputs, len(symbols))
        beyond = stops[stops >= scores.shape[1]]
        if len(beyond):
            raise InputError(f"stop is {beyond[0]}, and there are scores of {scores.shape[1]} symbols")
        return Front(layer, scores, state, statics, symbols.lengths)

    def inputs(self, symbols: Ragged) -> Any:
        """Converts a Ragged of symbols to the input sequences of the recurrence."""
        fed = self.feed(symbols.values)
        return transform(lambda array: symbols.with_values(array_of(array, "what feed gives")), fed)

    def scored(self, output: Any, rows: int) -> Array:
        """Returns the scores [rows, symbols] of an output; raises `InputError` if a row has no finite
        maximum. output: the output of the recurrence. rows: the number of sequences.
        """
        scores = self.unchecked_scores(output, rows)
        check_highest(scores, scores.max(axis=1))
        return scores

    def unchecked_scores(self, output: Any, rows: int) -> Array:
        """Returns the scores [rows, symbols] of an output; raises `InputError` for another shape.

        They may be NaN or infinite.

        output: the output of the recurrence.
        rows: the number of sequences.
        """
        given = output if self.scores is None else self.scores(output)
        array: Array = array_of(given, "the output") if len(leaves(given)) == 1 else np.zeros(())
        if (
            array.ndim != 2
            or len(array) != rows
            or not array.shape[1]
            or kind_of_dtype(array.dtype) not in ("float", "integer")
        ):
            described = f"{array.dtype}{list(array.shape)}" if array.ndim else f"a {type(given).__name__}"
            raise InputError(
                f"scores are [rows, symbols], and the output is {described}; scores= makes them of it"
            )
        return array


def check_highest(scores: Array, highest: Array) -> None:
    """Raises `InputError` unless the highest score of each row is finite.

    scores: the scores, [rows, symbols], for the message.
    highest: for each row the highest score, or another value that is finite exactly where that is.
    """
    if not np.isfinite(highest).all():
        row = np.isfinite(highest).argmin()
        raise InputError(f"the scores of row {row} have no highest: {scores[row]}")


def start_symbols(start: Any) -> Ragged:
    """Returns the argument `start` as a Ragged of symbols; raises `InputError` if it is empty or invalid."""
    given = start if isinstance(start, Ragged) else array_of(start, "start")
    values = given.values if isinstance(given, Ragged) else given
    axes = values.ndim + (given.levels if isinstance(given, Ragged) else 0)
    if (values.size and values.dtype.kind not in "iu") or axes not in (1, 2):
        described = given if isinstance(given, Ragged) else f"{values.dtype}{list(values.shape)}"
        raise InputError(
            "start is whole numbers from 0: one symbol per sequence [batch], or a Ragged or an array "
            f"[batch, time] of them, not {described}"
        )
    wrong = values[(values < 0) | (values > LARGEST)] if values.size else values
    if wrong.size:
        raise InputError(
            f"start has the symbol {wrong.flat[0]}, and symbols are whole numbers from 0 to 2**63 - 1"
        )
    symbols = values.astype(np.int64)
    if isinstance(given, Ragged):
        ragged = given.with_values(symbols)
    else:
        ragged = Ragged.from_padded(symbols if axes == 2 else symbols[:, None])
    empty = np.flatnonzero(ragged.lengths == 0)
    if len(empty):
        raise InputError(f"start has no symbol in sequence {empty[0]}; a first symbol says what may follow")
    return ragged


def checked_most(max_steps: Any) -> int:
    """Returns the argument `max_steps`; raises `InputError` if it is missing or below 1."""
    if max_steps is None:
        raise InputError("max_steps= is missing: a sequence that never stops has to end somewhere")
    return checked_integer(max_steps, "max_steps is the most symbols of a sequence, 1 or more", 1)


def checked_stops(stop: Any) -> Array:
    """Returns the argument `stop`, one symbol, several or None, as an array of the symbols that end a
    sequence; raises `InputError` for other values.
    """
    given = () if stop is None else stop
    return checked_integers(
        [given] if is_integer(given) else given, None, "stop", many="one or a list of them"
    )


def checked_symbols(symbols: Any, shape: tuple[int, ...]) -> Array:
    """Returns the symbols from a sampler as int64; raises `InputError` for another shape, dtype or range.

    shape: the shape of the scores, (rows, symbols).
    """
    array = array_of(symbols, "what the sampler gave")
    if array.shape != shape[:1] or array.dtype.kind not in "iu":
        raise InputError(
            f"a sampler gives {shape[0]} whole numbers, one per row, not {array.dtype}{list(array.shape)}"
        )
    wrong = np.flatnonzero((array < 0) | (array >= shape[1]))
    if len(wrong):
        raise InputError(f"the sampler gave symbol {array[wrong[0]]}, and there are {shape[1]}")
    return array.astype(np.int64)
