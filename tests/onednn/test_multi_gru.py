"""multi_gru: stacks of bidirectional GRUs over ragged sequences."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet import onednn
from stepnet.errors import InputError
from tests.onednn.oracle import Case, case, multi_gru

pytestmark = pytest.mark.usefixtures("dnnl")


def stack(lengths: Sequence[int], sizes: Sequence[tuple[int, int]]) -> list[Case]:
    """Two cases for each layer, of (inputs, hidden)."""
    return [
        case(lengths, inputs, hidden, seed=2 * place + way)
        for place, (inputs, hidden) in enumerate(sizes)
        for way in (0, 1)
    ]


LAYERS = {"one": [(3, 5)], "two": [(2, 3), (6, 8)], "three": [(2, 3), (6, 6), (12, 14)]}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("sizes", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize("origin_mode", [False, True])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("lengths", [[2, 4, 3], [3, 0, 1, 3], [4, 4], [0], []], ids=str)
def test_layers(sizes: list[tuple[int, int]], origin_mode: bool, bias: bool, lengths: list[int]):
    cases = stack(lengths, sizes)
    if not bias:
        cases = [each.without("bias") for each in cases]
    outputs, final = onednn.multi_gru(
        cases[0].ragged,
        [each.weight_x for each in cases],
        [each.weight_h for each in cases],
        [each.bias for each in cases],
        origin_mode=origin_mode,
    )
    right, last = multi_gru(cases[0].x, cases, origin_mode)
    length = max(lengths, default=0) * len(cases)
    for ours, theirs in zip(outputs.to_list(), right, strict=True):
        assert_close(ours, theirs.astype(np.float32), length, 28)
    for ours, theirs in zip(final, last, strict=True):
        assert_close(ours, theirs.astype(np.float32), length, 28)


def test_arrays():
    cases = stack([3, 3], [(2, 3), (6, 4)])
    weights = [each.weight_x for each in cases], [each.weight_h for each in cases]
    outputs, _ = onednn.multi_gru(np.stack(cases[0].x), *weights)
    right, _ = multi_gru(cases[0].x, [each.without("bias") for each in cases])
    assert_close(outputs, np.stack(right).astype(np.float32), 12, 14)


def test_int8():
    """Each layer is calibrated on what the layer before it gives in float32."""
    cases = stack([5, 9, 3], [(2, 12), (24, 16)])
    calibrations: list[onednn.Calibration] = []
    x = cases[0].ragged
    for place in (0, 2):
        pair = cases[place : place + 2]
        calibrations += [onednn.calibrate([x], each.weight_x, each.weight_h, each.bias) for each in pair]
        x, _ = onednn.multi_gru(
            x, *([getattr(each, name) for each in pair] for name in ("weight_x", "weight_h", "bias"))
        )
    listed = [[getattr(each, name) for each in cases] for name in ("weight_x", "weight_h", "bias")]
    low, _ = onednn.multi_gru(cases[0].ragged, *listed, dtype="int8", calibrations=calibrations)
    away = np.abs(low.values - x.values).max()
    assert calibrations[2].scale == 127.0
    assert away <= 2 * calibrations[0].step * np.sqrt(9)
    assert away > 0


def test_wrong_arguments():
    cases = stack([2], [(2, 3), (6, 4)])
    x, heavy = cases[0].ragged, [each.weight_h for each in cases]
    weights = [each.weight_x for each in cases]
    with pytest.raises(
        InputError,
        match="each list takes two entries per layer, forward and reverse; weights_x has 3, weights_h 4",
    ):
        onednn.multi_gru(x, weights[:3], heavy)
    wrong: Any
    for wrong in (None, 3, np.float32(3)):
        with pytest.raises(InputError, match="weights_x is a list with an entry for each direction"):
            onednn.multi_gru(x, wrong, heavy)
        with pytest.raises(InputError, match="weights_h is a list with an entry for each direction"):
            onednn.multi_gru(x, weights, wrong)
    with pytest.raises(
        InputError, match="each list takes two entries per layer, forward and reverse; weights_x has 0"
    ):
        onednn.multi_gru(x, [], [])
    with pytest.raises(InputError, match="layer 1, forward: a step of x has shape"):
        onednn.multi_gru(x, weights[:2] * 2, heavy[:2] * 2)
    with pytest.raises(InputError, match="layer 0, forward: x is a Ragged or an array"):
        onednn.multi_gru(replace(cases[0], x=[]).ragged.values, weights, heavy)
    assert isinstance(x, sn.Ragged)
