"""The work of a schedule between recurrences: one value out of each sequence, and steps laid out once."""

from itertools import pairwise
from typing import Any

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import meanings
from stepnet.compiler.net.reductions import REDUCTIONS
from stepnet.compiler.targets.loop_buffers import PlainBuffers
from stepnet.ragged import offsets_of

Array = np.ndarray


@pytest.mark.long(examples=15)
@given(
    st.sampled_from(sorted(meanings.REDUCTIONS)),
    st.lists(st.integers(0, 4), max_size=6),
    st.sampled_from(["float32", "float64", "int32", "int64", "bool"]),
    st.sampled_from([(), (3,), (2, 2)]),
)
def test_a_reduction_is_that_of_each_sequence(
    how: str, lengths: list[int], dtype: str, features: tuple[int, ...]
):
    offsets = offsets_of(np.array(lengths, np.int64))
    values = np.random.default_rng(0).uniform(-9, 9, (int(offsets[-1]), *features)).astype(dtype)
    found = REDUCTIONS[how](values, offsets)
    meaning = meanings.REDUCTIONS[how]
    right = [meaning(values[a:b]) for a, b in pairwise(offsets) if a < b]
    filled = np.array(lengths) > 0
    assert found.dtype == meaning(np.ones((1, *features), dtype)).dtype
    assert not found[~filled].any()
    assert_close(found[filled] if right else right, right, 4, 4)


def test_a_maximum_of_what_is_no_number_is_none():
    values, offsets = np.array([1.0, np.nan, 2.0]), np.array([0, 2, 2, 3])
    np.testing.assert_array_equal(REDUCTIONS["max"](values, offsets), [np.nan, 0, 2])


# ---- steps laid out once -----------------------------------------------------------------------------------


added = sn.RNN(lambda x, c, p: (c, c + x * x), memory=3)


def attending(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
    """Looks at words by the memory, through operations of several extents and a recurrence over them. As it
    gives words back, it runs part by part.
    """
    words = np.tanh(x + sn.expand(h, x))
    h = np.tanh(added(words, initial=h)[1] @ p + statics["gain"])
    return words, h


@pytest.mark.parametrize("lengths", [[9, 5, 5, 2, 1, 0], [1, 0, 7, 1], [3], [4, 4, 4, 4, 3]])
def test_rows_that_end_leave_the_others_alone(lengths: list[int], monkeypatch: pytest.MonkeyPatch):
    random = np.random.default_rng(1)
    words = sn.Ragged.from_list([random.normal(size=(n % 4, 3)) for n in range(sum(lengths))])
    xs = words.group(lengths)
    statics = {"gain": random.normal(size=(len(lengths), 3))}
    rnn = sn.RNN(attending, random.normal(size=(3, 3)), memory=3)
    laid = list[int]()
    make = PlainBuffers.__init__

    def counted(self: PlainBuffers, *given: Any) -> None:
        make(self, *given)
        laid.append(self.count)

    monkeypatch.setattr(PlainBuffers, "__init__", counted)
    outputs, final = rnn(xs, statics=statics, engine="llvm")
    right, last = rnn(xs, statics=statics, engine="interpret")
    assert_close(outputs.values, right.values, 9, 9)
    assert_close(final, last, 9, 9)
    # A part is laid out anew when half of its rows have left, not at every step.
    step = rnn.schedule.parts[-1].inner
    assert step is not None
    parts = len([part for part in step.parts if part.kind == "plain"])
    assert 0 < len(laid) <= parts * (1 + int(np.log2(max(1, np.count_nonzero(lengths), words.total))))


def test_inner_sequences_that_grow_from_step_to_step(engine: str):
    def step(x: Any, h: Any, p: None) -> tuple[Any, Any]:
        h = h + sn.reduce(np.tanh(x * sn.expand(h + 1, x)), "sum")
        return h, h

    random = np.random.default_rng(2)
    documents = [[random.normal(size=(n, 2)) for n in sizes] for sizes in ([1, 5, 0, 9], [2], [3, 3, 8])]
    outputs, _ = sn.RNN(step, memory=2)(sn.Ragged.from_list(documents), engine=engine)
    for place, document in enumerate(documents):
        h: Array = np.zeros(2)
        for at, sentence in enumerate(document):
            h = h + np.tanh(sentence * (h + 1)).sum(axis=0)
            assert_close(outputs[place][at], h, 4, 9)


def test_an_output_of_one_step_is_not_that_of_another():
    def step(x: Any, h: Any, p: None, statics: Any) -> tuple[Any, Any]:
        return {"a": x + h, "b": sn.reduce(statics * sn.expand(h, statics), "sum")}, np.tanh(x - h)

    x = np.random.default_rng(3).normal(size=(2, 6, 2))
    keys = sn.Ragged.from_list([np.ones((2, 2)), np.ones((1, 2))])
    rnn = sn.RNN(step, memory=2)
    first, _ = rnn(x, statics=keys)
    kept = {name: array.copy() for name, array in first.items()}
    rnn(x + 1, statics=keys)
    for name, array in first.items():
        np.testing.assert_array_equal(array, kept[name])
    right, _ = rnn(x, statics=keys, engine="interpret")
    for name, array in first.items():
        assert_close(array, right[name], 6, 4)


# ---- values of a row at its steps, and sums over them ------------------------------------------------------


def doubled_alone(k: Any, h: Any) -> Any:
    """Nothing but the row's own value, at every step."""
    return sn.reduce(sn.expand(h, k) * 2, "sum")


def used_twice(k: Any, h: Any) -> Any:
    """The same repeated value in operations, and by itself."""
    wide = sn.expand(h, k)
    return sn.reduce(wide, "sum") + sn.reduce(np.tanh(wide * k), "sum")


def given_and_summed(k: Any, h: Any) -> Any:
    """A sum of what is read besides."""
    grown = np.exp(k * sn.expand(h, k))
    return sn.reduce(grown, "sum") + sn.reduce(grown, "max") + sn.reduce(grown * grown, "last")


def sum_of_a_sum(k: Any, h: Any) -> Any:
    """A sum that enters another one."""
    total = sn.reduce(k * k, "sum")
    return sn.reduce(np.tanh(k + sn.expand(total + h, k)), "sum")


def counted_by_integers(k: Any, h: Any) -> Any:
    """Sums of integers and of truths."""
    above = k > sn.expand(h, k)
    return (sn.reduce(above, "sum") + sn.reduce(above.astype(np.int32), "sum")).astype(h.dtype)


def through_a_recurrence(k: Any, h: Any) -> Any:
    """A repeated value that a recurrence over the keys reads."""
    inner = sn.RNN(lambda x, c, p: (c, c * 0.5 + x), memory=2)
    outputs, last = inner(k + sn.expand(h, k), initial=h)
    return sn.reduce(outputs * sn.expand(last, k), "sum")


def beside_in_a_recurrence(k: Any, h: Any) -> Any:
    """A repeated value that a recurrence over the keys reads as it is, beside them."""
    inner = sn.RNN(lambda x, c, p: (c, c * 0.5 + x["k"] * x["h"]), memory=2)
    return inner({"k": k, "h": sn.expand(h, k)}, initial="zeros")[1]


LOOKS = [
    doubled_alone,
    used_twice,
    given_and_summed,
    sum_of_a_sum,
    counted_by_integers,
    through_a_recurrence,
    beside_in_a_recurrence,
]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("lengths", [[3, 3, 3], [4, 0, 1, 2, 4]])
def test_what_is_made_on_the_way_is_what_the_interpreter_makes(look: Any, dtype: str, lengths: list[int]):
    def step(x: Any, h: Any, p: None, statics: Any) -> tuple[Any, Any]:
        found = look(statics, h)
        return found, np.tanh(x + 0.1 * found)

    random = np.random.default_rng(4)
    xs = sn.Ragged.from_list([random.normal(size=(n, 2)).astype(dtype) for n in lengths])
    keys = sn.Ragged.from_list([random.normal(size=((3 * n) % 5, 2)).astype(dtype) for n in lengths])
    rnn = sn.RNN(step, memory=2)
    outputs, final = rnn(xs, statics=keys, engine="llvm")
    right, last = rnn(xs, statics=keys, engine="interpret")
    assert_close(outputs.values, right.values, 20, 8)
    assert_close(final, last, 20, 8)


def test_sums_and_repeated_values_are_no_parts_of_their_own():
    def step(x: Any, h: Any, p: None) -> tuple[Any, Any]:
        seen = np.tanh(x * sn.expand(h, x))
        h = np.tanh(h + sn.reduce(seen, "sum"))
        return (h, seen), h

    rnn = sn.RNN(step, memory=2)
    rnn(sn.Ragged.from_list([[np.ones((2, 2)), np.ones((1, 2))]]))
    assert rnn.explain().split("\n\n")[0].splitlines()[1:] == [
        "  0    a recurrence over rows/steps, step by step: an inner sequence is its output",
        "  0.0  operations at rows/steps and sums of them, all sequences at once",
        "  0.1  operations at rows, all at once",
    ]


def test_what_is_made_of_values_of_the_outer_step_alone_is_computed_at_every_step():
    """Sums are regrouped: what comes of h and x alone, which are the same for all keys, is computed first."""

    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        scores = np.tanh((statics + sn.expand(h, statics)) + sn.expand(x, statics))
        h = np.tanh(sn.reduce(scores, "sum") @ p)
        return h, h

    random = np.random.default_rng(1)
    xs = random.normal(size=(3, 9, 3))
    keys = sn.Ragged.from_list([random.normal(size=(n, 3)) for n in (4, 2, 3)])
    rnn = sn.RNN(step, random.normal(size=(3, 3)), memory=3)
    outputs, _ = rnn(xs, statics=keys, engine="llvm")
    right, _ = rnn(xs, statics=keys, engine="interpret")
    assert_close(outputs, right, 9, 9)
