"""Steps that read whole inner sequences of their row run in machine code as a whole: random ones against the
interpreter in float64, alone and together, and with any number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from random_words import WIDTHS, inside, lengths, ragged, rows_in
from same_bits import assert_same_bits
from sharing import every_step_shared
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import Precision
from stepnet.compiler.net.meanings import REDUCTIONS
from stepnet.compiler.values import leaves
from stepnet.errors import InputError

Array = np.ndarray
HOWS = ("sum", "mean", "max", "first", "last")
pytestmark = pytest.mark.usefixtures("same_threads", "small_calls_are_shared")


# ---- random steps ------------------------------------------------------------------------------------------


@dataclass
class Program:
    """A random step: the same operations whenever it is traced, and the parameters that it asks for."""

    seed: int
    hidden: int
    params: dict[str, Array] = field(default_factory=dict[str, Array])

    def weight(self, p: Any, rows: int, columns: int) -> Any:
        """The next matrix: from the parameters, once they are complete."""
        name = f"W{self.count}"
        self.count += 1
        if name not in self.params:
            random = np.random.default_rng([self.seed, self.count])
            self.params[name] = random.normal(size=(rows, columns)) / np.sqrt(rows)
        return (self.params if p is None else p)[name]

    def step(self, x: Any, h: Any, p: Any, statics: Any) -> Any:
        """The step on traced values: words meet rows, become words again, and rows in the end."""
        self.count = 0
        random = np.random.default_rng(self.seed)
        rows: list[Any] = [h, x["flat"]]
        words = {"words": [x["words"]], "keys": [statics["keys"], statics["values"]]}
        for _ in range(random.integers(4, 9)):
            axis = ("words", "keys")[random.integers(2)]
            own = words[axis]
            a, b = own[random.integers(len(own))], own[random.integers(len(own))]
            row = rows[random.integers(len(rows))]
            made = self.operations(random, p, a, b, row)
            own.append(made)
            if random.integers(3) == 0:
                rows.append(sn.reduce(made, HOWS[random.integers(len(HOWS))]))
        for own in words.values():
            weights = sn.softmax_over_steps(own[-1] @ self.weight(p, own[-1].shape[-1], 1))
            rows.append(sn.reduce(own[-1] * weights, "sum"))
        total = sum(row @ self.weight(p, row.shape[-1], self.hidden) for row in rows)
        h = np.tanh(total)
        return h, h

    def operations(self, random: np.random.Generator, p: Any, a: Any, b: Any, row: Any) -> Any:
        """One value of words, from others along the axis and from a row."""
        width = WIDTHS[random.integers(len(WIDTHS))]
        fits = partial(self.weight, p)
        kinds: list[Callable[[], Any]] = [
            lambda: np.tanh(a @ fits(a.shape[-1], width) + sn.expand(row @ fits(row.shape[-1], width), a)),
            lambda: np.maximum(a @ fits(a.shape[-1], width), b @ fits(b.shape[-1], width)),
            lambda: np.tanh(np.concatenate([a, sn.expand(row, a)], axis=-1)),
            lambda: np.sum(a * sn.expand(row @ fits(row.shape[-1], a.shape[-1]), a), axis=-1, keepdims=True),
            lambda: np.tanh(np.cumsum(a + sn.expand(row[:, :1], a), axis=-1)),
            lambda: np.concatenate([a, np.tanh(b)], axis=-1) @ fits(a.shape[-1] + b.shape[-1], width),
            lambda: a[:, ::-1] * sn.expand(row[:, -1:], a),
            lambda: a - sn.expand(sn.reduce(a, "mean"), a),
        ]
        return kinds[random.integers(len(kinds))]()


@dataclass(frozen=True)
class Given:
    """The arguments of a call, in float64."""

    inputs: dict[str, sn.Ragged]
    statics: dict[str, sn.Ragged]

    @classmethod
    def random(cls, seed: int, rows: int) -> "Given":
        random = np.random.default_rng(seed)
        flat = ragged(random, lengths(random, rows, 6), WIDTHS[random.integers(5)])
        words = ragged(random, lengths(random, flat.total, 7), WIDTHS[random.integers(5)])
        keys = ragged(random, lengths(random, rows, 40), WIDTHS[random.integers(5)])
        values = keys.with_values(random.normal(size=(keys.total, WIDTHS[random.integers(5)])))
        return cls({"flat": flat, "words": inside(flat, words)}, {"keys": keys, "values": values})

    def of(self, dtype: str, rows: Any = slice(None)) -> tuple[Any, Any]:
        """The inputs and statics of some rows, in a dtype."""
        inputs, statics = (
            {name: rows_in(dtype, sequences, rows) for name, sequences in kind.items()}
            for kind in (self.inputs, self.statics)
        )
        return inputs, statics


def as_dtype(params: dict[str, Array], dtype: str) -> dict[str, Array]:
    return {name: array.astype(dtype) for name, array in params.items()}


def is_whole(rnn: sn.RNN) -> bool:
    """True if all steps run as a whole: no part of the schedule is a loop over steps."""
    return all(part.kind != "loop" for part in rnn.schedule.parts)


def made(seed: int, given: Given, dtype: str, reverse: bool = False) -> sn.RNN:
    """A random step as a recurrence with parameters of a dtype."""
    program = Program(seed, (4, 16)[seed % 2])
    x, statics = given.of("float64")

    def first(x: Any, h: Any, p: Any, statics: Any) -> Any:
        return program.step(x, h, None, statics)

    sn.RNN(first, memory=program.hidden)(x, statics=statics, engine="interpret")
    return sn.RNN(program.step, as_dtype(program.params, dtype), memory=program.hidden, reverse=reverse)


@pytest.mark.long(every=9)
@pytest.mark.parametrize("seed", range(36))
def test_random_steps_are_what_the_interpreter_gives(seed: int):
    given = Given.random(seed, 5)
    dtype, reverse = ("float32", "float64")[seed // 4 % 2], seed % 3 == 0
    rnn = made(seed, given, dtype, reverse)
    x, statics = given.of(dtype)
    outputs, final = rnn(x, statics=statics, engine="llvm")
    assert is_whole(rnn)
    wide = sn.RNN(rnn.step, as_dtype(rnn.params, "float64"), memory=rnn.memory.shape[0], reverse=reverse)
    x, statics = given.of("float64")
    right, last = wide(x, statics=statics, engine="interpret")
    assert_close(outputs.values, right.values, 50, 64)
    assert_close(final, last, 50, 64)
    # Alone, in another order, and on any number of threads: the same bits.
    for count in (1, 3):
        sn.set_threads(count)
        assert_same_bits(rnn(*given.of(dtype)[:1], statics=given.of(dtype)[1]), (outputs, final))
    with every_step_shared():
        for rows in (slice(0, 1), slice(1, 2), slice(2, 5)):
            x, statics = given.of(dtype, rows)
            alone, end = rnn(x, statics=statics)
            assert_same_bits([alone, end], [outputs[rows], final[rows]])


# ---- one thing at a time -----------------------------------------------------------------------------------


def documents(dtype: str = "float64") -> sn.Ragged:
    """Documents of sentences of words of three features: no sentences, and sentences without words, too."""
    random = np.random.default_rng(3)
    inner = np.cumsum([0, 3, 0, 1, 70, 2])
    values = random.normal(size=(int(inner[-1]), 3)).astype(dtype)
    return sn.Ragged(values, (np.array([0, 2, 2, 5]), inner))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("how", HOWS)
@pytest.mark.parametrize("dtype", ["float32", "int64"])
def test_reductions_of_words_that_the_memory_enters(how: str, dtype: str):
    if (how, dtype) == ("mean", "int64"):
        pytest.skip("the mean of integers is of floats")

    def step(x: Any, h: Any, p: Any) -> Any:
        made = sn.reduce(x * 2 + sn.expand(h, x), how)
        return made, (made + h) // 2 if dtype == "int64" else np.tanh(made) + h * 0.5

    words = documents()
    words = words.with_values(np.round(np.asarray(words.values) * 4).astype(dtype))
    rnn = sn.RNN(step, memory=sn.Spec(3, dtype))
    outputs, final = rnn(words, engine="llvm")
    assert is_whole(rnn)
    for row, document in enumerate(words.to_list()):
        h = np.zeros(3, dtype if dtype == "int64" else "float64")
        for place, sentence in enumerate(document):
            here = sentence * 2 + h
            made = REDUCTIONS[how](here) if len(here) else np.zeros(3, dtype)
            assert_close(outputs[row][place], made, 70, 3)
            h = (made + h) // 2 if dtype == "int64" else np.tanh(made) + h * 0.5
        assert_close(final[row], h, 70, 3)


@pytest.mark.parametrize("how", HOWS)
def test_words_of_which_the_loop_reads_the_lengths_alone(how: str):
    """The mean of the words is lifted out of the loop, which then has no array of words."""

    def step(x: Any, h: Any, p: Any) -> Any:
        row = np.concatenate([sn.reduce(x, "mean"), h], axis=-1)
        return sn.reduce(sn.expand(row, x), how), h + 1

    words = documents()
    rnn = sn.RNN(step, memory=2)
    outputs, _ = rnn(words, engine="llvm")
    assert is_whole(rnn)
    for row, document in enumerate(words.to_list()):
        for place, sentence in enumerate(document):
            right = np.zeros(5)
            if len(sentence):
                row_of_words = [*sentence.mean(0, "float64"), place, place]
                right = REDUCTIONS[how](np.tile(row_of_words, (len(sentence), 1)))
            assert_close(outputs[row][place], right, 70, 5)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("features", [1, 3, 17, 32])
@pytest.mark.parametrize("function", [np.sum, np.max, np.min])
def test_reductions_over_the_features_of_words(function: Any, features: int):
    """Memory behind the last feature takes no part: neither 1 nor -1 changes a number here by chance."""
    sign = -1 if function is np.max else 1

    def made_of(x: Any, h: Any) -> Any:
        return function(sign * np.exp(x * sign + h), axis=-1)

    def step(x: Any, h: Any, p: Any) -> Any:
        made = sn.reduce(made_of(x, sn.expand(h, x)), "max")
        return made, h + 1

    words, random = documents(), np.random.default_rng(7)
    values = random.uniform(1, 2, (len(words.values), features)) * (1 if function is np.min else -1)
    rnn = sn.RNN(step, memory=1)
    outputs, _ = rnn(words.with_values(values), engine="llvm")
    assert is_whole(rnn)
    for row, document in enumerate(words.with_values(values).to_list()):
        for place, sentence in enumerate(document):
            right = made_of(sentence, np.float64(place)).max() if len(sentence) else 0
            assert_close(outputs[row][place], np.float64(right), 2, features)


@pytest.mark.parametrize("joined", [False, True])
def test_words_that_are_read_again_behind_a_product_of_rows(joined: bool):
    """Between both, other lanes are at work: these words have memory of their lane."""

    def step(x: Any, h: Any, p: Any) -> Any:
        words = np.exp(-(x**2) - sn.expand(h, x))
        row = np.tanh(sn.reduce(words, "mean") @ p["W"])
        again = np.concatenate([words, sn.expand(row, x)], axis=-1) if joined else words * sn.expand(row, x)
        h = np.tanh(sn.reduce(again, "sum") @ p["joined" if joined else "W"])
        return h, h

    random = np.random.default_rng(6)
    params = {"W": random.normal(size=(16, 16)), "joined": random.normal(size=(32, 16))}
    words = documents()
    words = words.with_values(random.normal(size=(len(words.values), 16)))
    sn.set_threads(1)  # so that one thread has several lanes
    outputs, _ = (rnn := sn.RNN(step, params, memory=16))(words, engine="llvm")
    assert is_whole(rnn)
    right, _ = rnn(words, engine="interpret")
    assert_close(outputs.values, right.values, 70, 32)


def test_numbers_that_are_not_finite_stay_with_their_words():
    def step(x: Any, h: Any, p: Any) -> Any:
        most = sn.reduce(x + sn.expand(h, x), "max")
        return most, h + 1

    words = documents()
    values = np.array(words.values)
    values[1, 0], values[5, 1], values[6, 2] = np.nan, np.inf, -np.inf
    rnn = sn.RNN(step, memory=3)
    outputs, _ = rnn(words.with_values(values), engine="llvm")
    assert is_whole(rnn)
    right, _ = rnn(words.with_values(values), engine="interpret")
    assert np.isnan(right.values).any()
    assert np.isinf(right.values).any()
    np.testing.assert_array_equal(outputs.values, right.values)


def test_tables_are_read_at_words_and_integers_outside_are_refused():
    def step(x: Any, h: Any, p: Any) -> Any:
        rows = p["table"][x["symbol"]] * sn.expand(h, x["symbol"])
        h = np.tanh(sn.reduce(rows, "sum") + x["bias"])
        return h, h

    symbols = sn.Ragged(np.array([0, 2, 1, 2]), (np.array([0, 2]), np.array([0, 3, 4])))
    bias = sn.Ragged(np.ones((2, 5)), (np.array([0, 2]),))
    table = np.random.default_rng(4).normal(size=(3, 5))
    rnn = sn.RNN(step, {"table": table}, memory=5)
    outputs, _ = rnn({"symbol": symbols, "bias": bias}, engine="llvm")
    assert is_whole(rnn)
    first = np.tanh(np.ones(5))
    assert_close(outputs[0], [first, np.tanh(table[2] * first + 1)], 4, 5)
    wrong = symbols.with_values(np.array([0, 2, 1, 3]))
    with pytest.raises(InputError, match="outside the rows of the parameter"):
        rnn({"symbol": wrong, "bias": bias}, engine="llvm")


@pytest.mark.parametrize("weights", ["int8", "bfloat16"])
def test_products_of_words_in_fewer_bits(weights: str):
    """Each word's product is rounded as a flat recurrence over the same left sides rounds it."""
    random = np.random.default_rng(5)
    params = {"K": random.normal(size=(32, 17)).astype("float32")}

    def step(x: Any, h: Any, p: Any, statics: Any) -> Any:
        mixed = np.maximum(statics, sn.expand(h[:, :1], statics)) @ p["K"]
        return sn.reduce(mixed, "max"), x

    x = random.normal(size=(2, 3, 1)).astype("float32")
    keys = sn.Ragged.from_list([random.normal(size=(n, 32)).astype("float32") for n in (5, 20)])
    rnn = sn.RNN(step, params, memory=1).in_precision(Precision(weights))
    outputs, _ = rnn(x, statics=keys, engine="llvm")
    assert is_whole(rnn)
    flat = sn.RNN(lambda x, h, p: (x @ p["K"], h), params, memory=1).in_precision(Precision(weights))
    for row, own in enumerate(keys.to_list()):
        for place, h in enumerate([0, *x[row, :2, 0]]):
            made, _ = flat(np.maximum(own, np.float32(h))[None], engine="llvm")
            np.testing.assert_array_equal(outputs[row, place], made[0].max(0))
            assert np.abs(made[0] - np.maximum(own, np.float32(h)) @ params["K"]).max() > 1e-3


# ---- what is said ------------------------------------------------------------------------------------------


inner = sn.RNN(lambda x, c, p: (c, np.tanh(x + c)), memory=3)


def entered(x: Any, h: Any, p: Any) -> Any:
    _, c = inner(x, initial=h)
    return c, c


def given_back(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh(sn.reduce(x + sn.expand(h, x), "sum"))
    return (x + sn.expand(h, x), h), h


def whole(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh(sn.reduce(x + sn.expand(h, x), "sum"))
    return h, h


@pytest.mark.parametrize(
    ("step", "text"),
    [
        (whole, "a recurrence over rows/steps, all sequences at once, with the inner sequences of each step"),
        (
            entered,
            "a recurrence over rows/steps, all sequences at once, with the inner recurrence of each step",
        ),
        (given_back, "a recurrence over rows/steps, step by step: an inner sequence is its output"),
    ],
)
def test_explain_says_whether_a_step_runs_as_a_whole_and_why_not(step: Any, text: str):
    rnn = sn.RNN(step, memory=3)
    outputs, _ = rnn(documents(), engine="llvm")
    right, _ = rnn(documents(), engine="interpret")
    assert text in rnn.explain()
    for one, other in zip(leaves(outputs), leaves(right), strict=True):
        assert_close(one.values, other.values, 70, 3)
    assert ("for each step of the inner sequences" in rnn.explain()) == (step is not given_back)
