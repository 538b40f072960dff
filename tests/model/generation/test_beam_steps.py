"""Beam search in machine code: the sequences are those of steps one by one."""

from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from constants import Constants
from language_models import CASES, IDS, STARTS, SYMBOLS, ragged
from tolerance import assert_close

import stepnet as sn
from stepnet.errors import InputError

GENERATION = "stepnet.model.generation.compiled"
BEAMS: list[dict[str, Any]] = [
    {"beams": 3, "max_steps": 12, "stop": [2, 5], "length_penalty": 0.7},
    {"beams": 3, "max_steps": 9},
    {"beams": 3, "max_steps": 2, "stop": 4},
]


@pytest.mark.long(every=3)
@pytest.mark.parametrize("name", CASES)
def test_beams_are_those_of_steps_one_by_one(
    name: str, pieces: list[bool], one_by_one: Callable[..., Any]
) -> None:
    """Symbols and their order; sums of probabilities may be rounded differently."""
    rnn, options = CASES[name]
    for way in BEAMS:
        found, logs = sn.beam_search(rnn, ragged(STARTS), **options, **way)
        expected, others = one_by_one(sn.beam_search, rnn, ragged(STARTS), **options, **way)
        assert found.equal(expected), way
        assert_close(logs.values, others.values)
    assert pieces == [True] * len(BEAMS)


def test_beams_that_all_end_at_once(pieces: list[bool]) -> None:
    found, _ = sn.beam_search(CASES["ids"][0], [1, 2], beams=2, max_steps=5, stop=range(SYMBOLS))
    assert found.to_list()[0][0].shape == (1,)
    assert pieces == []


def test_beams_of_pieces(constants: Constants) -> None:
    rnn, options = CASES["positions"]
    expected, _ = sn.beam_search(rnn, ragged(STARTS), **options, **BEAMS[0])
    for symbols in (3, 15):
        constants(GENERATION, MOST_STEPS=symbols)
        assert sn.beam_search(rnn, ragged(STARTS), **options, **BEAMS[0])[0].equal(expected)


@pytest.mark.parametrize("beams", [1, 4])
def test_numbers_of_beams(beams: int, pieces: list[bool], one_by_one: Callable[..., Any]) -> None:
    """One, and more than there are symbols: beams without a sequence are no results. Ties go to the lower."""
    table = np.log([[0.5, 0.25, 0.25], [0.125, 0.5, 0.375], [0.25, 0.25, 0.5]])
    rnn = sn.RNN(lambda x, h, p: (p[(x + h) % 3], h + x), table, memory=sn.Spec((), np.int64), inputs=IDS)
    for stop, most in ((None, 5), (0, 5), ([0, 2], 10**12)):
        options: dict[str, Any] = {"beams": beams, "max_steps": most, "stop": stop}
        found, logs = sn.beam_search(rnn, [0, 1, 2], **options)
        expected, others = one_by_one(sn.beam_search, rnn, [0, 1, 2], **options)
        assert found.equal(expected), stop
        assert_close(logs.values, others.values)
    assert pieces == [True] * 3


def test_scores_without_a_highest_raise_what_steps_raise(pieces: list[bool]) -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        return p[x] + np.where(h > 3, np.nan, 0.0)[:, None], h + 1

    rnn = sn.RNN(step, np.eye(3), memory=(), inputs=IDS)
    with pytest.raises(InputError, match="the scores of row 0 have no highest"):
        sn.beam_search(rnn, [1, 2], beams=2, max_steps=9)
    assert len(sn.beam_search(rnn, [1, 2], beams=2, max_steps=4)[0]) == 2
    assert pieces == [False, True]


def test_beams_of_many_symbols_take_steps_one_by_one(
    constants: Constants, pieces: list[bool], reasons: list[str]
) -> None:
    """On a device, where calls take longer, only those of more."""
    rnn = CASES["ids"][0]
    options: dict[str, Any] = {"beams": 2, "max_steps": 5}
    expected, _ = sn.beam_search(rnn, [1, 2], **options)
    assert (pieces, reasons) == ([True], [""])
    for most, engine, is_compiled in ((27, "llvm", False), (27, "cuda-emulated", True), (13, "llvm", False)):
        constants(GENERATION, KEPT=WeakKeyDictionary[Any, Any]())
        constants("stepnet.model.generation.beam_steps", MOST_CONTINUATIONS=most)
        assert sn.beam_search(rnn, [1, 2], engine=engine, **options)[0].equal(expected)
        assert (reasons[-1] == "") == is_compiled
    assert pieces == [True] * 2
    assert (
        reasons[-1] == "64 beams at most, with 13 symbols in all, continue in machine code, not 2 with 7 each"
    )
