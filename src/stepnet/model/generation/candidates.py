"""The best continuations in a beam search: the symbols with the highest log-probabilities, in a fixed order.

The log of a continuation is that of its beam plus the log-softmax of the symbol's score. Each start has beams
x symbols continuations, of which few are kept. A small net, run like any other, computes the normalisation of
the scores, and the highest log in each of several groups of symbols:

    symbols   0  1  2 | 3  4  5 | 6  7        group 1 is symbols 1, 4 and 7
    groups    0  1  2 | 0  1  2 | 0  1

If k continuations are kept, let t be the k-th highest group maximum of a start. At least k logs are t or
higher, so every kept continuation lies in a group whose maximum reaches t. Only these groups are searched.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError
from stepnet.model.generation.decoder import check_highest
from stepnet.model.program import Asked
from stepnet.model.recurrence import RNN

if TYPE_CHECKING:
    from stepnet.model.streams.stream import Stream

Array = np.ndarray
FEW, FEW_ALONE = 1024, 16384
"""The largest number of scores up to which all are sorted, with each symbol as a group; FEW_ALONE applies if
only the best one is needed.
"""
WIDTH = 16
"""The number of groups is a multiple of this: the elements of a vector register."""
LOWEST = np.finfo(np.float64).min


@dataclass(frozen=True)
class Known:
    """Scores [rows, symbols], and the columns that the net computes from them, [rows, 2 + groups].

    The first two columns are highest and norm: the log of a symbol is score - highest - norm. Each further
    column is the highest log of a group of symbols, without the symbols that stop.
    """

    scores: Array
    columns: Array

    def totals(self, places: Array, rows: Array, logs: Array) -> Array:
        """Returns the log-probabilities [count, ...] of a beam search's sequences, each continued by one
        symbol.

        places: the positions of the symbols among all scores, [count, ...]. For one beyond the last score the
            result is meaningless, and the caller drops it.
        rows: the row of each entry of `places`, [count].
        logs: the log-probabilities of all rows so far.
        """
        highest, norm = self.columns[rows, :2].T
        scores = self.scores.reshape(-1).take(places, mode="clip")
        return ((scores - highest[:, None]) - norm[:, None]) + logs.reshape(-1)[rows][:, None]


@dataclass(frozen=True)
class Best:
    """The best continuations by one symbol of each start (given sequence) of a beam search, [starts, count].

    logs: their log-probabilities; -inf where a start has fewer continuations.
    rows: the indices of the sequences that they continue.
    symbols: the symbols that they add.
    """

    logs: Array
    rows: Array
    symbols: Array

    @classmethod
    def concatenated(cls, parts: "Sequence[Best]") -> "Best":
        """Concatenates continuations of several kinds, such as stopping ones, for each start (given
        sequence). parts: the continuations of each kind, all of the same starts.
        """
        logs, rows, symbols = zip(*((part.logs, part.rows, part.symbols) for part in parts), strict=True)
        return cls(*(np.concatenate(each, axis=1) for each in (logs, rows, symbols)))


class Candidates:
    """A search for the best continuations, by a symbol, of the rows (unfinished sequences) of a beam search.

    beams: the largest number of continuations of each start (given sequence).
    symbols: the number of symbols.
    stops: the symbols that end a sequence.
    most: the largest number of scores of a step.
    engine: the engines that compute the norms, in order of preference.
    """

    def __init__(self, beams: int, symbols: int, stops: Array, most: int, engine: Asked) -> None:
        """Divides the symbols into groups; the search skips a group whose maximum is too low.

        If `most`, the largest number of scores of a step, is small, each symbol is a group. The class
        documents the arguments.
        """
        self.beams, self.symbols, self.stops, self.engine = beams, symbols, stops, engine
        self.groups = symbols if most <= (FEW if beams > 1 else FEW_ALONE) else groups_of(symbols)
        self.members = np.arange(0, symbols, self.groups)
        wanted = np.zeros(len(self.members) * self.groups, bool)
        wanted[:symbols] = True
        wanted[stops] = False
        self.wanted = wanted.reshape(-1, self.groups).T.copy()
        self.stream: Stream | None = None
        self.dtype = np.dtype(np.float64)

    def known(self, scores: Array) -> Known:
        """Returns scores [rows, symbols] with the norm of each row, and the highest log of each symbol group.

        The log of a symbol is score - highest - norm. The net that computes these runs as a stream, which is
        made anew for another dtype, and if it has fewer rows than the scores or at least twice as many.

        Raises `InputError` if a row has no finite maximum, and for another number of symbols than before.
        """
        rows, symbols = scores.shape
        if symbols != self.symbols:
            raise InputError(f"scores are of {symbols} symbols, and those before of {self.symbols}")
        if scores.dtype != np.float32:
            scores = scores.astype(np.float64, copy=False)
        if self.stream is None or scores.dtype != self.dtype or not rows <= self.stream.rows < 2 * rows:
            net = logs_net(self.symbols, scores.dtype.name, self.groups, tuple(self.stops.tolist()))
            self.stream, self.dtype = net.stream(rows, engine=self.engine), scores.dtype
        more = self.stream.rows - rows
        if more:
            full = np.concatenate([scores, np.zeros((more, self.symbols), scores.dtype)])
            scored = self.stream.step(full)[:rows]
        else:
            scored = self.stream.step(scores)
        check_highest(scores, scored[:, 1])
        return Known(scores, scored)

    def going(self, known: Known, logs: Array) -> Best:
        """Returns the best continuations that do not stop, best first: at most `beams` for each start.

        A start is a given sequence, from which a search begins. Equal continuations come in the order (row,
        symbol). The arrays are [starts, count]; a start with fewer continuations has logs of -inf at the end.

        known: the scores of each row (unfinished sequence), the two numbers that make them log-probabilities,
            and the highest log-probability in each group of symbols, without those that stop.
        logs: the log-probabilities of the rows, [starts, rows per start].
        """
        starts, width = logs.shape
        tops = (known.columns[:, 2:] + logs.reshape(-1, 1)).reshape(starts, -1)
        if self.groups == self.symbols:
            each = np.arange(len(logs))[:, None]
            order = best_of(tops, self.beams)
            rows, symbols = np.divmod(order, self.symbols)
            return Best(tops[each, order], rows + each * width, symbols)
        places, totals = self.possibly_best(known, logs, tops)
        start = places // (width * self.symbols)
        order = np.lexsort((places, -totals, start))
        counts = np.bincount(start, minlength=starts)
        column = np.arange(len(start)) - (np.cumsum(counts) - counts)[start]
        first = np.flatnonzero(column < self.beams)
        order, start, column = order[first], start[first], column[first]  # start is sorted already
        shape = starts, max(width, int(column.max(initial=0)) + 1)
        kept, best = np.zeros(shape, np.int64), np.full(shape, -np.inf)
        kept[start, column], best[start, column] = places[order], totals[order]
        return Best(best, *np.divmod(kept, self.symbols))

    def possibly_best(self, known: Known, logs: Array, tops: Array) -> tuple[Array, Array]:
        """Returns a superset of the best continuations: their positions among all scores, and their
        log-probabilities.

        They are those that do not stop, and are at least as probable as the `beams`-th highest number in
        `tops` of their start (given sequence).

        known: the scores of all rows (unfinished sequences), with the norms that make them log-probabilities.
        logs: the log-probabilities of the rows, [starts, rows per start].
        tops: the highest log of each group of symbols, [starts, rows per start * groups].
        """
        floor = np.maximum(floor_of(tops, self.beams), LOWEST)[:, None]
        rows, groups = np.divmod(np.flatnonzero(tops >= floor), self.groups)
        places = (rows * self.symbols + groups)[:, None] + self.members
        totals = known.totals(places, rows, logs)
        kept = np.flatnonzero((totals >= floor[rows // logs.shape[1]]) & self.wanted[groups])
        return places.reshape(-1)[kept], totals.reshape(-1)[kept]

    def stopping(self, known: Known, logs: Array) -> Best:
        """Returns the continuations of all rows (unfinished sequences) by each symbol that ends a sequence.

        known: the scores of the rows, with the norms that make them log-probabilities.
        logs: the log-probabilities of the rows, [starts, rows per start].
        """
        rows = np.arange(logs.size)
        places = (rows * self.symbols)[:, None] + self.stops
        parts = known.totals(places, rows, logs), *np.divmod(places, self.symbols)
        return Best(*(each.reshape(len(logs), -1) for each in parts))


def best_of(totals: Array, count: int) -> Array:
    """Returns the indices of each row's `count` highest values, highest first; equal values keep their order.

    >>> best_of(np.array([[1.0, 3.0, 3.0, 2.0]]), 3).tolist()
    [[1, 2, 3]]
    """
    if count == 1:
        return totals.argmax(axis=1)[:, None]
    return (-totals).argsort(axis=1, kind="stable")[:, :count]


def groups_of(symbols: int) -> int:
    """Returns the number of groups into which a beam search divides the symbols: it looks for the best
    symbols only in the groups with the highest maxima.

    It is about 2 sqrt(symbols), and at most `symbols`.
    """
    return min(symbols, WIDTH * math.ceil(2 * math.sqrt(symbols) / WIDTH))


def floor_of(tops: Array, count: int) -> Array:
    """Returns the `count`-th highest value of each row, below which a value is not among its `count` best.

    It is -inf for rows of fewer values.

    >>> floor_of(np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 4.0]]), 2).tolist()
    [2.0, 5.0]
    """
    place = tops.shape[1] - count
    return np.partition(tops, place, axis=1)[:, place] if place >= 0 else np.full(len(tops), -np.inf)


@lru_cache(maxsize=32)
def logs_net(symbols: int, dtype: str, groups: int, stops: tuple[int, ...]) -> RNN:
    """Makes a recurrence from scores [rows, symbols] to the columns of `Known`, [rows, 2 + groups].

    These are the highest score, the norm (log of the sum of exp(score - highest)), and the highest log of
    each group. The symbol s is in group s % groups. The memory has no use.

    dtype: the dtype of the scores.
    groups: the number of groups of symbols.
    stops: the symbols that end a sequence, which count for the first two columns alone.
    """
    deep, stopping = symbols // groups, np.isin(np.arange(symbols), stops)
    even = deep * groups

    def step(scores: Any, memory: Any, params: None) -> tuple[Any, Any]:
        """Computes, for each row of scores, the highest score, the log-sum-exp, and the highest
        log-probability of each group of symbols.
        """
        going = np.where(stopping, -np.inf, scores) if stops else scores
        tops = np.max(going[:, :even].reshape(going.shape[0], deep, groups), axis=1)
        over = symbols - even
        if over:
            tops = np.concatenate([np.maximum(tops[:, :over], going[:, even:]), tops[:, over:]], axis=-1)
        every = np.concatenate([tops, scores[:, list(stops)]], axis=-1) if stops else tops
        highest = np.max(every, axis=-1, keepdims=True).astype(np.float64)
        away = scores.astype(np.float64) - highest
        norm = np.log(np.sum(np.exp(away), axis=-1, keepdims=True))
        return np.concatenate([highest, norm, (tops - highest) - norm], axis=-1), memory

    return RNN(step, memory=Spec((), "int64"), inputs=Spec(symbols, dtype))
