"""Beam search against a slow one in plain Python, which makes a whole call for each beginning."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from tolerance import assert_close

import stepnet as sn
from stepnet import cells
from stepnet.errors import InputError
from stepnet.model.generation.candidates import Candidates, groups_of

Array = np.ndarray
Found = list[tuple[float, list[int]]]
NEVER = -math.inf


def log_of(scores: Array, symbol: int) -> float:
    """The log of a symbol's probability, in the order of operations that the search promises for ties."""
    away = scores.astype(np.float64) - scores.max()
    return float(away[symbol] - np.log(np.exp(away).sum()))


@dataclass(frozen=True)
class Slow:
    """The search behind one start: `scores` gives those behind all that was said, from the beginning on."""

    scores: Callable[[list[int]], Array]
    beams: int
    most: int
    stops: tuple[int, ...]
    penalty: float

    def rank(self, log: float, length: int) -> float:
        with np.errstate(over="ignore"):
            return log / float(np.float_power(length, self.penalty))

    def found(self, said: list[int]) -> Found:
        """The best, as logs and symbols; it never ends early."""
        live: Found = [(0.0, [])]
        done: Found = []
        for length in range(1, self.most + 1):
            longer: Found = []
            for log, written in live:
                ahead = self.scores([*said, *written])
                longer += [(log + log_of(ahead, symbol), [*written, symbol]) for symbol in range(len(ahead))]
            longer = sorted((one for one in longer if one[0] > NEVER), key=lambda one: -one[0])
            live = [one for one in longer if one[1][-1] not in self.stops][: self.beams]
            last = live if length == self.most else []
            stopped = [one for one in longer if one[1][-1] in self.stops or one in last]
            done = sorted(done + stopped[: self.beams], key=lambda one: -self.rank(one[0], len(one[1])))
        return done[: self.beams]


def assert_found(got: tuple[sn.Ragged, sn.Ragged], wanted: list[Found], exact: bool = True) -> None:
    """Asserts the sequences and their logs, in order; `wanted` per start."""
    sequences, logs = got
    assert (len(sequences), sequences.levels, logs.levels) == (len(wanted), 2, 1)
    for place, best in enumerate(wanted):
        written: Any = sequences[place]
        assert [one.tolist() for one in written.to_list()] == [symbols for _, symbols in best]
        if exact:
            assert np.asarray(logs[place]).tolist() == [log for log, _ in best]
        else:
            assert_close(logs[place], [log for log, _ in best], 8, 8)


# ---- scores by a table: ties, and what is impossible ------------------------------------------------------


def table_of(data: st.DataObject, symbols: int) -> Array:
    """Scores behind each symbol: few values, so that there are many ties, some of them impossible."""
    value = st.sampled_from([0.0, 0.0, 1.0, -1.0, 2.5, NEVER])
    row = st.lists(value, min_size=symbols, max_size=symbols).filter(lambda one: max(one) > NEVER)
    return np.array(data.draw(st.lists(row, min_size=symbols, max_size=symbols)), data.draw(DTYPE))


DTYPE = st.sampled_from(["float32", "float64"])


def by_table(table: Array) -> sn.RNN:
    counter, symbol = sn.Spec((), np.int64), sn.Spec((), np.int64)
    return sn.RNN(lambda x, h, p: (p[x], h + 1), table, memory=counter, inputs=symbol)


@pytest.mark.long(examples=40)
@settings(max_examples=150)
@given(st.data())
def test_ties_and_what_is_impossible(data: st.DataObject) -> None:
    """Bit for bit on the interpreter, whose order of sums is NumPy's."""
    symbols = data.draw(st.integers(1, 6))
    table = table_of(data, symbols)
    symbol = st.integers(0, symbols - 1)
    starts = data.draw(st.lists(symbol, max_size=4))
    stops = data.draw(st.lists(symbol, max_size=3))
    beams, most = data.draw(st.integers(1, 7)), data.draw(st.integers(1, 5))
    penalty = data.draw(st.sampled_from([0.0, 0.5, 1.0, 3.0, 1e6]))
    slow = Slow(lambda said: table[said[-1]], beams, most, tuple(stops), penalty)
    found = sn.beam_search(
        by_table(table),
        np.array(starts, np.int64),
        beams=beams,
        max_steps=most,
        stop=stops,
        length_penalty=penalty,
        engine="interpret",
    )
    assert_found(found, [slow.found([start]) for start in starts])


@pytest.mark.long(examples=10)
@settings(max_examples=40)
@given(st.data())
def test_groups_of_symbols(data: st.DataObject) -> None:
    """More symbols than are put in order as a whole: they fall into groups, of which few are looked into."""
    symbols = data.draw(st.sampled_from([180, 193, 200]))
    random = np.random.default_rng(data.draw(st.integers(0, 99)))
    table = random.integers(-6, 6, (symbols, symbols)).astype(data.draw(DTYPE)) / 2
    table[random.random(table.shape) < data.draw(st.sampled_from([0.0, 0.5, 0.97]))] = NEVER
    table[:, 11] = -3
    starts = data.draw(st.lists(st.integers(0, symbols - 1), min_size=1, max_size=3))
    stops = data.draw(st.sampled_from([(), (3,), (96 % symbols, 1, 1), tuple(range(0, symbols, 2))]))
    beams, most = data.draw(st.integers(6, 9)), data.draw(st.integers(1, 3))
    slow = Slow(lambda said: table[said[-1]], beams, most, stops, 0.5)
    assert groups_of(symbols) < symbols
    assert symbols * beams > 1024
    found = sn.beam_search(
        by_table(table),
        starts,
        beams=beams,
        max_steps=most,
        stop=stops,
        length_penalty=0.5,
        engine="interpret",
    )
    assert_found(found, [slow.found([start]) for start in starts])


@pytest.mark.parametrize("dtype", ["float16", "int64", "int8"])
def test_scores_of_other_dtypes(dtype: str, engine: str) -> None:
    table = np.random.default_rng(0).integers(-5, 5, (4, 4)).astype(dtype)
    rnn = by_table(np.eye(4))
    slow = Slow(lambda said: table[said[-1]], 3, 4, (1,), 0.0)
    options: Any = {"beams": 3, "max_steps": 4, "stop": 1, "engine": engine}
    found = sn.beam_search(rnn, [0, 2], scores=lambda out: table[out.argmax(axis=1)], **options)
    assert_found(found, [slow.found([start]) for start in (0, 2)], exact=False)


def test_scores_whose_dtype_changes() -> None:
    table, dtypes = np.eye(4), iter(["float32", "float64", "int64"])
    slow = Slow(lambda said: table[said[-1]], 3, 3, (1,), 0.0)
    options: Any = {"beams": 3, "max_steps": 3, "stop": 1, "engine": "interpret"}
    found = sn.beam_search(by_table(table), [0, 2], scores=lambda out: out.astype(next(dtypes)), **options)
    assert_found(found, [slow.found([start]) for start in (0, 2)])


# ---- recurrences ------------------------------------------------------------------------------------------

SYMBOLS, HIDDEN = 6, 4


def language(random: np.random.Generator) -> dict[str, Any]:
    shapes = {"E": (SYMBOLS, 3), "V": (HIDDEN, SYMBOLS), "W": (3, HIDDEN), "R": (HIDDEN, HIDDEN)}
    return {name: random.normal(size=shape) * 1.5 for name, shape in shapes.items()}


def plain(x: Any, h: Any, p: Any, statics: Any, index: Any) -> Any:
    h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + statics + (index[:, None] % 3))
    return h @ p["V"], h


def attending(x: Any, h: Any, p: Any, statics: Any) -> Any:
    h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + sn.reduce(np.tanh(statics * sn.expand(h, statics)), "sum"))
    return h @ p["V"], h


INNER = sn.RNN(lambda key, c, q: (c, np.tanh(key + c @ q)), np.eye(HIDDEN) - 0.3, memory=HIDDEN)


def within(x: Any, h: Any, p: Any, statics: Any) -> Any:
    """A recurrence over the keys of each row, which begins from the memory."""
    _, last = INNER(statics, initial=h)
    h = np.tanh(p["E"][x] @ p["W"] + last)
    return h @ p["V"], h


def stacked(random: np.random.Generator) -> tuple[Any, Callable[[int], Any]]:
    def lower(x: Any, h: Any, p: Any, index: Any) -> Any:
        h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + index[:, None] / 8)
        return h, h

    gru = cells.CELLS["gru"].parameters(inputs=HIDDEN, hidden=HIDDEN)
    out = random.normal(size=(HIDDEN, SYMBOLS)) * 2

    def upper(x: Any, h: Any, p: Any, statics: Any) -> Any:
        _, h = cells.gru(x + statics, h, p["gru"])
        return h @ p["V"], h

    layers = [
        sn.RNN(lower, language(random), memory=HIDDEN, inputs=sn.Spec((), np.int64)),
        sn.RNN(upper, {"gru": gru, "V": out}, memory=HIDDEN),
    ]
    bias = random.normal(size=(9, HIDDEN))
    return sn.Stack(layers), lambda rows: (None, bias[rows])


def model(kind: str, random: np.random.Generator) -> tuple[Any, Callable[[Any], Any]]:
    """A recurrence, and the statics of these rows."""
    if kind == "stack":
        return stacked(random)
    step = {"plain": plain, "attending": attending, "within": within}[kind]
    rnn = sn.RNN(step, language(random), memory=HIDDEN)
    if kind == "plain":
        bias = random.normal(size=(9, HIDDEN))
        return rnn, lambda rows: bias[rows]
    keys = sn.Ragged.from_list([random.normal(size=(count, HIDDEN)) for count in (2, 1, 3, 0, 2, 1, 1, 2, 3)])
    return rnn, lambda rows: keys.take(rows)


@pytest.mark.long(examples=4)
@settings(max_examples=12)
@given(st.data())
@pytest.mark.parametrize("kind", ["plain", "stack", "attending", "within"])
def test_whole_calls_in_plain_python(kind: str, data: st.DataObject) -> None:
    """Starts of any length, whose beginnings end at different steps."""
    rnn, statics = model(kind, np.random.default_rng(data.draw(st.integers(0, 9))))
    said = st.lists(st.integers(0, SYMBOLS - 1), min_size=1, max_size=3)
    starts = data.draw(st.lists(said, min_size=1, max_size=5))
    beams, most = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 5))
    stops = data.draw(st.sampled_from([(), (0,), (1, 3), (4, 0, 2, 1)]))
    engine = data.draw(st.sampled_from(["interpret", "llvm"]))

    def wanted(place: int, start: list[int]) -> Found:
        def scores(written: list[int]) -> Array:
            whole, _ = rnn(np.array([written]), statics=statics([place]), last_only=True, engine="interpret")
            return whole[0]

        return Slow(scores, beams, most, stops, 0.5).found(start)

    found = sn.beam_search(
        rnn,
        sn.Ragged.from_list([np.array(one) for one in starts]),
        beams=beams,
        max_steps=most,
        stop=stops,
        length_penalty=0.5,
        statics=statics(list(range(len(starts)))),
        feed=np.asarray,
        engine=engine,
    )
    assert_found(found, [wanted(*one) for one in enumerate(starts)], exact=False)


def test_each_start_alone_gives_the_same_bits() -> None:
    """However many others there are beside it, and when they end."""
    random = np.random.default_rng(7)
    rnn, statics = model("plain", random)
    starts = np.arange(9) % SYMBOLS
    options: Any = {"beams": 5, "max_steps": 12, "stop": (0, 2), "feed": np.asarray}
    sequences, logs = sn.beam_search(rnn, starts, statics=statics(range(9)), **options)
    for place in range(9):
        one, log = sn.beam_search(rnn, starts[[place]], statics=statics([place]), **options)
        assert sequences.take([place]).equal(one)
        assert logs.take([place]).equal(log)


def test_more_beams_than_there_are_sequences(engine: str) -> None:
    table = np.array([[0.0, 1.0], [1.0, 0.0]])
    slow = Slow(lambda said: table[said[-1]], 10**12, 3, (), 0.0)
    found = sn.beam_search(by_table(table), [0, 1], beams=10**12, max_steps=3, engine=engine)
    assert_found(found, [slow.found([start]) for start in (0, 1)], exact=False)
    assert found[0].lengths.tolist() == [8, 8]


# ---- what is refused --------------------------------------------------------------------------------------


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_scores_without_a_highest(wrong: float, engine: str) -> None:
    """In the first scores, and in those of a later step."""
    for row in (0, 2):
        table = np.ones((3, 3))
        table[0] = [0, 0, 5]
        table[row, 1] = wrong
        with pytest.raises(InputError, match=r"the scores of row \d have no highest: \["):
            sn.beam_search(by_table(table), [0], beams=2, max_steps=4, engine=engine)


def test_scores_that_are_all_impossible(engine: str) -> None:
    table = np.array([[0.0, 1.0], [NEVER, NEVER]])
    with pytest.raises(InputError, match="the scores of row 0 have no highest"):
        sn.beam_search(by_table(table), [0], beams=2, max_steps=3, engine=engine)


def test_scores_of_another_number_of_symbols() -> None:
    sizes = iter([3, 3, 4])
    with pytest.raises(InputError, match="scores are of 4 symbols, and those before of 3"):
        sn.beam_search(
            by_table(np.eye(3)),
            [0],
            beams=2,
            max_steps=4,
            scores=lambda out: np.ones((len(out), next(sizes))),
            engine="interpret",
        )


@pytest.mark.parametrize("symbols", [1, 5, 16, 17, 97, 1000])
@pytest.mark.parametrize("most", [1, 10**9])
def test_every_symbol_is_in_one_group(symbols: int, most: int) -> None:
    candidates = Candidates(3, symbols, np.array([0]), most, "interpret")
    every = (np.arange(candidates.groups)[:, None] + candidates.members)[candidates.wanted]
    assert sorted(every.tolist()) == list(range(1, symbols))
