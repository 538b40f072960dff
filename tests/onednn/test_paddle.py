"""Paddle's own fused operators, native and on oneDNN: what they gave is what ours give.

`make test-peers` asks Paddle again; see peers/paddle_fused.py.
"""

import json
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet import onednn
from tests.onednn.oracle import Case, gru, lstm
from tests.peers.environments import HERE

SAVED = np.load(HERE / "saved" / "paddle_fused.npz")
ABOUT: Any = json.loads(str(SAVED["about"]))
CASES: list[Any] = [
    pytest.param(place, id=f"{place} {case['operator']} {'onednn' if case['onednn'] else 'native'}")
    for place, case in enumerate(ABOUT["cases"])
]
SLOTS = ("X", "H0", "WeightX", "WeightH", "Bias", "C0")


def given(place: int, slot: str) -> list[np.ndarray]:
    """The arrays of a slot."""
    names = sorted(name for name in SAVED.files if name.startswith(f"{place}/{slot}/"))
    return [SAVED[name] for name in names]


def ragged(values: np.ndarray) -> sn.Ragged:
    """Values of all steps as the sequences that Paddle was given."""
    return sn.Ragged(values, (np.concatenate([[0], np.cumsum(ABOUT["lengths"])]),))


def case_of(place: int) -> Case:
    """The inputs of fusion_gru and fusion_lstm."""
    x, *others = ((given(place, slot) or [None])[0] for slot in SLOTS)
    assert x is not None
    return Case([np.asarray(each) for each in ragged(x)], *others)  # pyright: ignore[reportArgumentType]


@pytest.mark.usefixtures("dnnl")
@pytest.mark.parametrize("place", CASES)
def test_operators_give_what_paddles_give(place: int):
    case, length = ABOUT["cases"][place], max(ABOUT["lengths"])
    settings, inputs = dict(case["settings"]), case_of(place)
    if case["operator"] == "multi_gru":
        layers = (given(place, slot) for slot in ("WeightX", "WeightH", "Bias"))
        made, _ = onednn.multi_gru(inputs.ragged, *layers, origin_mode=settings["origin_mode"])
    elif case["operator"] == "fusion_gru":
        made, _ = onednn.fusion_gru(*inputs.arguments(), **settings)
    else:
        made, _ = onednn.fusion_lstm(*inputs.lstm_arguments(), **settings)
    assert_close(made.values, SAVED[f"{place}/outputs"], 2 * length, 14)


@pytest.mark.parametrize("place", CASES)
def test_the_loops_of_the_tests_give_what_paddle_gives(place: int):
    """The oracle of all other tests, which need no Paddle."""
    case, length = ABOUT["cases"][place], max(ABOUT["lengths"])
    settings = dict(case["settings"])
    if case["operator"] == "multi_gru":
        pytest.skip("its oracle is that of fusion_gru")
    settings.pop("use_peepholes", None)
    right = (gru if case["operator"] == "fusion_gru" else lstm)(case_of(place), **settings)
    assert_close(SAVED[f"{place}/outputs"], np.concatenate(right.outputs).astype("f4"), length, 12)


def test_what_was_asked():
    operators = {(case["operator"], case["onednn"]) for case in ABOUT["cases"]}
    assert operators == {(name, way) for name in ("fusion_gru", "fusion_lstm") for way in (False, True)} | {
        ("multi_gru", True)
    }
    assert len(ABOUT["cases"]) == 34
