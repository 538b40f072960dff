"""Inner recurrences that the outer memory enters run in the machine code of the step: random ones against the
interpreter in float64, alone and together, and with any number of threads.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given, settings
from random_words import WIDTHS, inside, lengths, ragged, rows_in
from same_bits import assert_same_bits
from sharing import every_step_shared
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError

Array = np.ndarray
READINGS = ("last", "sum", "mean", "max", "first", "attended", "joined")
pytestmark = pytest.mark.usefixtures("same_threads", "small_calls_are_shared")


# ---- random nestings ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Nesting:
    """A recurrence of an inner one. Widths: of words, rows, the inner and the outer memory.

    axis: whether the inner one runs over the words of each step, or over the keys of each row. starts: from
    what the inner memory begins. reads: whether the inner step reads the outer memory at each word. counts:
    whether it counts its words. reading: what the outer step makes of the inner outputs.
    """

    words: int
    flat: int
    inner: int
    outer: int
    axis: str
    starts: str
    reads: bool
    counts: bool
    reverse: bool
    outer_reverse: bool
    reading: str
    seed: int

    def matrix(self, name: str, rows: int, columns: int) -> Array:
        random = np.random.default_rng([self.seed, *name.encode()])
        return random.normal(size=(rows, columns)) / np.sqrt(rows)

    def word(self, dtype: str) -> sn.RNN:
        """The inner recurrence: gated, with a second memory that is no float where words are counted."""
        shapes = {"W": (self.words, 2 * self.inner), "R": (self.inner, 2 * self.inner)}
        shapes |= {"H": (self.outer, self.inner), "V": (self.inner, 5)}
        params: dict[str, Any] = {
            name: self.matrix(name, *shape).astype(dtype) for name, shape in shapes.items()
        }

        bias = self.matrix("bias", 1, self.inner).astype(dtype)[0]

        def gated(x: Any, memory: Any, p: Any, statics: Any, index: Any = None) -> Any:
            c, total = memory["c"], memory["total"]
            gates = x @ p["W"] + c @ p["R"]
            z, n = 1 / (1 + np.exp(-gates[:, : self.inner])), np.tanh(gates[:, self.inner :])
            n = n + x[:, -1:] * c * bias  # words as they were given, beside products of them
            n = n + np.tanh(statics @ p["H"]) if self.reads else n
            n = n + (index[:, None] % 3).astype(c.dtype) if self.counts else n
            total = total + (1 if index is None else index)
            c = c + z * (n - c)
            return {"c": c, "made": np.tanh(c @ p["V"])}, {"c": c, "total": total}

        def plain(x: Any, memory: Any, p: Any, statics: Any) -> Any:
            return gated(x, memory, p, statics)

        memory = {"c": sn.Spec(self.inner, dtype), "total": sn.Spec((), "int64")}
        return sn.RNN(gated if self.counts else plain, params, memory=memory, reverse=self.reverse)

    def rnn(self, dtype: str) -> sn.RNN:
        """The recurrence, with parameters of a dtype."""
        word = self.word(dtype)

        def step(x: Any, h: Any, p: Any, statics: Any) -> Any:
            sequence = x["words"] if self.axis == "words" else statics[:, 1:]
            begun = h @ p["S"]
            c = {"memory": begun, "part": np.concatenate([begun, begun], axis=-1)[:, 1 : self.inner + 1]}
            total = np.sum(h > 0, axis=-1).astype(np.int64)
            initial = {"c": c.get(self.starts, begun * 0), "total": total}
            outputs, last = word(sequence, initial=initial, statics=h)
            made = self.read(outputs, last, h, p)
            count = np.tanh(last["total"].astype(h.dtype))[:, None]
            h = np.tanh(made @ p["A"] + x["flat"] @ p["F"] + h @ p["R"] + count)
            return {"h": h, "last": last["c"], "total": last["total"]}, h

        shapes = {
            "S": (self.outer, self.inner),
            "A": (self.inner + 5, self.outer),
            "F": (self.flat, self.outer),
        }
        shapes |= {"R": (self.outer, self.outer), "Q": (self.outer, 5)}
        params = {name: self.matrix(f"outer {name}", *shape).astype(dtype) for name, shape in shapes.items()}
        return sn.RNN(step, params, memory=self.outer, reverse=self.outer_reverse)

    def read(self, outputs: Any, last: Any, h: Any, p: Any) -> Any:
        """One value per row of what the inner recurrence gives."""
        c, made = outputs["c"], outputs["made"]
        if self.reading == "attended":
            weights = sn.softmax_over_steps(np.sum(made * sn.expand(h @ p["Q"], made), axis=-1))
            both = np.concatenate([c, made], axis=-1)
            return sn.reduce(both * weights[:, None], "sum")
        if self.reading == "joined":
            return sn.reduce(np.concatenate([c, made], axis=-1), "max") + last["c"][:, :1]
        return np.concatenate([sn.reduce(c, self.reading), sn.reduce(made, self.reading)], axis=-1)


@dataclass(frozen=True)
class Given:
    """The arguments of a call, in float64."""

    inputs: dict[str, sn.Ragged]
    keys: sn.Ragged

    @classmethod
    def random(cls, nesting: Nesting, rows: int) -> "Given":
        random = np.random.default_rng(nesting.seed)
        flat = ragged(random, lengths(random, rows, 4), nesting.flat)
        words = ragged(random, lengths(random, flat.total, 9), nesting.words)
        keys = ragged(random, lengths(random, rows, 12), nesting.words + 1)
        return cls({"flat": flat, "words": inside(flat, words)}, keys)

    def of(self, dtype: str, rows: Any = slice(None)) -> dict[str, Any]:
        """The inputs and statics of some rows, in a dtype."""
        inputs = {name: rows_in(dtype, sequences, rows) for name, sequences in self.inputs.items()}
        return {"inputs": inputs, "statics": rows_in(dtype, self.keys, rows)}


def call(rnn: sn.RNN, given: dict[str, Any], **options: Any) -> Any:
    return rnn(given["inputs"], statics=given["statics"], **options)


def is_whole(rnn: sn.RNN) -> bool:
    """True if each step runs as a whole, with a recurrence inside it."""
    (part,) = (part for part in rnn.schedule.parts if part.node is not None and part.kind != "across")
    inner = [node.operation for node in part.node.recur.body.nodes] if part.node is not None else []
    return part.kind == "recurrence" and "recur" in inner


def nestings(axis: str, reading: str) -> st.SearchStrategy[Nesting]:
    """Random nestings along an axis, of which the outer step reads the outputs in one way."""
    return st.builds(
        Nesting,
        *(st.sampled_from(WIDTHS) for _ in range(4)),
        st.just(axis),
        st.sampled_from(["memory", "part", "zeros"]),
        *(st.booleans() for _ in range(4)),
        st.just(reading),
        st.integers(0, 99),
    )


def assert_right(nesting: Nesting, dtype: str, rows: int) -> None:
    """Asserts that machine code gives what the interpreter does, and the same bits in any company."""
    given, rnn = Given.random(nesting, rows), nesting.rnn(dtype)
    outputs, final = call(rnn, given.of(dtype), engine="llvm")
    assert is_whole(rnn)
    right, last = call(nesting.rnn("float64"), given.of("float64"), engine="interpret")
    for name in outputs:
        assert_close(outputs[name].values, right[name].values, 60, 64)
    assert_close(final, last, 60, 64)
    # Alone, in another company, and on any number of threads: the same bits.
    for count in (1, 2):
        sn.set_threads(count)
        assert_same_bits(call(rnn, given.of(dtype)), (outputs, final))
    with every_step_shared():
        for chosen in (slice(0, 1), slice(rows // 2, rows)):
            alone, end = call(rnn, given.of(dtype, chosen))
            assert_same_bits([alone, end], [{n: o[chosen] for n, o in outputs.items()}, final[chosen]])


@pytest.mark.long(every=2, examples=1)
@pytest.mark.parametrize("axis", ["words", "keys"])
@pytest.mark.parametrize("reading", READINGS)
@settings(max_examples=2)
@given(data=st.data(), dtype=st.sampled_from(["float32", "float64"]), rows=st.integers(1, 12))
def test_nestings_are_what_the_interpreter_gives(
    reading: str, axis: str, data: st.DataObject, dtype: str, rows: int
):
    assert_right(data.draw(nestings(axis, reading)), dtype, rows)


def nested(axis: str, reading: str, starts: str, reverse: bool) -> Nesting:
    """A nesting that has everything, along an axis."""
    return Nesting(3, 5, 17, 33, axis, starts, True, True, reverse, False, reading, 7)


@pytest.mark.parametrize(
    "nesting",
    [
        nested("words", "attended", "part", reverse=True),
        nested("keys", "joined", "memory", reverse=True),
        nested("words", "first", "memory", reverse=False),
    ],
    ids=["words", "keys", "forwards"],
)
def test_a_nesting_with_everything_is_what_the_interpreter_gives(nesting: Nesting):
    assert_right(nesting, "float32", 9)


# ---- one thing at a time -----------------------------------------------------------------------------------


def test_inner_steps_do_what_needs_their_memory_alone():
    nesting = nested("words", "sum", "memory", reverse=False)
    rnn = nesting.rnn("float32")
    call(rnn, Given.random(nesting, 2).of("float32"))
    (plan,) = (part.plan for part in rnn.schedule.parts if part.plan and part.kind == "recurrence")
    body = plan.body
    (inner,) = (node.recur.body for node in body.nodes if node.operation == "recur")
    assert sum(node.kind == "matmul" for node in inner.nodes) == 1  # of four: words, statics and outputs
    assert sum(node.kind == "matmul" for node in body.nodes) >= 3


def test_an_inner_recurrence_over_a_value_repeated_at_each_word():
    words = sn.RNN(lambda x, c, p: (c, np.sin(x[:, ::-1] + 2 * c)), memory=sn.Spec(3, "float64"))

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.cos(h) + words(sn.expand(h, x), initial=h)[1]
        return h, h

    rnn = sn.RNN(step, memory=sn.Spec(3, "float64"))
    counts = np.array([2, 0, 5])
    given = sn.Ragged(np.zeros((7, 1)), (np.array([0, 1, 3]), np.cumsum([0, *counts])))
    _, final = rnn(given, initial=np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]]), engine="llvm")
    assert is_whole(rnn)
    for row, h, own in (
        (0, np.array([0.1, 0.2, 0.3]), counts[:1]),
        (1, np.array([0.4, 0.5, 0.6]), counts[1:]),
    ):
        for count in own:
            c = h
            for _ in range(count):
                c = np.sin(h[::-1] + 2 * c)
            h = np.cos(h) + c
        assert_close(final[row], h, 7, 3)


def reader(reverse: bool = False) -> tuple[sn.RNN, Callable[[int, Array], Array]]:
    """A recurrence whose inner one reads a table of three rows, and the step of that."""

    def word(symbol: Any, memory: Any, p: Any) -> Any:
        c, least = memory["c"], memory["least"]  # with a memory the place is known at the inner step alone
        c = np.tanh(p["table"][np.maximum(symbol, least)] + c @ p["R"] + c[:, :1] @ gain)
        return c, {"c": c, "least": least}

    random = np.random.default_rng(4)
    params = {"table": random.normal(size=(3, 5)), "R": random.normal(size=(5, 5))}
    gain = np.array([[0.5]])
    memory = {"c": sn.Spec(5, "float64"), "least": sn.Spec((), "int64")}
    words = sn.RNN(word, params, memory=memory, reverse=reverse)

    def step(symbols: Any, memory: Any, p: Any) -> Any:
        _, last = words(symbols, initial=memory)
        return last["c"], last

    def by_hand(symbol: int, c: Array) -> Array:
        return word(np.array([symbol]), {"c": c, "least": np.array([0])}, params)[0]

    return sn.RNN(step, memory=memory), by_hand


@pytest.mark.parametrize("order", [(0, 2, 1, 2), (1, 2, 0, 2)], ids=["forwards", "reverse"])
def test_a_table_is_read_at_inner_steps_and_integers_outside_are_refused(order: tuple[int, ...]):
    rnn, word = reader(reverse=order[0] == 1)
    symbols = sn.Ragged(np.array([0, 2, 1, 2]), (np.array([0, 2]), np.array([0, 3, 4])))
    _, final = rnn(symbols, engine="llvm")
    assert is_whole(rnn)
    c = np.zeros((1, 5))
    for symbol in order:
        c = word(symbol, c)
    assert_close(final["c"], c, 4, 5)
    with pytest.raises(InputError, match="outside the rows of the parameter"):
        rnn(symbols.with_values(np.array([0, 2, 1, 3])), engine="llvm")


@pytest.mark.parametrize("reverse", [False, True])
def test_no_word_outside_a_row_is_read(reverse: bool):
    rnn, word = reader(reverse)
    sn.set_threads(1)  # all rows take their inner steps together
    memory = np.array([99, 0, 2, 1, 2, 99])  # 99 is outside the table
    symbols = sn.Ragged(memory[1:5], (np.arange(4), np.array([0, 1, 3, 4])))
    _, final = rnn(symbols, engine="llvm")
    for row, own in enumerate(symbols.to_list()):
        c = np.zeros((1, 5))
        for symbol in own[0][::-1] if reverse else own[0]:
            c = word(symbol, c)
        assert_close(final["c"][row : row + 1], c, 2, 5)


def test_inner_sequences_of_inner_sequences_run_part_by_part():
    words = sn.RNN(lambda x, c, p: (c, np.tanh(x + c)), memory=3)
    sentences = sn.RNN(lambda x, h, p: (h, words(x, initial=h)[1]), memory=3)
    rnn = sn.RNN(lambda x, h, p: (h, sentences(x, initial=h)[1]), memory=3)
    offsets = (np.array([0, 2, 3]), np.array([0, 1, 3, 4]), np.array([0, 2, 2, 5, 6]))
    books = sn.Ragged(np.random.default_rng(8).normal(size=(6, 3)), offsets)
    _, final = rnn(books, engine="llvm")
    assert "step by step: its inner sequences are nested" in rnn.explain()
    c = np.zeros((2, 3))
    for row, own in ((0, range(5)), (1, range(5, 6))):
        for word in own:
            c[row] = np.tanh(books.values[word] + c[row])
    assert_close(final, c, 6, 3)
