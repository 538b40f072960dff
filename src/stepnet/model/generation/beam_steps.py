"""The step of a beam search as a recurrence: a row is a start, and its beams are a feature axis.

    symbols --feed--> x --layers--> scores [beams, symbols] --best--> symbols, beams that they extend
                       memories -----------------------------------> memories of these beams

These are the steps of `beams.beam_search`, from the second one on, without Python between them. Each beam
selects the whole memory of the beam that it extends. A few best numbers are found one after another: the
highest, then the highest of the numbers behind it. More are found by their ranks, so that the step has as
many operations for any number of beams.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS, Type
from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.records import dataclass
from stepnet.model.control import chosen
from stepnet.model.generation.feedback import Inputs

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np

FINISHED = {"rank": "float64", "log": "float64", "length": "int64", "row": "int64", "symbol": "int64"}
"""The memories of the finished sequences, best first: the rank, -inf where there is none, the
log-probability, the length, the beam that the last symbol continues, and that symbol.
"""
MOST_CHAINED, FEW, LIST = 8, 128, 64
"""The most of a vector's highest numbers that are found one after another; the length from which a vector is
divided into lists where more are found, and the length of a list.
"""
GIVEN = ("length", "weight", "weight of the largest length", "is last")
"""The features of the input of a step, float64: the number of symbols of sequences that finish at the step,
the divisor of log-probabilities of that length, the divisor of those of the largest length, and 1 at the last
step.
"""
MOST_BEAMS, MOST_BEAMS_OF_CPU, MOST_CONTINUATIONS = 64, 8, 4096
"""The largest numbers of beams, on a device and on a CPU, and of all their continuations by a symbol. The
step reads all continuations once for each beam, so a CPU, where calls take little time, continues fewer, by
the number of beams. On a device 64 beams are as many as were tried.
"""


@dataclass(frozen=True)
class BeamChoice:
    """The rule by which a beam search continues, in the form of `feedback.Chooses`.

    symbols: the number of symbols.
    stops: the symbols that end a sequence.
    beams: the number of sequences that are kept for each start.
    """

    symbols: int
    stops: tuple[int, ...]
    beams: int
    sequence = Type(ROWS, (len(GIVEN),), "float64")

    @property
    def own(self) -> Mapping[str, Type]:
        """The memories after those of the layers: the symbols that are fed, the log-probabilities of the
        beams, the finished sequences, the number of steps and the flags.
        """
        dtypes = {"symbol fed": "int64", "log of beam": "float64", **FINISHED}
        flags = {"step": "int64", "ended": "bool", "unclear": "bool"}
        return {
            **{name: Type(ROWS, (self.beams,), dtype) for name, dtype in dtypes.items()},
            **{name: Type(ROWS, (), dtype) for name, dtype in flags.items()},
        }

    @property
    def statics(self) -> Mapping[str, Type]:
        """The statics behind the layers' own: none."""
        return {}

    def refused(self, on_device: bool) -> str | None:
        """Returns the reason why Python continues the beams between two steps; None if the step can, and
        takes less time. on_device: whether the engine runs on a device, where each call takes longer.
        """
        most = MOST_CONTINUATIONS if on_device else MOST_CONTINUATIONS // self.beams
        beams = MOST_BEAMS if on_device else MOST_BEAMS_OF_CPU
        if self.beams > beams or self.beams * self.symbols > most:
            return (
                f"{beams} beams at most, with {most} symbols in all, continue in machine code, not "
                f"{self.beams} with {self.symbols} each"
            )
        return None

    def next(self, scores: Traced, inputs: Inputs, after: list[Traced]) -> tuple[list[Traced], list[Traced]]:
        """Continues the beams by their best symbols, in a traced step; returns the symbols and the beams that
        they continue, and the next memories of the step.

        A start ends when none of its beams can rank above its finished sequences, or if scores have no
        finite highest. It then keeps its memories, and is fed its last symbols again.

        scores: the scores, [rows, beams, symbols].
        inputs: the inputs of the step.
        after: the memories of the layers after the step.
        """
        fed, logs, *finished, step, ended, unclear = inputs.own
        length, weight, most, is_last = (inputs.sequence[:, place] for place in range(len(GIVEN)))
        totals, clear = self.totals(scores, logs)
        stopping = inputs.tables[-1]
        ending = numpy.where(stopping | (is_last > 0)[:, None, None], totals, -np.inf)
        finished_next = self.finished(finished, ending, weight, length)
        tops, rows, symbols = self.best(numpy.where(stopping, -np.inf, totals))
        possible = (ranked(tops, most) >= finished_next[0][:, -1:]) & (tops > -np.inf)
        # Beams that cannot become results repeat the first beam, with a log-probability of -inf.
        rows, symbols = (numpy.where(possible, each, each[:, :1]) for each in (rows, symbols))
        ends = ended | ~clear | ~possible[:, 0]
        before = [memory for part in inputs.memories for memory in part]
        going = [*(moved(memory, rows) for memory in after), symbols, numpy.where(possible, tops, -np.inf)]
        following = chosen(~ends, [*going, step + 1], [*before, fed, logs, step])
        kept = chosen(~ended, finished_next, finished)
        memories = [*following[:-1], *kept, following[-1], ends, unclear | ~(clear | ended)]
        return [symbols, rows], memories

    def totals(self, scores: Traced, logs: Traced) -> tuple[Traced, Traced]:
        """Returns the log-probabilities of all continuations, [rows, beams, symbols], and whether all beams
        have a finite highest score.

        scores, logs: the scores, and the log-probabilities of the beams.
        """
        known = scores.astype(np.float64)
        away = known - numpy.max(known, axis=-1, keepdims=True)
        norm = numpy.log(numpy.sum(numpy.exp(away), axis=-1, keepdims=True))
        clear = numpy.all(abs(norm) < np.inf, axis=(-2, -1))
        return (away - norm) + logs[:, :, None], clear

    def best(self, totals: Traced) -> tuple[Traced, Traced, Traced]:
        """Returns the highest `beams` of the log-probabilities of all continuations, highest first, with the
        beams and the symbols; of equal ones those of lower beams, then of lower symbols, come first.
        """
        flat = totals.reshape(totals.shape[0], self.beams * self.symbols)
        tops, places = best_of(flat, self.beams)
        return tops, places // self.symbols, places % self.symbols

    def finished(
        self, finished: list[Traced], ending: Traced, weight: Traced, length: Traced
    ) -> list[Traced]:
        """Returns the best finished sequences of each start, with those that end at this step; of equal ranks
        the earlier one is kept.

        finished: the finished sequences before this step, by the names in `FINISHED`.
        ending: the log-probabilities of continuations that end, -inf for others, [rows, beams, symbols].
        weight, length: the number by which log-probabilities are divided, and the number of symbols.
        """
        tops, rows, symbols = self.best(ending)
        lengths = numpy.zeros_like(rows) + length.astype(np.int64)[:, None]
        new = [ranked(tops, weight), tops, lengths, rows, symbols]
        both = [numpy.concatenate(pair, axis=-1) for pair in zip(finished, new, strict=True)]
        ranks, places = best_of(both[0], self.beams)
        return [ranks, *(values_at(values, places) for values in both[1:])]


def ranked(logs: Traced, weight: Traced) -> Traced:
    """Returns the ranks of log-probabilities [rows, count], divided by the weight of their length, [rows]."""
    return numpy.where(logs > -np.inf, logs / weight[:, None], -np.inf)


def best_of(values: Traced, count: int) -> tuple[Traced, Traced]:
    """Returns the `count` highest of the values [rows, number] of each row, highest first, and their places;
    equal values keep their order. Where there are fewer above -inf, others are -inf, at a place of any.
    """
    number = values.shape[1]
    if count > MOST_CHAINED:
        return ordered(*candidates(values, count), count) if number > FEW else ordered(values, None, count)
    every = numpy.arange(number)
    tops, places = [numpy.max(values, axis=-1)], [numpy.argmax(values, axis=-1)]
    for _ in range(1, count):
        top, place = tops[-1][:, None], places[-1][:, None]
        is_left = (values < top) | ((values == top) & (every > place))
        left = numpy.where(is_left, values, -np.inf)
        tops.append(numpy.max(left, axis=-1))
        places.append(numpy.argmax(left, axis=-1))
    return numpy.stack(tops, axis=-1), numpy.stack(places, axis=-1)


def candidates(values: Traced, count: int) -> tuple[Traced, Traced]:
    """Returns values of which some are the `count` highest of the values [rows, number], and their places.

    The values are lists. Each list is ordered, and then all numbers of one rank in their lists. So behind
    rank r and list b, (r + 1) (b + 1) - 1 numbers come ahead of what is there.
    """
    rows, number = values.shape
    lists = -(-number // LIST)
    if number % LIST:
        values = numpy.pad(values, ((0, 0), (0, lists * LIST - number)), constant_values=-np.inf)
    values, wanted = values.reshape(rows, lists, LIST), np.arange(min(count, LIST), dtype=np.float32)
    is_there = ranks(values)[:, None] == wanted[:, None, None]
    tops = numpy.sum(numpy.where(is_there, values[:, None], 0.0), axis=-1)
    every = numpy.arange(lists * LIST).reshape(lists, LIST)
    places = numpy.sum(numpy.where(is_there, every, 0), axis=-1)
    pairs = [(r, b) for r in range(len(wanted)) for b in range(lists) if (r + 1) * (b + 1) <= count]
    of, at = [r for r, _ in pairs], np.array([b for _, b in pairs], np.float32)
    is_there = ranks(tops)[:, of] == at[:, None]
    found = numpy.sum(numpy.where(is_there, tops[:, of], 0.0), axis=-1)
    return found, numpy.sum(numpy.where(is_there, places[:, of], 0), axis=-1)


def ordered(values: Traced, places: Traced | None, count: int) -> tuple[Traced, Traced]:
    """Returns the `count` highest of the values [rows, number], highest first, and their places. Of equal
    values, the one of the lower place comes first. places: None for the positions in the row.
    """
    is_there = ranks(values, places)[:, None] == numpy.arange(count, dtype=np.float32)[:, None]
    every = numpy.arange(values.shape[1]) if places is None else places[:, None]
    found = numpy.sum(numpy.where(is_there, values[:, None], 0.0), axis=-1)
    return found, numpy.sum(numpy.where(is_there, every, 0), axis=-1)


def ranks(values: Traced, places: Traced | None = None) -> Traced:
    """Returns the rank of each value [rows, ..., number] along the last axis, from 0 for the highest. Of
    equal values, the one with the lower place comes first. places: the place of each value; None for its
    position on the axis.
    """
    this, other = values[..., None], values[..., None, :]
    every = numpy.arange(values.shape[-1]) if places is None else places
    is_ahead = (other > this) | ((other == this) & (every[..., None, :] < every[..., None]))
    return numpy.sum(numpy.where(is_ahead, np.float32(1), np.float32(0)), axis=-1)


def values_at(values: Traced, places: Traced) -> Traced:
    """Returns the values [rows, number] of each row at places [rows, count]."""
    here = places[:, :, None] == numpy.arange(values.shape[1])
    return numpy.sum(numpy.where(here, values[:, None, :], 0), axis=-1)


def moved(memory: Traced, rows: Traced) -> Traced:
    """Returns a memory [rows, beams, ...] whose beam i is beam rows[i] of the given one, with its bits."""
    rank = len(memory.type.shape) - 1
    chosen_row = rows[(slice(None), slice(None), *[None] * rank)]
    result = memory[:, :1]
    for beam in range(1, memory.shape[1]):
        result = numpy.where(chosen_row == beam, memory[:, beam : beam + 1], result)
    return result
