"""Integers outside of a parameter: the message has the number, its place, and the parameter."""

# pyright: reportArgumentType=false
# Integers that are outside are what this is about.

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import InputError

E, P = np.ones((5, 3), "float32"), np.ones((1, 3), "float32")


def lookup(word: Any, h: Any, p: Any) -> Any:
    """Takes a row of a table by a word."""
    h = h + p["E"][word]
    return h, h


RNN = sn.RNN(lookup, {"E": E}, memory=3)
UNNAMED = sn.RNN(lambda word, h, table: (table[word], h), E, memory=3)
STACK = sn.Stack([sn.RNN(lambda x, h, p: (x, h), memory=()), RNN])
FIRST = sn.Stack([RNN, sn.RNN(lambda x, h, p: (x, h), memory=3)])
SHIFTED = sn.RNN(lambda x, h, p: (p["E"][x["word"] + x["more"]], h), {"E": E}, memory=3)
OLD = sn.RNN(lambda x, h, p: (p["E"][h], h + x), {"E": E, "P": P}, memory=sn.Spec((), "int64"))
BOTH = sn.RNN(lambda x, h, p: (p["E"][h] + p["P"][h], h + x), {"E": E, "P": P}, memory=sn.Spec((), "int64"))
SPEAKER = sn.RNN(lambda x, h, p, statics: (p["E"][statics["speaker"]] + x[:, None], h), {"E": E}, memory=3)
PADDED = sn.Graph(lambda words, p: p["E"][np.where(words < 0, 5, words)], {"E": E})
INNER = sn.Graph(lambda words, p: RNN(words)[0], {"E": E})
WORDS = np.array([[1, 2, 0], [3, 5, 9]])
RAGGED = sn.Ragged.from_list([np.array([1]), np.array([2, 3, -6]), np.array([0])])


def twice(call: Callable[[], Any], good: Callable[[], Any]) -> None:
    """Makes good calls until calls of this form are prepared, and then the wrong one."""
    for _ in range(12):
        good()
    call()


CALLS: dict[str, tuple[Callable[[], Any], str]] = {
    "an array": (lambda: RNN(WORDS), "5 at step 1 of sequence 1, and `E` has 5 rows"),
    "one sequence": (lambda: RNN(WORDS[1:]), "5 at step 1, and `E` has 5 rows"),
    "time first": (lambda: RNN(WORDS.T, time_major=True), "5 at step 1 of sequence 1, and `E`"),
    "a Ragged": (lambda: RNN(RAGGED), "-6 at step 2 of sequence 1, and `E` has 5 rows"),
    "beyond lengths": (
        lambda: RNN(np.array([[1, 77], [2, 6]]), lengths=[1, 2]),
        "6 at step 1 of sequence 1, ",
    ),
    "prepared": (lambda: twice(lambda: RNN(WORDS), lambda: RNN(WORDS % 5)), "5 at step 1 of sequence 1, "),
    "no name": (lambda: UNNAMED(WORDS), "5 at step 1 of sequence 1, and `table` has 5 rows"),
    "a layer": (lambda: FIRST(WORDS), "5 at step 1 of sequence 1, and `E` has 5 rows"),
    "a layer that reads outputs": (lambda: STACK(WORDS), "`E` has 5"),
    "computed": (
        lambda: SHIFTED({"word": np.array([[1, 2]]), "more": np.array([[1, 5]])}),
        "7 at step 1, and `E` has 5 rows",
    ),
    "last outputs": (lambda: RNN(WORDS, last_only=True), "5 at step 1 of sequence 1, and"),
    "a memory": (lambda: OLD(WORDS), "`E` has 5"),
    "two tables": (lambda: BOTH(WORDS), "`E` has 5, `P` has 1"),
    "a static": (
        lambda: SPEAKER(np.ones((2, 3), "f4"), statics={"speaker": np.array([4, 8])}),
        "8 in sequence 1, and `E` has 5 rows",
    ),
    "replaced": (lambda: PADDED(np.array([[1, -1]])), "-1 at step 1, and `E` has 5 rows"),
    "a graph": (lambda: INNER(WORDS), "5 at step 1 of sequence 1, and `E` has 5 rows"),
    "the interpreter": (lambda: RNN(WORDS, engine="interpret"), "5 at step 1 of sequence 1, and `E` has 5"),
    "a stream": (lambda: RNN.stream(2).step(np.array([4, 5])), "5 in row 1, and `E` has 5 rows"),
    "a stream of layers": (lambda: STACK.stream(2).step(np.array([4, 5])), "5 in row 1, and `E` has 5 rows"),
    "a masked call": (lambda: RNN(WORDS, mask=WORDS < 9), "5 at step 1 of sequence 1, and `E` has 5 rows"),
}


@pytest.mark.parametrize("case", CALLS)
def test_the_integer_its_place_and_its_parameter_are_named(case: str) -> None:
    call, words = CALLS[case]
    with pytest.raises(InputError) as caught:
        call()
    said = str(caught.value).split("\n")[0]
    assert "an integer is outside the rows of the parameter that it indexes: " in said
    assert f": {words}" in said
