"""The best of all symbols that may follow several beginnings: those of the highest logs, in a fixed order.

The log of a beginning with a symbol more is that of the beginning plus that of the symbol, the softmax of its
scores. There are beams x symbols of them behind each start, of which few are kept, so nearly all is done in
machine code, by a small net over the scores of each beginning. It gives what makes logs of scores, and
besides the highest log of each of several groups of symbols: as many groups as candidates are kept have a
log of at least the kept-highest of these, so all below it are out, and what is left is small.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from stepnet.generate import check_highest
from stepnet.prepared import Asked
from stepnet.recurrence import RNN
from stepnet.step import Spec
from stepnet.stream import Stream
from stepnet.types import DTYPES

Array = np.ndarray
GROUPS = 16
"""How many groups the symbols fall into."""
FEW = 512
"""How many scores are put in order as a whole: more than that, and it pays to leave most of them out."""
LOWEST = -1e300
SLACK = 2.0**-20
"""How much lower than computed, relatively, a bound is set: more than float32's rounding, and no matter."""


@dataclass(frozen=True)
class Known:
    """Scores [rows, symbols], and what is known of each row.

    A symbol's log is score - highest - norm; bound is a little less than highest + norm. tops: the highest
    logs of groups of symbols, those that stop left out, [rows, groups].
    """

    scores: Array
    highest: Array
    norm: Array
    bound: Array
    tops: Array


@dataclass(frozen=True)
class Best:
    """Sequences one symbol longer than beginnings, [starts, count], with their logs: -inf where there is none.

    rows: the beginnings that they come from, as rows of the scores.
    """

    logs: Array
    rows: Array
    symbols: Array

    @classmethod
    def joined(cls, parts: "Sequence[Best]") -> "Best":
        """All of several parts, side by side."""
        logs, rows, symbols = zip(*((part.logs, part.rows, part.symbols) for part in parts), strict=True)
        return cls(*(np.concatenate(each, axis=1) for each in (logs, rows, symbols)))


class Candidates:
    """What finds the best of the symbols that may follow; most: how many scores there are at most."""

    def __init__(self, beams: int, stops: Array, most: int, engine: Asked) -> None:
        self.beams, self.stops, self.few, self.engine = beams, stops, most <= FEW, engine
        self.stream: Stream | None = None

    def known(self, scores: Array) -> Known:
        """What is known of scores; raises `InputError` for a row that has no highest."""
        rows, symbols = scores.shape
        if scores.dtype.name not in DTYPES:
            scores = scores.astype(np.float64)
        if self.stream is None or not rows <= self.stream.rows < 2 * rows:
            groups = symbols if self.few else min(GROUPS, symbols)
            net = logs_net(symbols, scores.dtype.name, groups, tuple(self.stops.tolist()))
            self.stream = net.stream(rows, engine=self.engine)
        more = self.stream.rows - rows
        full = np.concatenate([scores, np.zeros((more, symbols), scores.dtype)]) if more else scores
        found = self.stream.step(full)[:rows]
        check_highest(scores, found[:, 1])
        return Known(scores, found[:, 0], found[:, 1], found[:, 2], found[:, 3:])

    def going(self, known: Known, logs: Array) -> Best:
        """The best that go on, at most `beams`, behind beginnings of these logs [starts, width]; the best
        first, equals in the order of their beginnings and symbols.
        """
        (starts, width), symbols = logs.shape, known.scores.shape[1]
        totals = (known.tops + logs.reshape(-1, 1)).reshape(starts, -1)
        if self.few:
            order = best_of(totals, self.beams)
            places = order
        else:
            places, totals = self.above(known, logs, floor_of(totals, self.beams))
            order = best_of(totals, self.beams)
            places = np.take_along_axis(places, order, axis=1)
        rows, following = np.divmod(places, symbols)
        rows += np.arange(starts)[:, None] * width
        return Best(np.take_along_axis(totals, order, axis=1), rows, following)

    def above(self, known: Known, logs: Array, floor: Array) -> tuple[Array, Array]:
        """All that go on with a log of at least `floor` [starts]: places (beginning x symbols + symbol) and
        logs, both [starts, the most of any], filled up with logs of -inf.
        """
        (starts, width), symbols = logs.shape, known.scores.shape[1]
        rows, following = np.divmod(np.flatnonzero(high(known, logs, floor)), symbols)
        if len(self.stops):
            keep = ~np.isin(following, self.stops)
            rows, following = rows[keep], following[keep]
        start = rows // width
        counts = np.bincount(start, minlength=starts)
        column = np.arange(len(start)) - (np.cumsum(counts) - counts)[start]
        shape = starts, max(width, int(counts.max()))
        places, totals = np.zeros(shape, np.int64), np.full(shape, -np.inf)
        places[start, column] = (rows - start * width) * symbols + following
        own = (known.scores[rows, following] - known.highest[rows]) - known.norm[rows]
        totals[start, column] = logs.reshape(-1)[rows] + own
        return places, totals

    def stopping(self, known: Known, logs: Array) -> Best:
        """All that stop, behind beginnings of these logs."""
        own = (known.scores[:, self.stops] - known.highest[:, None]) - known.norm[:, None]
        rows, symbols = np.broadcast_arrays(np.arange(len(own))[:, None], self.stops)
        totals = logs.reshape(-1, 1) + own
        return Best(*(each.reshape(len(logs), -1) for each in (totals, rows, symbols)))


def high(known: Known, logs: Array, floor: Array) -> Array:
    """Where scores may be high enough for the floor of their start: all that are, and hardly more."""
    away = (np.maximum(floor, LOWEST) * (1 + 2 * SLACK))[:, None] - logs
    lowest = known.bound + away.reshape(-1)
    if known.scores.dtype.kind == "f":
        limits = np.finfo(known.scores.dtype)
        lowest = np.minimum(np.maximum(lowest, limits.min), limits.max).astype(known.scores.dtype)
    return known.scores >= lowest[:, None]


def best_of(totals: Array, count: int) -> Array:
    """The places of the highest in each row, at most `count`, highest first, equals in their order.

    >>> best_of(np.array([[1.0, 3.0, 3.0, 2.0]]), 3).tolist()
    [[1, 2, 3]]
    """
    return (-totals).argsort(axis=1, kind="stable")[:, :count]


def floor_of(tops: Array, count: int) -> Array:
    """The `count`-highest of each row, -inf where there are fewer.

    >>> floor_of(np.array([[1.0, 3.0, 2.0], [5.0, 5.0, 4.0]]), 2).tolist()
    [2.0, 5.0]
    """
    place = tops.shape[1] - count
    return np.partition(tops, place, axis=1)[:, place] if place >= 0 else np.full(len(tops), -np.inf)


@lru_cache(maxsize=32)
def logs_net(symbols: int, dtype: str, groups: int, stops: tuple[int, ...]) -> RNN:
    """What gives [rows, 3 + groups] of scores [rows, symbols]: `Scored`'s highest, norm and bound, and its
    tops, whose groups are every `groups`-th symbol; symbols that are left over make groups of one.
    """
    deep = symbols // groups
    stopping = np.isin(np.arange(symbols), stops)

    def step(scores: Any, memory: Any, params: None) -> tuple[Any, Any]:
        wide = scores.astype(np.float64)
        highest = np.max(wide, axis=-1, keepdims=True)
        norm = np.log(np.sum(np.exp(wide - highest), axis=-1, keepdims=True))
        going = np.where(stopping, -np.inf, wide) if stops else wide
        even = going[:, : deep * groups].reshape(going.shape[0], deep, groups)
        tops = np.concatenate([np.max(even, axis=1), going[:, deep * groups :]], axis=-1)
        bound = (highest + norm) - SLACK * (np.abs(highest) + norm)
        return np.concatenate([highest, norm, bound, (tops - highest) - norm], axis=-1), memory

    return RNN(step, memory=Spec((), "int64"), inputs=Spec(symbols, dtype))
