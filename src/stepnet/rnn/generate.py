"""Sequences written by a recurrence: each output becomes the next input, until a stop symbol or a limit.

A recurrence over symbols gives a score for each symbol that may come next. `generate` takes one of them, and
`beam_search` (in `beams`) keeps the best few sequences. Symbols are whole numbers from 0. `feed` turns
symbols into inputs, and `scores` turns the outputs of the step into scores [rows, symbols] where they are not
scores already.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from stepnet.engines import checked_engine
from stepnet.errors import InputError
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.rnn.compose import Bidirectional, Stack, recurrences
from stepnet.rnn.declared import with_dtypes
from stepnet.rnn.masks import MOST_SEED, SEED, identified, numbers_at
from stepnet.rnn.program import Asked
from stepnet.rnn.recurrence import RNN
from stepnet.trace.functions import one_hot
from stepnet.trace.step import Spec
from stepnet.values.arguments import (
    LARGEST,
    array_of,
    function,
    is_integer,
    number,
    shown,
    whole,
    whole_numbers,
)
from stepnet.values.dtypes import DTYPES, kind_of_dtype
from stepnet.values.structure import leaves, transform

Array = np.ndarray
Feed = Callable[[Array], Any]
Sampler = Callable[[Array, Array], Any]


def generate(
    rnn: RNN | Stack,
    start: Any,
    *,
    max_steps: int | None = None,
    stop: int | Sequence[int] | None = None,
    sampler: Sampler | None = None,
    initial: Any = None,
    statics: Any = None,
    feed: Any = None,
    scores: Callable[[Any], Any] | None = None,
    seed: int = 0,
    identities: Any = None,
    engine: Asked = "auto",
) -> Ragged:
    """The symbols that a recurrence generates after the start of each sequence.

    At each step the output of the recurrence gives a score for every symbol. One symbol is chosen for each
    sequence and is the next input. A sequence ends with a stop symbol or after `max_steps` symbols.

    Args:
        rnn: A recurrence over symbols, or a `Stack` of them.
        start: One symbol per sequence, [batch]; or the first symbols of each sequence, a `Ragged` or an array
            [batch, time]. They are read first and are not part of the result.
        max_steps: The largest number of symbols of a sequence; required.
        stop: A symbol, or several, that end a sequence.
        sampler: sampler(scores [rows, symbols], random [rows]) -> symbols [rows]. Without it the symbol with
            the highest score is chosen, the lowest such symbol where several are equal. `sampling` makes
            samplers. `random` are numbers in [0, 1) that depend only on `seed`, the sequence and its step.
        initial: The memory before the start, as for `RNN.__call__`.
        statics: As for `RNN.__call__`.
        feed: The inputs for symbols [rows]: a function, or a table [symbols, features] whose rows are taken.
            Without it a recurrence made with `inputs=n` is fed one-hot vectors, and one made with `inputs=()`
            the symbols themselves.
        scores: A function from outputs to scores [rows, symbols], such as a dense layer.
        seed: The seed of the random numbers.
        identities: Whole numbers [batch] that name the sequences, their places by default. A sequence with
            the same number is the same in any batch.
        engine: An engine, or several in order of preference.

    Returns:
        A `Ragged` of int64: the new symbols of each sequence. The last one is the stop symbol, unless
        `max_steps` ended the sequence.

    Raises:
        InputError: Without `max_steps`, for a recurrence with `reverse=True` or `until`, and for arguments
            that do not fit.

    >>> import stepnet as sn
    >>> follows = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]], "float32")
    >>> rnn = sn.RNN(lambda x, h, p: (x @ p, h), follows, memory=1, inputs=4)
    >>> generate(rnn, [0, 2, 3], stop=3, max_steps=4).to_list()
    [array([1, 2, 3]), array([3]), array([0, 1, 2, 3])]
    """
    most, stops = checked_most(max_steps), checked_stops(stop)
    if sampler is not None:
        function(sampler, "sampler is a function sampler(scores, random)")
    whole(seed, SEED, 0, MOST_SEED)
    writer = Writer.of(rnn, feed, scores, engine)
    front = writer.begin(start, initial, statics, stops)
    rows, ahead = np.arange(len(front.scores)), front.scores
    names = identified(identities, len(rows))
    count, written = len(rows), list[tuple[Array, Array]]()
    live: Live | None = None
    for step in range(most):
        symbols = ahead.argmax(axis=-1)
        if sampler is not None:
            random = numbers_at(seed, names[rows], np.full(len(rows), step))
            symbols = checked_symbols(sampler(ahead, random), ahead.shape)
        written.append((rows, symbols))
        left = np.flatnonzero(~np.isin(symbols, stops)) if len(stops) else np.arange(len(rows))
        rows = rows[left]
        if not len(rows) or step + 1 == most:
            break
        live = Live(writer, front, left) if live is None else live.take(left)
        ahead = writer.scored(live.step(symbols[left]), len(left))
    order = np.argsort(np.concatenate([rows for rows, _ in written]), kind="stable")
    values = np.concatenate([symbols for _, symbols in written])[order]
    lengths = np.bincount(np.concatenate([rows for rows, _ in written]), minlength=count)
    return Ragged(values, (offsets_of(lengths),))


def sampling(temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None) -> Sampler:
    """A sampler for `generate` that draws symbols with the probabilities softmax(scores / temperature).

    Args:
        temperature: Above 0. Below 1 likely symbols become more likely, above 1 less.
        top_k: Draw only from the k symbols with the highest scores.
        top_p: Draw only from the smallest set of most probable symbols whose probabilities sum to at least
            `top_p`.

    Returns:
        A function sampler(scores [rows, symbols], random [rows]) -> symbols [rows].

    Raises:
        InputError: For a temperature that is not above 0, a `top_k` below 1, and a `top_p` outside (0, 1].

    >>> sampling(top_k=2)(np.log([[0.5, 0.25, 0.25], [0.1, 0.2, 0.7]]), np.array([0.6, 0.8])).tolist()
    [0, 1]
    """
    warm = number(
        temperature,
        "temperature is above 0",
        lambda value: 0 < value < math.inf,
        "; without a sampler the best is taken",
    )
    if top_k is not None:
        top_k = whole(top_k, "top_k is how many symbols may be drawn, 1 or more", 1)
    if top_p is not None:
        top_p = number(top_p, "top_p is a probability above 0", lambda value: 0 < value <= 1)

    def sample(scores: Array, random: Array) -> Array:
        order = np.argsort(-scores, axis=-1, kind="stable")
        ordered = np.take_along_axis(scores, order, axis=-1).astype(np.float64)
        weights = np.exp(log_softmax(ordered / warm))
        if top_p is not None:
            weights = np.where(np.cumsum(weights, axis=-1) - weights < top_p, weights, 0)
        sums = np.cumsum(weights[:, :top_k], axis=-1)
        places = (sums <= random[:, None] * sums[:, -1:]).sum(axis=-1)
        return np.take_along_axis(order, places[:, None], axis=-1)[:, 0]

    return sample


def log_softmax(scores: Array) -> Array:
    """The logarithm of the softmax of scores, float64, along the last axis."""
    away = scores.astype(np.float64) - scores.max(axis=-1, keepdims=True)
    return away - np.log(np.exp(away).sum(axis=-1, keepdims=True))


# ---- symbols through a recurrence --------------------------------------------------------------------------


@dataclass(frozen=True)
class Front:
    """Where sequences stand between two calls: the scores of their next symbols, their memory and statics.

    begun: the number of steps of each sequence that were run.
    """

    scores: Array
    state: Any
    statics: Any
    begun: Array


def taken(structure: Any, rows: Array) -> Any:
    """These rows of the arrays and Raggeds in a structure."""
    return transform(
        lambda leaf: leaf.take(rows) if isinstance(leaf, Ragged) else np.asarray(leaf)[rows], structure
    )


class Live:
    """Sequences that are being written: a stream, and the rows of it that they are.

    Rows of sequences that have ended stay in the stream until half of its rows have ended.
    """

    def __init__(self, writer: "Writer", front: Front, rows: Array) -> None:
        self.writer, self.places, self.steps = writer, np.arange(len(rows)), 0
        self.symbols = np.zeros(len(rows), np.int64)
        self.statics, self.begun = taken(front.statics, rows), front.begun[rows]
        state = taken(front.state, rows)
        self.stream = writer.layer.stream(len(rows), state, self.statics, writer.engine, begun=self.begun)

    def take(self, left: Array) -> "Live":
        """The sequences that are left, by their indices among the present ones."""
        if 2 * len(left) <= len(self.symbols):
            return self.anew(left)
        self.places = self.places[left]
        return self

    def anew(self, rows: Array) -> "Live":
        """A new stream of these sequences, by their indices among the present ones. Indices may repeat."""
        front = Front(np.zeros(0), self.stream.state, self.statics, self.begun + self.steps)
        return Live(self.writer, front, self.places[rows])

    def reorder(self, rows: Array) -> None:
        """Moves memories: each sequence goes on from the present one with this index. Statics stay."""
        order = np.arange(len(self.symbols))
        order[self.places] = self.places[rows]
        self.stream.reorder(order)

    def step(self, symbols: Array) -> Any:
        """The output after one more symbol of each sequence."""
        self.symbols[self.places] = symbols
        output = self.stream.step(self.writer.feed(self.symbols))
        self.steps += 1
        return output if len(self.places) == len(self.symbols) else taken(output, self.places)


@dataclass(frozen=True)
class Writer:
    """A recurrence, with the functions from symbols to inputs and from outputs to scores."""

    layer: RNN | Stack
    feed: Feed
    scores: Callable[[Any], Any] | None
    engine: Asked

    @classmethod
    def of(cls, layer: Any, feed: Any, scores: Any, engine: Asked) -> "Writer":
        """The writer for a recurrence; raises `InputError` for one that does not run forward."""
        if isinstance(layer, Bidirectional) or any(part.reverse for part in recurrences(layer, "rnn")):
            raise InputError(
                "symbols follow one another: no part of the recurrence may run from the last step"
            )
        if any(part.until is not None for part in recurrences(layer, "rnn")):
            raise InputError("generated sequences end by stop=; make the recurrence without until=")
        if scores is not None:
            function(scores, "scores is a function of a step's output")
        return cls(layer, feeder(layer, feed), scores, checked_engine(engine))

    def begin(self, start: Any, initial: Any, statics: Any, stops: Array) -> Front:
        """The front after the start of each sequence."""
        said = said_so_far(start)
        sequences = self.inputs(said)
        outputs, state = self.layer(sequences, initial, statics, last_only=True, engine=self.engine)
        scores = self.scored(outputs, len(said))
        beyond = stops[stops >= scores.shape[1]]
        if len(beyond):
            raise InputError(f"stop is {beyond[0]}, and there are scores of {scores.shape[1]} symbols")
        return Front(scores, state, statics, said.lengths)

    def inputs(self, symbols: Ragged) -> Any:
        """The input sequences for sequences of symbols."""
        fed = self.feed(symbols.values)
        return transform(lambda array: symbols.with_values(array_of(array, "what feed gives")), fed)

    def scored(self, output: Any, rows: int) -> Array:
        """The scores [rows, symbols] of an output; raises `InputError` where a row has no highest score."""
        scores = self.unchecked_scores(output, rows)
        check_highest(scores, scores.max(axis=1))
        return scores

    def unchecked_scores(self, output: Any, rows: int) -> Array:
        """The scores [rows, symbols] of an output, not checked for NaN; raises `InputError` for another
        shape.
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
    """Raises `InputError` for rows of scores whose highest is not finite."""
    if not np.isfinite(highest).all():
        row = np.isfinite(highest).argmin()
        raise InputError(f"the scores of row {row} have no highest: {scores[row]}")


def feeder(layer: Any, feed: Any) -> Feed:
    """The function from symbols to inputs."""
    if callable(feed):
        return cast("Feed", feed)
    if feed is not None:
        table = array_of(feed, "feed")
        if table.ndim < 1 or table.dtype.name not in DTYPES:
            raise InputError(
                "feed is a function of symbols [rows], or a table [symbols, features] of numbers, not "
                f"{shown(feed)}"
            )
        return lambda symbols: table[within(symbols, len(table))]
    while isinstance(layer, Stack):
        layer = layer.layers[0]
    spec = layer.inputs
    if not isinstance(spec, Spec) or len(spec.shape) > 1:
        raise InputError(
            "it is not known how symbols become inputs: make the RNN with inputs=, a number of features, or "
            "give feed="
        )
    if not spec.shape:
        return lambda symbols: symbols.astype(spec.dtype or np.int64)
    size, dtype = spec.shape[0], with_dtypes(spec, leaves(layer.params)).dtype
    return lambda symbols: one_hot(within(symbols, size), size, dtype)


def within(symbols: Array, count: int) -> Array:
    """The symbols; raises `InputError` for one that is not below `count`."""
    beyond = symbols[symbols >= count]
    if len(beyond):
        raise InputError(f"symbol {beyond[0]} is none of the {count} that can be fed")
    return symbols


def said_so_far(start: Any) -> Ragged:
    """The start of each sequence as a Ragged of symbols, none of them empty."""
    given = start if isinstance(start, Ragged) else array_of(start, "start")
    values = given.values if isinstance(given, Ragged) else given
    axes = values.ndim + (given.levels if isinstance(given, Ragged) else 0)
    if (values.size and values.dtype.kind not in "iu") or axes not in (1, 2) or not is_symbols(values):
        described = given if isinstance(given, Ragged) else f"{values.dtype}{list(values.shape)}"
        raise InputError(
            "start is whole numbers from 0: one symbol per sequence [batch], or a Ragged or an array "
            f"[batch, time] of them, not {described}"
        )
    symbols = values.astype(np.int64)
    if isinstance(given, Ragged):
        said = given.with_values(symbols)
    else:
        said = Ragged.from_padded(symbols if axes == 2 else symbols[:, None])
    empty = np.flatnonzero(said.lengths == 0)
    if len(empty):
        raise InputError(f"start has no symbol in sequence {empty[0]}; a first symbol says what may follow")
    return said


def is_symbols(values: Array) -> bool:
    """Whether whole numbers can be symbols."""
    return not values.size or not ((values < 0) | (values > LARGEST)).any()


def checked_most(max_steps: Any) -> int:
    """The largest number of steps; raises `InputError` where it is missing."""
    if max_steps is None:
        raise InputError("max_steps= is missing: a sequence that never stops has to end somewhere")
    return whole(max_steps, "max_steps is the most symbols of a sequence, 1 or more", 1)


def checked_stops(stop: Any) -> Array:
    """The symbols that end a sequence."""
    given = () if stop is None else stop
    return whole_numbers([given] if is_integer(given) else given, None, "stop")


def checked_symbols(symbols: Any, shape: tuple[int, ...]) -> Array:
    """The symbols from a sampler as int64; raises `InputError` for other results."""
    array = array_of(symbols, "what the sampler gave")
    if array.shape != shape[:1] or array.dtype.kind not in "iu":
        raise InputError(
            f"a sampler gives {shape[0]} whole numbers, one per row, not {array.dtype}{list(array.shape)}"
        )
    wrong = np.flatnonzero((array < 0) | (array >= shape[1]))
    if len(wrong):
        raise InputError(f"the sampler gave symbol {array[wrong[0]]}, and there are {shape[1]}")
    return array.astype(np.int64)
