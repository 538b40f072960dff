"""Steps that read whole inner sequences of their row run in machine code as a whole: random ones against the
interpreter in float64, alone and together, and with any number of threads.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits
from tolerance import assert_close

import stepnet as sn
from stepnet.engines.threads import threads

Array = np.ndarray
WIDTHS = (1, 3, 16, 17, 32)
HOWS = ("sum", "mean", "max", "first", "last")


@pytest.fixture(autouse=True)
def same_threads() -> Generator[None]:
    before = threads()
    yield
    sn.set_threads(before)


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
        """The step on traced values. Words of each kind meet rows, become words again, and rows in the end."""
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


def lengths(random: np.random.Generator, count: int, most: int) -> Array:
    """Random lengths, some of them zero."""
    return random.integers(0, most + 1, count) * (random.random(count) > 0.2)


def ragged(random: np.random.Generator, counts: Array, features: int) -> sn.Ragged:
    return sn.Ragged(random.normal(size=(int(counts.sum()), features)), (np.cumsum([0, *counts]),))


@dataclass(frozen=True)
class Given:
    """What a call is given, in float64."""

    inputs: dict[str, sn.Ragged]
    statics: dict[str, sn.Ragged]

    @classmethod
    def random(cls, seed: int, rows: int) -> "Given":
        random = np.random.default_rng(seed)
        flat = ragged(random, lengths(random, rows, 6), WIDTHS[random.integers(5)])
        words = ragged(random, lengths(random, flat.total, 7), WIDTHS[random.integers(5)])
        keys = ragged(random, lengths(random, rows, 40), WIDTHS[random.integers(5)])
        values = keys.with_values(random.normal(size=(keys.total, WIDTHS[random.integers(5)])))
        inner = sn.Ragged(words.values, (*flat.offsets, *words.offsets))
        return cls({"flat": flat, "words": inner}, {"keys": keys, "values": values})

    def of(self, dtype: str, rows: Any = slice(None)) -> tuple[Any, Any]:
        """The inputs and statics of some rows, in a dtype."""
        inputs, statics = (
            {name: one.with_values(np.asarray(one.values).astype(dtype))[rows] for name, one in kind.items()}
            for kind in (self.inputs, self.statics)
        )
        return inputs, statics


def as_dtype(params: dict[str, Array], dtype: str) -> dict[str, Array]:
    return {name: array.astype(dtype) for name, array in params.items()}


def is_whole(rnn: sn.RNN) -> bool:
    """Whether all steps run as a whole: no part of the schedule is a loop over steps."""
    return all(part.kind != "loop" for part in rnn.schedule.parts)


def made(seed: int, given: Given, dtype: str, reverse: bool = False) -> sn.RNN:
    """A random step as a recurrence with parameters of a dtype."""
    program = Program(seed, (4, 16)[seed % 2])
    x, statics = given.of("float64")

    def first(x: Any, h: Any, p: Any, statics: Any) -> Any:
        return program.step(x, h, None, statics)

    sn.RNN(first, memory=program.hidden)(x, statics=statics, engine="interpret")
    return sn.RNN(program.step, as_dtype(program.params, dtype), memory=program.hidden, reverse=reverse)


@pytest.mark.long(every=4)
@pytest.mark.parametrize("seed", range(32))
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
    for row in range(5):
        x, statics = given.of(dtype, slice(row, row + 1))
        alone, end = rnn(x, statics=statics)
        assert_same_bits([alone[0], end], [outputs[row], final[row : row + 1]])
