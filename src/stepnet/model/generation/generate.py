"""Generation of sequences: each output becomes the next input, up to a stop symbol or a limit.

A recurrence over symbols gives a score for each symbol that may come next. `generate` takes one of them, and
`beam_search` (in `beams`) keeps the best few sequences. Symbols are whole numbers from 0. `feed` turns
symbols into inputs, and `scores` turns the outputs of the step into scores [rows, symbols] where they are not
scores already.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import checked_integer, function
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.compiler.values.records import dataclass
from stepnet.model.generation.decoder import Front, Live, Writer, checked_most, checked_stops, checked_symbols
from stepnet.model.masks import MOST_SEED, SEED, identified, numbers_at
from stepnet.model.model import Model
from stepnet.model.program import Asked
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of

Array = np.ndarray
Sampler = Callable[[Array, Array], Any]
Written = list[tuple[Array, Array]]
"""Generated symbols in the order in which they were chosen, as pairs (rows, symbols)."""


def generate(
    rnn: Model,
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
    """Returns the symbols that a model generates after the start of each sequence.

    At each step the output of the model gives a score for every symbol. One symbol is chosen for each
    sequence and is the next input. A sequence ends with a stop symbol or after `max_steps` symbols.

    Args:
        rnn: A model over symbols: an `RNN`, a `Stack`, a `Graph`, or one of a file.
        start: One symbol per sequence, [batch]; or the first symbols of each sequence, a `Ragged` or an array
            [batch, time]. They are read first and are not part of the result.
        max_steps: The largest number of symbols of a sequence; required.
        stop: A symbol, or several, that end a sequence.
        sampler: sampler(scores [rows, symbols], random [rows]) -> symbols [rows]. Without it the symbol with
            the highest score is chosen, the lowest such symbol where several are equal. `sampling` makes
            samplers. `random` are numbers in [0, 1) that depend only on `seed`, the sequence and its step.
        initial: The memory before the start, as for a call.
        statics: As for a call.
        feed: The inputs for symbols [rows]: a function, or a table [symbols, features] whose rows are taken.
            Without it a model made with `inputs=n` is fed one-hot vectors, and one made with
            `inputs=sn.Spec((), "int64")` the symbols themselves.
        scores: A function from outputs to scores [rows, symbols], such as a dense layer.
        seed: The seed of the random numbers.
        identities: Whole numbers [batch] that name the sequences, their places by default. A sequence with
            the same number is the same in any batch.
        engine: An engine, or several in order of preference.

    Returns:
        A `Ragged` of int64: the new symbols of each sequence. The last one is the stop symbol, unless
        `max_steps` ended the sequence.

    Raises:
        InputError: Without `max_steps`, for a model with `until` or without a stream, such as one with
            `reverse=True`, and for arguments that do not fit.

    >>> import stepnet as sn
    >>> follows = np.array([[0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1], [1, 0, 0, 0]], "float32")
    >>> rnn = sn.RNN(lambda x, h, p: (x @ p, h), follows, memory=1, inputs=4)
    >>> generate(rnn, [0, 2, 3], stop=3, max_steps=4).to_list()
    [array([1, 2, 3]), array([3]), array([0, 1, 2, 3])]
    >>> graph = sn.Graph(lambda x, params: rnn(x)[0] * params, np.float32(2), inputs=4)
    >>> generate(graph, [0, 2, 3], stop=3, max_steps=4).to_list()
    [array([1, 2, 3]), array([3]), array([0, 1, 2, 3])]
    """
    most, stops = checked_most(max_steps), checked_stops(stop)
    if sampler is not None:
        function(sampler, "sampler is a function sampler(scores, random)")
    checked_integer(seed, SEED, 0, MOST_SEED)
    writer = Writer.of(rnn, feed, scores, engine)
    front = writer.begin(start, initial, statics, stops)
    count = len(front.scores)
    names = identified(identities, count)
    chooser = Chooser(sampler, seed, names)
    first = chooser.symbols(front.scores, np.arange(count), 0)
    rows = np.flatnonzero(~np.isin(first, stops))
    written: Written = [(np.arange(count), first)]
    if len(rows) and most > 1:
        call = writer, front, chooser, stops, most - 1, first[rows], rows
        rest = in_machine_code(*call)
        written += generate_stepwise(*call) if rest is None else rest
    row_of, values = (np.concatenate(parts) for parts in zip(*written, strict=True))
    return Ragged(
        values[np.argsort(row_of, kind="stable")], (offsets_of(np.bincount(row_of, minlength=count)),)
    )


@dataclass(frozen=True)
class Chooser:
    """The rule that chooses symbols by their scores.

    sampler: the caller's sampler; None for the symbol with the highest score.
    seed, names: the seed and the identities of the sequences, by which random numbers are drawn.
    """

    sampler: Sampler | None
    seed: int
    names: Array

    def drawn_by(self, rows: Array, first: Array) -> list[Array]:
        """Returns the statics of rows by which a compiled generation draws random numbers: the seed, the
        identities, and `first`, the numbers of the steps with the first random numbers; none without a
        sampler.
        """
        if self.sampler is None:
            return []
        seed = np.full(len(rows), self.seed, np.uint64)
        return [seed.view(np.int64), self.names[rows].astype(np.uint64).view(np.int64), first]

    def symbols(self, scores: Array, rows: Array, step: int) -> Array:
        """Chooses the next symbol of each row from its scores; raises `InputError` if a sampler returns no
        symbols.

        scores: the scores, [rows, symbols].
        rows: the indices of the rows, to draw random numbers by.
        step: the number of the step.
        """
        if self.sampler is None:
            return scores.argmax(axis=-1)
        random = numbers_at(self.seed, self.names[rows], np.full(len(rows), step))
        return checked_symbols(self.sampler(scores, random), scores.shape)


def in_machine_code(
    writer: Writer, front: Front, chooser: Chooser, stops: Array, most: int, symbols: Array, rows: Array
) -> Written | None:
    """Generates symbols after the first ones in machine code; returns None if the steps must run one by one.

    Returns pairs (rows, symbols), in the order in which the symbols were chosen.

    writer, front, chooser: the model, the state of the sequences, and the rule that chooses symbols.
    stops: the symbols that end a sequence.
    most: the largest number of symbols of a sequence after the first.
    symbols: the first symbol of each row.
    rows: the indices in `front` of the sequences that continue.
    """
    # Imported late, as few processes generate sequences.
    with IMPORTS:
        from stepnet.model.generation.compiled import Wired, run
        from stepnet.model.generation.feedback import Choice

    choice = Choice(front.scores.shape[1], tuple(np.unique(stops).tolist()), chooser.sampler)
    wired = Wired.of(writer, front, choice)
    if isinstance(wired, str):
        return None
    begun = front.begun[rows]
    drawn = chooser.drawn_by(rows, begun - 1)
    found = run(wired, begun, rows, [symbols], most, lambda steps: np.zeros(len(steps), bool), drawn)
    return None if found is None else [(rows[each], written) for each, (written,) in found.parts]


def generate_stepwise(
    writer: Writer, front: Front, chooser: Chooser, stops: Array, most: int, symbols: Array, rows: Array
) -> Written:
    """Generates symbols after the first ones step by step, with Python between two steps.

    Returns a pair (rows, symbols) for each step, with the rows that had not ended before it.

    writer, front, chooser: the model, the state of the sequences, and the rule that chooses symbols.
    stops: the symbols that end a sequence.
    most: the largest number of symbols of a sequence after the first.
    symbols: the first symbol of each row.
    rows: the indices in `front` of the sequences that continue.
    """
    written, live = Written(), Live(writer, front, rows)
    for step in range(1, most + 1):
        scores = writer.scored(live.step(symbols), len(rows))
        symbols = chooser.symbols(scores, rows, step)
        written.append((rows, symbols))
        left = np.flatnonzero(~np.isin(symbols, stops))
        rows, symbols = rows[left], symbols[left]
        if not len(rows):
            break
        if step < most:
            live = live.take(left)
    return written
