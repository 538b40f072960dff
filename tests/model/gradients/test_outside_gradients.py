"""Integers outside of a parameter, in calls with derivatives: the message has the number and its place."""

# pyright: reportArgumentType=false
# Integers that are outside are what this is about.

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stepnet as sn
from stepnet.errors import InputError

E = np.ones((5, 3), "float32")
RNN = sn.RNN(lambda word, h, p: (h + p["E"][word], h + p["E"][word]), {"E": E}, memory=3)
GRAPH = sn.Graph(lambda words, p: RNN(words)[0] + p["E"][words], {"E": E})
WORDS = np.array([[1, 2, 0], [3, 5, 9]])
RAGGED = sn.Ragged.from_list([np.array([1]), np.array([2, 3, -6]), np.array([0])])
DIRECTION = {"params": {"E": E}}
VJP, JVP = sn.vjp(RNN), sn.jvp(RNN)
TRAIN = sn.value_and_grad(lambda y, _: np.sum(y, axis=-1), RNN)
SAID = "5 at step 1 of sequence 1, and `E` has 5 rows"

CALLS: dict[str, tuple[Callable[[Any], Any], Any, str]] = {
    "vjp": (lambda words: VJP(words), WORDS, SAID),
    "vjp, a Ragged": (lambda words: VJP(words), RAGGED, "-6 at step 2 of sequence 1, and `E` has 5 rows"),
    "vjp, time first": (lambda words: VJP(words, time_major=True), WORDS.T, SAID),
    "vjp, saved memories": (lambda words: VJP(words, checkpoint=1), WORDS, SAID),
    "vjp, each sequence": (lambda words: sn.vjp(RNN, per_sequence=True)(words, wrt="initial"), WORDS, SAID),
    "vjp of a graph": (sn.vjp(GRAPH), WORDS, SAID),
    "jvp": (lambda words: JVP(words, DIRECTION), WORDS, SAID),
    "a loss": (lambda words: TRAIN(words), WORDS, SAID),
    "a loss, saved memories": (lambda words: TRAIN(words, checkpoint=1), WORDS, SAID),
}


@pytest.mark.parametrize("prepared", [False, True])
@pytest.mark.parametrize("case", CALLS)
def test_the_integer_its_place_and_its_parameter_are_named(case: str, prepared: bool) -> None:
    call, words, said = CALLS[case]
    for _ in range(3 * prepared):
        call(words.with_values(words.values % 5) if isinstance(words, sn.Ragged) else words % 5)
    with pytest.raises(InputError) as caught:
        call(words)
    assert str(caught.value) == f"an integer is outside the rows of the parameter that it indexes: {said}"
    call(words.with_values(words.values % 5) if isinstance(words, sn.Ragged) else words % 5)
