"""Beam search: the most probable sequences that a recurrence generates."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.arguments import number, whole
from stepnet.compose import Stack
from stepnet.generate import Writer, checked_most, checked_stops, log_softmax
from stepnet.program import Asked
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import offsets_of
from stepnet.recurrence import RNN

Array = np.ndarray


def beam_search(
    rnn: RNN | Stack,
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
    """The most probable sequences that follow each start, best first, and their log-probabilities.

    The sequences are a `Ragged` of two levels, int64: for each start at most `beams` sequences of symbols,
    with their stop symbol. The logs are a `Ragged` of one level, float64. The probability of a sequence is
    the product of the probabilities of its symbols, which are the softmax of the scores.

    At each step the `beams` most probable beginnings continue. Those that stopped are set aside and take no
    place. A search ends when no beginning can become better than the sequences that were set aside.

    Args:
        rnn: A recurrence over symbols, or a `Stack`; see `generate`.
        start: One symbol per sequence, [batch]; or what was said so far, a `Ragged` or [batch, time].
        beams: How many sequences are kept for each start.
        max_steps: The most symbols of a sequence; required.
        stop: A symbol, or several, that end a sequence.
        length_penalty: Sequences are ranked by log / length ** length_penalty; 0 or more.
        initial: The memory before the start, as for `RNN.__call__`.
        statics: As for `RNN.__call__`: a decoder's keys.
        feed: How symbols become inputs; see `generate`.
        scores: How outputs become scores [rows, symbols]; see `generate`.
        engine: An engine, or several in order of preference.

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
    beams = whole(beams, "beams is how many sequences are kept, 1 or more", 1)
    penalty = number(length_penalty, "length_penalty is 0 or more", lambda value: 0 <= value < math.inf)
    writer = Writer.of(rnn, feed, scores, engine)
    front = writer.begin(start, initial, statics, stops)
    searches = [Search(beams, most, stops, penalty) for _ in front.scores]
    live = [Beginnings(np.zeros(1), np.zeros((1, 0), np.int64)) for _ in searches]
    for step in range(most):
        logs = np.split(log_softmax(front.scores), np.cumsum([len(one.logs) for one in live])[:-1])
        first, parents = 0, list[Array]()
        for place, search in enumerate(searches):
            rows = first + np.arange(len(live[place].logs))
            first += len(rows)
            chosen, live[place] = search.grown(live[place], logs[place])
            parents.append(rows[chosen])
        going = np.concatenate([*parents, np.zeros(0, np.int64)])
        if not len(going) or step + 1 == most:
            break
        symbols = np.concatenate([one.symbols[:, -1] for one in live])
        front = writer.step(front.take(going), symbols)
    return found_by(searches)


@dataclass(frozen=True)
class Beginnings:
    """Sequences that may go on: their logs [count], highest first, and their symbols [count, time]."""

    logs: Array
    symbols: Array


class Search:
    """The search behind one start: what has stopped so far is kept in `found`, (rank, log, symbols) each."""

    def __init__(self, beams: int, most: int, stops: Array, penalty: float) -> None:
        self.beams, self.most, self.stops, self.penalty = beams, most, stops, penalty
        self.found: list[tuple[float, float, Array]] = []

    def weight(self, length: int) -> float:
        """What a log is divided by for its length; infinite beyond all floats."""
        with np.errstate(over="ignore"):
            return float(np.float_power(length, self.penalty))

    def grown(self, live: Beginnings, logs: Array) -> tuple[Array, Beginnings]:
        """The beginnings one symbol longer, and which of the old ones each comes from."""
        total = live.logs[:, None] + logs
        order = np.argsort(-total, axis=None, kind="stable")
        parents, symbols = np.divmod(order, max(1, logs.shape[1]))
        total = total.reshape(-1)[order]
        longer = np.concatenate([live.symbols[parents], symbols[:, None]], axis=1)
        stopped = np.isin(symbols, self.stops)
        if longer.shape[1] == self.most:
            going = np.flatnonzero(~stopped)[: self.beams]
            stopped[going] = True
        possible = total > -np.inf
        for place in np.flatnonzero(stopped & possible)[: self.beams]:
            log = float(total[place])
            self.found.append((log / self.weight(longer.shape[1]), log, longer[place]))
        self.found = sorted(self.found, key=lambda one: -one[0])[: self.beams]
        kept = np.flatnonzero(~stopped & possible)[: self.beams]
        if len(self.found) == self.beams:
            # No continuation has a higher log, nor is it longer than the longest.
            kept = kept[total[kept] / self.weight(self.most) >= self.found[-1][0]]
        return parents[kept], Beginnings(total[kept], longer[kept])


def found_by(searches: list[Search]) -> tuple[Ragged, Ragged]:
    """The sequences found by each search, and their logs."""
    found = [one for search in searches for one in search.found]
    per_start = offsets_of([len(search.found) for search in searches])
    symbols = np.concatenate([np.zeros(0, np.int64), *(symbols for _, _, symbols in found)])
    lengths = offsets_of([len(symbols) for _, _, symbols in found])
    return Ragged(symbols, (per_start, lengths)), Ragged(
        np.array([log for _, log, _ in found], float), (per_start,)
    )
