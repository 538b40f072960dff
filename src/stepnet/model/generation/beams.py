"""Beam search: the most probable sequences that a recurrence generates.

The unfinished sequences of all starts are the rows of a stream. At every step the best continuations are
chosen (in `candidates`), and the memory of each row is moved to the row that continues it. For each step the
search stores the chosen symbols and the rows that they came from. The sequences are put together from these
at the end.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import checked_integer, number
from stepnet.compiler.values.fork_guard import IMPORTS
from stepnet.model.generation.candidates import Best, Candidates, best_of
from stepnet.model.generation.decoder import Front, Live, Writer, checked_most, checked_stops
from stepnet.model.model import Model
from stepnet.model.program import Asked
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of, positions_of

Array = np.ndarray
Trail = list[tuple[Array, Array]]
"""For each step: the last symbol of each row, and the row of the previous step that it continues."""


def beam_search(
    rnn: Model,
    start: Any,
    *,
    beams: int,
    max_steps: int | None = None,
    stop: int | Sequence[int] | None = None,
    length_penalty: float = 0.0,
    initial: Any = None,
    statics: Any = None,
    feed: Any = None,
    scores: Callable[[Any], Any] | None = None,
    engine: Asked = "auto",
) -> tuple[Ragged, Ragged]:
    """Finds the most probable sequences that follow each start, best first, and their log-probabilities.

    The probability of a sequence is the product of the probabilities of its symbols, which are the softmax of
    the scores. At each step the `beams` most probable unfinished sequences continue. Finished sequences are
    collected, and take no place among them. Equal candidates are ordered by the rank of the sequence that
    they continue, then by symbol. The search ends when no unfinished sequence can rank above the finished
    ones.

    Args:
        rnn: A model over symbols: an `RNN`, a `Stack`, a `Graph`, or one of a file.
        start: One symbol per sequence, [batch]; or its first symbols, a `Ragged` or [batch, time].
        beams: The number of sequences that are kept for each start.
        max_steps: The largest number of symbols of a sequence; required.
        stop: A symbol, or several, that end a sequence.
        length_penalty: Sequences are ranked by log / length ** length_penalty; 0 or more.
        initial: The memory before the start, as for a call.
        statics: As for a call, such as the keys of a decoder.
        feed: The inputs for symbols [rows]: a function, or a table [symbols, features] whose rows are taken.
        scores: A function from outputs to scores [rows, symbols], such as a dense layer.
        engine: An engine, or several in order of preference.

    Returns:
        The sequences, a `Ragged` of two levels, int64: for each start at most `beams` sequences of symbols,
        with their stop symbol. Then their log-probabilities, a `Ragged` of one level, float64.

    Raises:
        InputError: Without `max_steps`, and for arguments that do not fit.

    >>> import stepnet as sn
    >>> follows = np.log([[0.1, 0.8, 0.1], [0.1, 0.3, 0.6], [0.3, 0.3, 0.4]])
    >>> rnn = sn.RNN(lambda x, h, p: (x @ p, h), follows, memory=1, inputs=3)
    >>> best, logs = beam_search(rnn, [0], beams=2, stop=2, max_steps=4)
    >>> best[0].to_list(), np.exp(logs[0]).round(2).tolist()
    ([array([1, 2]), array([1, 1, 2])], [0.48, 0.14])
    """
    most, stops = checked_most(max_steps), checked_stops(stop)
    beams = checked_integer(beams, "beams is how many sequences are kept, 1 or more", 1)
    penalty = number(length_penalty, "length_penalty is 0 or more", lambda value: 0 <= value < math.inf)
    writer = Writer.of(rnn, feed, scores, engine)
    front = writer.begin(start, initial, statics, stops)
    ahead, count = front.scores, len(front.scores)
    candidates = Candidates(beams, ahead.shape[1], np.unique(stops), ahead.size * beams, writer.engine)
    finished = Finished(count, beams, most, penalty)
    trail: Trail = []
    starts, logs = np.arange(count), np.zeros((count, 1))
    live: Live | None = None
    for step in range(1, most + 1 if count else 1):
        known = candidates.known(ahead)
        best = candidates.going(known, logs)
        ending = [candidates.stopping(known, logs)] if len(stops) else []
        finished.take(starts, ending if step < most else [*ending, best], step)
        left, best = drop_ended_starts(finished.still_possible(starts, best), logs.shape[1])
        if step == most or not len(left):
            break
        starts, rows, symbols = starts[left], best.rows, best.symbols.reshape(-1)
        if live is None:
            found = in_machine_code(writer, front, finished, starts, best, tuple(candidates.stops.tolist()))
            if found is not None:
                return found
            live = Live(writer, front, rows.reshape(-1))
        else:
            live = continued(live, left, rows, logs.shape[1])
        ahead, logs = writer.unchecked_scores(live.step(symbols), len(symbols)), best.logs
        trail.append((symbols, rows.reshape(-1)))
    return finished.sequences(trail)


def in_machine_code(
    writer: Writer, front: Front, finished: "Finished", starts: Array, best: Best, stops: tuple[int, ...]
) -> tuple[Ragged, Ragged] | None:
    """Finds the most probable sequences in machine code, after the first symbols of a beam search; returns
    them as `beam_search` does, or None if the steps must run one by one.

    writer, front: the model, and the state of the sequences after their given first symbols.
    finished: the sequences that have finished so far, with one symbol.
    starts, best: the starts that continue, and their continuations by the first symbol.
    stops: the symbols that end a sequence, in order.
    """
    # Imported late, as few processes generate sequences.
    with IMPORTS:
        from stepnet.model.generation.beam_steps import FINISHED, BeamChoice
        from stepnet.model.generation.compiled import Wired, run

    beams, most = finished.beams, finished.most
    wired = Wired.of(writer, front, BeamChoice(front.scores.shape[1], stops, beams))
    if isinstance(wired, str):
        return None
    columns, width = np.arange(beams), best.logs.shape[1]
    there, column = columns < width, np.minimum(columns, width - 1)
    symbols = np.where(there, best.symbols[:, column], best.symbols[:, :1])
    logs = np.where(there, best.logs[:, column], -np.inf)
    more = np.full((len(finished.kept), beams - finished.kept.shape[1]), NONE)
    finished.kept = np.concatenate([finished.kept, more], axis=1)
    kept = [finished.kept[name][starts] for name in FINISHED]

    def given(steps: Array) -> Array:
        """Returns the inputs of steps: the length of sequences that finish at the step, the weight of this
        length, the weight of the largest length, and 1 at the last step.
        """
        lengths = steps + 2
        last = np.full(len(steps), finished.weight(most))
        return np.stack([lengths, finished.weight(lengths), last, lengths == most], axis=-1, dtype=np.float64)

    result = run(wired, front.begun[starts], starts, [symbols, logs, *kept], most - 1, given)
    if result is None:
        return None
    for name, values in zip(FINISHED, result.memories[2:], strict=True):
        finished.kept[name][starts] = values
    finished.kept["row"][starts] += np.arange(len(starts))[:, None] * beams
    return finished.sequences(trail_of(symbols, result.parts))


def trail_of(symbols: Array, parts: list[tuple[Array, list[Array]]]) -> Trail:
    """Returns the trail of a beam search that ran in machine code: for each step the last symbol of each row,
    and the row of the previous step that it continues. Rows are the beams of all starts.

    symbols: the first symbols, [starts, beams].
    parts: for each call the indices of the starts, in order, with a symbol and the beam that it continues for
        each beam, [steps of all starts, beams].
    """
    count, beams = symbols.shape
    counts = [np.bincount(starts, minlength=count) for starts, _ in parts]
    taken = np.ones(count, np.int64)
    shape = 1 + int(sum(counts, np.zeros(count, np.int64)).max(initial=0)), count, beams
    written, before = np.zeros(shape, np.int64), np.zeros(shape, np.int64)
    written[0] = symbols
    for (starts, (new, rows)), used in zip(parts, counts, strict=True):
        steps = positions_of(taken, used)
        written[steps, starts], before[steps, starts] = new, rows + starts[:, None] * beams
        taken += used
    return list(zip(written.reshape(len(written), -1), before.reshape(len(before), -1), strict=True))


def drop_ended_starts(best: Best, width: int) -> tuple[Array, Best]:
    """Drops the starts (given sequences) that no continuation extends; returns the indices of the others, and
    their continuations.

    All starts keep equally many: one with fewer repeats its first, with a log-probability of -inf.

    best: the continuations of all starts.
    width: the least number of continuations per start.
    """
    possible = best.logs > -np.inf
    if possible.all():
        return np.arange(len(possible)), best
    left = np.flatnonzero(possible[:, 0])
    width = max(width, int(possible.sum(axis=1).max()))
    possible, logs, rows, symbols = (
        each[left, :width] for each in (possible, best.logs, best.rows, best.symbols)
    )
    rows, symbols = (np.where(possible, each, each[:, :1]) for each in (rows, symbols))
    return left, Best(logs, rows, symbols)


def continued(live: Live, left: Array, rows: Array, width: int) -> Live:
    """Moves the memories of a beam search's sequences, which are rows of a stream, to those that continue
    them.

    Returns the stream, or another one if the rows become more, or at most half.

    live: the sequences of all starts (given sequences) as rows of a stream, start after start.
    left: the indices of the starts that continue.
    rows: for each of these starts, the rows whose memories its next rows continue from, [starts, beams].
    width: the number of rows per start before the step.
    """
    if rows.shape[1] > width:
        return live.anew(rows.reshape(-1))
    if len(left) * width == len(live.places):
        if width > 1:
            live.reorder(rows.reshape(-1))
        return live
    places = np.arange(len(live.places)).reshape(-1, width)
    order = places.copy()
    order[left] = rows
    live.reorder(order.reshape(-1))
    return live.take(places[left].reshape(-1))


# ---- finished sequences ------------------------------------------------------------------------------------

ENTRY = np.dtype([("rank", "f8"), ("log", "f8"), ("length", "i8"), ("row", "i8"), ("symbol", "i8")])
"""A finished sequence: its rank, log-probability and length, the row that it continues, its last symbol."""
NONE = np.array((-np.inf, -np.inf, 0, 0, 0), ENTRY)


class Finished:
    """The best finished sequences of each start of a beam search, in `kept` [starts, count], best first.

    starts: the number of starts, the sequences that the search continues.
    beams: the largest number of sequences that are kept for each start.
    most: the largest number of symbols of a sequence.
    penalty: the exponent of the length in a rank.
    """

    def __init__(self, starts: int, beams: int, most: int, penalty: float) -> None:
        """Makes a collection without sequences, for `starts` starts, the given sequences that the search
        continues.

        beams, most: the largest number of sequences for each start, and of symbols of a sequence.
        penalty: the exponent of the length in a rank.
        """
        self.beams, self.most, self.penalty = beams, most, penalty
        self.kept = np.full((starts, 0), NONE)

    def ranked(self, logs: Array, length: int) -> Array:
        """Returns the numbers that rank finished sequences: log-probability (`logs`) / length**penalty."""
        weight = self.weight(length)
        return np.divide(logs, weight, out=np.full_like(logs, -np.inf), where=logs > -np.inf)

    def weight(self, length: Any) -> Any:
        """Returns length**penalty, which divides log-probabilities of this length. It may be infinite."""
        with np.errstate(over="ignore"):
            return np.float_power(length, self.penalty)

    def take(self, starts: Array, parts: list[Best], length: int) -> None:
        """Adds the sequences that finish at a step of a beam search, and keeps the best `beams` of each start
        (given sequence).

        Among equal ranks the earlier sequence is kept.

        starts: the indices of the starts, which are the sequences that the search continues.
        parts: the continuations of these starts that finish.
        length: the number of symbols of the finished sequences.
        """
        if not parts:
            return
        best = Best.concatenated(parts)
        ranks = self.ranked(best.logs, length)
        full = self.kept.shape[1] == self.beams
        if not (ranks > (self.kept["rank"][starts, -1:] if full else -np.inf)).any():
            return
        order = np.lexsort((best.symbols, best.rows, -best.logs))[:, : self.beams]
        new = np.empty(order.shape, ENTRY)
        new["length"] = length
        for name, values in (
            ("rank", ranks),
            ("log", best.logs),
            ("row", best.rows),
            ("symbol", best.symbols),
        ):
            new[name] = np.take_along_axis(values, order, axis=1)
        both = np.concatenate([self.kept[starts], new], axis=1)
        both = np.take_along_axis(both, best_of(both["rank"], self.beams), axis=1)
        more = np.full((len(self.kept), both.shape[1] - self.kept.shape[1]), NONE)
        self.kept = np.concatenate([self.kept, more], axis=1)
        self.kept[starts] = both

    def still_possible(self, starts: Array, best: Best) -> Best:
        """Sets the log-probability of continuations that cannot become results to -inf.

        Where a start (given sequence) has `beams` finished ones, a continuation is dropped if it ranks below
        the worst of them even at the largest length and with no further loss of probability.

        starts: the indices of the starts.
        best: the best continuations of each of them.
        """
        if self.kept.shape[1] < self.beams:
            return best
        worst = self.kept["rank"][starts, -1:]
        logs = np.where(self.ranked(best.logs, self.most) >= worst, best.logs, -np.inf)
        return Best(logs, best.rows, best.symbols)

    def sequences(self, trail: Trail) -> tuple[Ragged, Ragged]:
        """Assembles finished sequences from each step's symbols; returns them and their log-probabilities.

        Both are grouped by start, the sequence that the search continued.

        trail: for each step, the symbol of each row and the row of the previous step that it continues.
        """
        there = self.kept["rank"] > -np.inf
        kept, per_start = self.kept[there], offsets_of(there.sum(axis=1))
        lengths = kept["length"]
        offsets, order = offsets_of(lengths), np.argsort(-lengths, kind="stable")
        symbols = np.empty(offsets[-1], np.int64)
        symbols[offsets[1:] - 1] = kept["symbol"]
        # The longest sequences first, so that the sequences with a symbol at a step are the first rows.
        lengths, rows, steps = lengths[order], kept["row"][order], np.arange(len(trail))[:, None]
        there = lengths > steps + 1
        earlier = np.empty(there.shape, np.int64)
        counts: list[int] = there.sum(axis=1).tolist()
        for step, count in reversed([*enumerate(counts)]):
            (written, before), own = trail[step], rows[:count]
            earlier[step, :count] = written[own]
            own[...] = before[own]
        symbols[(offsets[:-1][order] + steps)[there]] = earlier[there]
        return Ragged(symbols, (per_start, offsets)), Ragged(kept["log"].copy(), (per_start,))
