"""bfloat16 and int8 on oneDNN beside float32, with bounds of their own steps; calibration."""

from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from tolerance import tolerance

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.targets.calibration import data_scale, weight_scales
from stepnet.compiler.targets.onednn import OneDnnLibrary
from stepnet.errors import InputError, RefusedError
from tests.onednn.oracle import Case, case, gru, lstm

pytestmark = pytest.mark.usefixtures("dnnl")
LENGTHS = [[2, 4, 3], [3], [4, 4], [2, 0, 4], [7, 1, 11, 13, 2], [0], []]


def needs(dnnl: OneDnnLibrary, dtype: str) -> None:
    """Skips where the processor lacks a dtype."""
    if reason := dnnl.lacks(dtype):
        pytest.skip(reason)


def near(made: Any, right: list[np.ndarray], bound: float) -> None:
    """Asserts that outputs are within a bound, and that they were not computed in float32."""
    ours = np.concatenate(
        [np.zeros((0, 1)), *(np.asarray(rows, np.float64).reshape(-1, 1) for rows in made.to_list())]
    )
    theirs = np.concatenate([np.zeros((0, 1)), *(rows.reshape(-1, 1) for rows in right)])
    away = np.abs(ours - theirs).max(initial=0)
    assert away <= bound, f"{away:.3g} away, where {bound:.3g} is allowed"
    assert away > 1e-6 or not ours.size


def half_bound(inputs: Case) -> float:
    """One rounding of bfloat16 at each step, for x, weights and h."""
    return tolerance("bfloat16", max(map(len, inputs.x), default=0), roundings=1)


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("origin_mode", [False, True])
def test_bfloat16_gru(dnnl: OneDnnLibrary, lengths: list[int], is_reverse: bool, origin_mode: bool):
    needs(dnnl, "bfloat16")
    inputs = case(lengths, 6, 12)
    settings: Any = {"is_reverse": is_reverse, "origin_mode": origin_mode}
    outputs, final = onednn.fusion_gru(*inputs.arguments(), **settings, dtype="bfloat16")
    right = gru(inputs, **settings)
    near(outputs, right.outputs, half_bound(inputs))
    assert np.abs(final - right.h).max(initial=0) <= max(half_bound(inputs), np.finfo("f4").eps)
    assert outputs.dtype == final.dtype == np.float32


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("cell", ["last", "all"])
@pytest.mark.parametrize("biases", [4, 7])
def test_bfloat16_lstm(dnnl: OneDnnLibrary, is_reverse: bool, cell: str, biases: int):
    needs(dnnl, "bfloat16")
    inputs = case([2, 4, 3, 0, 4], 6, 12, gates=4, biases=biases)
    outputs, final = onednn.fusion_lstm(
        *inputs.lstm_arguments(), is_reverse=is_reverse, cell=cell, dtype="bfloat16"
    )
    right = lstm(inputs, is_reverse=is_reverse)
    near(outputs["h"] if cell == "all" else outputs, right.outputs, half_bound(inputs))
    assert np.abs(final["c"] - right.c).max() <= 2 * half_bound(inputs)


def test_bfloat16_weights_and_inputs_give_bfloat16(dnnl: OneDnnLibrary):
    needs(dnnl, "bfloat16")
    whole = case([2, 4], 6, 12)
    low = {
        name: np.asarray(getattr(whole, name)).astype(ml_dtypes.bfloat16)
        for name in ("weight_x", "weight_h", "bias", "h0")
    }
    inputs = replace(whole, x=[x.astype(ml_dtypes.bfloat16) for x in whole.x], **low)
    outputs, final = onednn.fusion_gru(*inputs.arguments())
    assert outputs.dtype == final.dtype == ml_dtypes.bfloat16
    exact = {name: np.asarray(value).astype("f4") for name, value in low.items()}
    right = gru(replace(inputs, x=[x.astype("f4") for x in inputs.x], **exact))
    near(outputs, right.outputs, half_bound(inputs))


def int8_bound(inputs: Case, step: float) -> float:
    """One step of the data for x, for h and for the weights, at each step of a sequence."""
    return 1.5 * step * np.sqrt(1 + max(map(len, inputs.x), default=0))


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("origin_mode", [False, True])
@pytest.mark.parametrize("left", [(), ("bias",), ("h0",)], ids=str)
def test_int8_gru(lengths: list[int], is_reverse: bool, origin_mode: bool, left: tuple[str, ...]):
    whole = case(lengths, 6, 12)
    inputs = replace(whole, x=[np.tanh(x) for x in whole.x], h0=np.tanh(whole.h0)).without(*left)
    calibration = onednn.calibrate([np.ones((1, 1, 6), "f4")], inputs.weight_x, inputs.weight_h)
    settings: Any = {"is_reverse": is_reverse, "origin_mode": origin_mode}
    outputs, final = onednn.fusion_gru(*inputs.arguments(), **settings, dtype="int8", calibration=calibration)
    right = gru(inputs, **settings)
    near(outputs, right.outputs, int8_bound(inputs, calibration.step))
    assert np.abs(final - right.h).max(initial=0) <= int8_bound(inputs, calibration.step)


@pytest.mark.parametrize("is_reverse", [False, True])
@pytest.mark.parametrize("cell", ["last", "all", "none"])
def test_int8_lstm(is_reverse: bool, cell: str):
    whole = case([5, 9, 0, 9], 6, 12, gates=4)
    inputs = replace(whole, h0=np.tanh(whole.h0))
    calibration = onednn.calibrate([inputs.ragged], inputs.weight_x, inputs.weight_h, inputs.bias)
    outputs, final = onednn.fusion_lstm(
        *inputs.lstm_arguments(), is_reverse=is_reverse, cell=cell, dtype="int8", calibration=calibration
    )
    right = lstm(inputs, is_reverse=is_reverse)
    near(outputs["h"] if cell == "all" else outputs, right.outputs, int8_bound(inputs, calibration.step))
    if cell != "none":
        assert np.abs(final["c"] - right.c).max() <= 2 * int8_bound(inputs, calibration.step)


def test_each_gate_and_unit_has_its_scale():
    """Weights of very different sizes keep their digits: one scale for all would lose the small ones."""
    inputs = case([6, 3], 6, 12)
    inputs.weight_x[:, ::2] *= 0.001
    inputs.weight_h.reshape(-1)[: 2 * 144].reshape(12, 24)[:, ::2] *= 0.001
    inputs.weight_h.reshape(-1)[2 * 144 :].reshape(12, 12)[:, ::2] *= 0.001
    inputs.weight_x[:, 1] *= 40
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    calibration = layer.calibrate([inputs.ragged])
    assert len(calibration.weights) == 36
    assert max(calibration.weights) > 1000 * min(calibration.weights)
    low = layer.in_dtype("int8", calibration)
    assert low.accuracy([inputs.ragged]).largest <= int8_bound(inputs, calibration.step)


def test_accuracy_is_that_of_the_samples():
    inputs = case([6, 3], 6, 12)
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    calibration = layer.calibrate([inputs.ragged])
    low = layer.in_dtype("int8", calibration)
    report = low.accuracy([inputs.ragged])
    away = low(inputs.ragged)[0].values - layer(inputs.ragged)[0].values
    assert report.largest == np.abs(away).max()
    assert report.rms == pytest.approx(np.sqrt(np.mean(away.astype("f8") ** 2)))
    assert (report.dtype, report.steps, report.step) == ("int8", 9, calibration.step)
    assert layer.accuracy([inputs.ragged]).largest == 0


def test_the_scale_covers_what_samples_hold():
    ragged = sn.Ragged.from_list([np.array([[-4.0], [1.0]], "f4")])
    inputs = case([2], 1, 2)
    calibration = onednn.calibrate([ragged], inputs.weight_x, inputs.weight_h)
    assert (calibration.scale, calibration.shift) == (127 / 4, 128.0)
    rare = [np.concatenate([np.linspace(-1.5, 1.5, 9999), [1000.0]])]
    assert data_scale(rare, keep=0.999)[0] > 127 / 1.6
    assert data_scale(rare)[0] == 127 / 1000


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([], "have no steps"),
        ([sn.Ragged.from_list([np.zeros((0, 3), "f4")])], "have no steps"),
        ([np.full((1, 2, 3), np.nan, "f4")], "sample 0 of the calibration has NaN or infinity"),
        ([np.zeros((1, 1, 3), "f4"), np.full((1, 2, 3), np.inf, "f4")], "sample 1"),
        ([np.zeros((1, 1, 4), "f4")], "a step of x has shape"),
    ],
)
def test_wrong_samples(samples: list[Any], message: str):
    inputs = case([2])
    with pytest.raises(InputError, match=message):
        onednn.calibrate(samples, inputs.weight_x, inputs.weight_h)


def test_wrong_calibrations():
    inputs = case([2])
    arguments = inputs.arguments()
    with pytest.raises(RefusedError, match="int8 needs a calibration"):
        onednn.fusion_gru(*arguments, dtype="int8")
    with pytest.raises(
        InputError, match="the calibration has 1 scales of weights, and there are 3 gates of 5"
    ):
        onednn.fusion_gru(*arguments, dtype="int8", calibration=onednn.Calibration(127, 128, (1.0,)))
    calibration = onednn.calibrate([inputs.ragged], inputs.weight_x, inputs.weight_h)
    with pytest.raises(InputError, match="calibration= is for dtype='int8'"):
        onednn.fusion_gru(*arguments, calibration=calibration)
    with pytest.raises(InputError, match="finite numbers above 0"):
        onednn.Calibration(0, 128, (1.0,))
    with pytest.raises(InputError, match="shift of a calibration is from 0 to 255"):
        onednn.Calibration(1, 300, (1.0,))
    with pytest.raises(InputError, match="NaN or infinity"):
        weight_scales([np.full((1, 1, 1), np.nan)])
    with pytest.raises(InputError, match="keep is the part"):
        data_scale([np.ones(3)], keep=0)
    peepholes = case([2], gates=4, biases=7)
    layer = onednn.lstm_layer(peepholes.weight_x, peepholes.weight_h, peepholes.bias)
    calibration = layer.calibrate([peepholes.ragged])
    with pytest.raises(RefusedError, match="no peepholes in int8"):
        layer.in_dtype("int8", calibration)


def test_what_is_no_list_of_samples():
    inputs = case([2])
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    wrong: Any
    for asks in (layer.calibrate, layer.accuracy):
        for wrong in (None, inputs.ragged, "a"):
            with pytest.raises(InputError, match="samples is a list of Raggeds or arrays"):
                asks(wrong)
        with pytest.raises(InputError, match="the samples have no steps"):
            asks([])
        with pytest.raises(InputError, match="the samples have no steps"):
            asks([case([0, 0]).ragged])
        with pytest.raises(InputError, match="sample 1: a step of x has shape"):
            asks([inputs.ragged, np.ones((1, 2, 4), "f4")])
    for wrong in ("a", None, 0, float("nan")):
        with pytest.raises(InputError, match="keep is the part of the numbers within the scale"):
            layer.calibrate([inputs.ragged], keep=wrong)


def test_nan_is_refused_in_int8():
    """A cast of NaN to a whole number gives any number."""
    inputs = case([2])
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    low = layer.in_dtype("int8", layer.calibrate([inputs.ragged]))
    with pytest.raises(InputError, match="an input of a recurrence in int8 is NaN"):
        low(np.full((1, 2, 3), np.nan, "f4"))
    high = low(np.full((1, 2, 3), np.inf, "f4"))[0]
    np.testing.assert_array_equal(high, low(np.full((1, 2, 3), 1e30, "f4"))[0])


def test_inputs_in_half_precision_are_rounded_once():
    calibration = onednn.Calibration(3.3, 128, (1.0,))
    values = np.linspace(-30, 30, 999).astype(np.float16)
    right = np.rint(values.astype(np.float64) * 3.3 + 128)
    assert np.abs(calibration.quantized(values) - right).max() == 0
