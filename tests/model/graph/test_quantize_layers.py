"""Layers in fewer bits: recurrences, stacks and directions, of known cells and of one's own."""

import copy
import pickle
from functools import partial
from typing import Any

import numpy as np
import pytest
from zoo import normal as random_normal
from zoo import rnn_of

import stepnet as sn
from stepnet.errors import InputError
from stepnet.model.layers import recurrences_of

RANDOM = np.random.default_rng(0)


cell = partial(rnn_of, seed=2)
normal = partial(random_normal, seed=RANDOM)


def own_step(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
    h = np.sin(np.concatenate([x, h], axis=-1) @ p["W"] + h / 2)
    return h, h


def own(inputs: int, hidden: int) -> sn.RNN:
    return sn.RNN(own_step, {"W": normal(inputs + hidden, hidden) / 3}, memory=hidden, inputs=inputs)


def both(inputs: int, hidden: int) -> sn.Bidirectional:
    return sn.Bidirectional(cell("lstm", inputs, hidden), cell("gru", inputs, hidden, reverse=True))


SAMPLES = [sn.Ragged.from_list([normal(5, 6), normal(0, 6), normal(9, 6)])]
LAYERS = {
    "a reset-after GRU": lambda: cell("gru", 6, 17),
    "a cell of one's own": lambda: own(6, 17),
    "two directions": lambda: both(6, 5),
    "a stack": lambda: sn.Stack([own(6, 8), both(8, 5), cell("lstm", 10, 3)]),
}


@pytest.mark.long(every=3)
@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
@pytest.mark.parametrize(("dtype", "bits"), [("int8", 2**-7), ("bfloat16", 2**-8)])
def test_layers_stay_near_float32_and_say_how_near(make: Any, dtype: str, bits: float) -> None:
    layers = make()
    small = sn.quantize(layers, SAMPLES, dtype)
    assert type(small) is type(layers)
    assert {row.dtype for row in small.report.recurrences} == {dtype}
    exact, made = layers(SAMPLES[0])[0].values, small(SAMPLES[0])[0].values
    away = made.astype("f8") - exact
    (error,) = small.report.outputs
    assert error.largest == np.abs(away).max() > 0
    assert error.rms == pytest.approx(np.sqrt(np.mean(away**2)))
    # Rounding to so many bits moves a sum by some roundings, as those of a sum are in the one tolerance.
    assert error.relative < 16 * bits
    assert layers.report is None


def test_the_bound_decides_recurrence_by_recurrence() -> None:
    layers = sn.Stack([cell("gru", 6, 12), own(12, 12), cell("lstm", 12, 3)])
    errors = {d: sn.quantize(layers, SAMPLES, d).report.outputs[0].relative for d in ("int8", "bfloat16")}
    made = sn.quantize(layers, SAMPLES, within=min(errors.values()) / 2)
    dtypes = [row.dtype for row in made.report.recurrences]
    assert "float32" in dtypes
    assert len(set(dtypes)) > 1
    marks = [rnn.precision for rnn in recurrences_of(made)]
    assert [mark.dtype for mark in marks if mark is not None] == dtypes
    assert made.report.outputs[0].relative <= min(errors.values()) / 2


def test_each_layer_is_computed_as_it_would_be_alone() -> None:
    """The stack as one net gives the bits of its layers one by one."""
    small = sn.quantize(sn.Stack([own(6, 8), both(8, 5)]), SAMPLES, "int8")
    x = SAMPLES[0]
    lower = small.layers[0](x)[0]
    np.testing.assert_array_equal(small(x)[0].values, small.layers[1](lower)[0].values)


def test_the_interpreter_and_llvm_run_the_same_layers() -> None:
    small = sn.quantize(sn.Stack([cell("gru", 6, 12), cell("gru", 12, 4)]), SAMPLES, "bfloat16")
    x = SAMPLES[0]
    by_hand = small(x, engine="interpret")[0].values
    exact = np.abs(by_hand - sn.Stack([cell("gru", 6, 12), cell("gru", 12, 4)])(x)[0].values).max()
    assert np.abs(small(x)[0].values - by_hand).max() < exact / 2


@pytest.mark.long(each=True)
@pytest.mark.parametrize(
    "make",
    [lambda: own(6, 9), lambda: sn.Stack([cell("gru", 6, 4)]), lambda: both(6, 3)],
    ids=["own", "stack", "both"],
)
@pytest.mark.parametrize("again", [copy.deepcopy, lambda made: pickle.loads(pickle.dumps(made))])
def test_copies_keep_precision_and_report(again: Any, make: Any) -> None:
    x, small = SAMPLES[0], sn.quantize(make(), SAMPLES, "int8")
    copied = again(small)
    np.testing.assert_array_equal(copied(x)[0].values, small(x)[0].values)
    assert str(copied.report) == str(small.report)


def test_other_parameters_stay_in_fewer_bits() -> None:
    x = SAMPLES[0]
    small, other = sn.quantize(own(6, 9), SAMPLES, "int8"), own(6, 9)
    changed = small.with_params(other.params)
    np.testing.assert_array_equal(changed(x)[0].values, sn.quantize(other, SAMPLES, "int8")(x)[0].values)


def test_a_small_recurrence_inside_a_model_and_a_step() -> None:
    small, x = sn.quantize(own(6, 9), SAMPLES, "int8"), SAMPLES[0]
    right = small(x)[0].values
    graph = sn.Graph(lambda x, p: small(x)[0] + 1, inputs=6)
    np.testing.assert_array_equal(graph(x).values, right + 1)
    outer = sn.RNN(lambda words, n, p: (sn.reduce(small(words, initial="zeros")[0], "last"), n), memory=())
    words = sn.Ragged.from_list([[each for each in x.to_list() if len(each)]])
    np.testing.assert_array_equal(outer(words)[0].values, small(x)[1][[0, 2]])


def test_named_values_are_those_in_fewer_bits() -> None:
    plain = own(6, 9)
    small, x = sn.quantize(plain, SAMPLES, "int8"), SAMPLES[0]
    seen, exact = (rnn.trace_steps(x)["h"].values for rnn in (small, plain))
    right = small(x, engine="interpret")[0].values
    np.testing.assert_array_equal(seen, right)
    assert np.abs(right - exact).max() > 1e-4


def test_statics_and_steps_that_end_early() -> None:
    def step(x: Any, h: Any, p: Any, statics: Any) -> tuple[Any, Any]:
        h = np.tanh(x @ p["W"] + h @ p["R"] + statics @ p["S"])
        return h, h

    params = {"W": normal(6, 8), "R": normal(8, 8), "S": normal(2, 8)}
    rnn = sn.RNN(step, params, memory=8, until=lambda output, h: output[:, 0] > 2)
    small = sn.quantize(rnn, SAMPLES, "int8", statics=[normal(3, 2)])
    assert small.report.steps == 14
    assert f"{16 * 8:,} weights" in small.report.recurrences[0].what
    assert small.until is rnn.until


def test_streams_and_explanations() -> None:
    small = sn.quantize(sn.Stack([cell("gru", 6, 12), own(12, 4)]), SAMPLES, "int8")
    x = normal(2, 5, 6)
    stream, right = small.stream(rows=2), small(x)[0]
    for step in range(5):
        np.testing.assert_array_equal(stream.step(x[:, step]), right[:, step])
    text, plain = small.layers[0].explain(), cell("gru", 6, 12).explain()
    assert "h @ [R[:, :12] | R[:, 12:24] | R[:, 24:]] in int8" in text
    assert " in int8" not in plain
    # The loop reads 432 bytes of weights and the 48 of a bias; in float32 four times as many weights.
    assert "480 B of weights" in text
    assert "1.8 kB of weights" in plain


WRONG: dict[str, tuple[Any, str]] = {
    "none": ([], "samples is a list of inputs"),
    "no steps": ([np.zeros((2, 0, 6), "f4")], "the samples have no steps"),
    "NaN": ([np.full((1, 2, 6), np.nan, "f4")], "sample 0 has NaN or infinity"),
    "features": ([np.zeros((1, 2, 5), "f4")], r"features \[5\]"),
}


@pytest.mark.parametrize(("wrong", "message"), WRONG.values(), ids=WRONG)
def test_wrong_samples(wrong: Any, message: str) -> None:
    with pytest.raises(InputError, match=message):
        sn.quantize(cell("gru", 6, 4), wrong)


def test_unknown_dtypes() -> None:
    wrong: Any = "bf16"
    with pytest.raises(InputError, match="dtype is one of int8, bfloat16, auto, float16, not 'bf16'"):
        sn.quantize(cell("gru", 6, 4), SAMPLES, wrong)


def test_outputs_with_nan_have_no_error() -> None:
    params = cell("gru", 6, 4).params
    params = {**params, "W": np.full_like(params["W"], np.nan)}
    message = "the output has NaN for sample 0 in float32, so no error can be measured"
    with pytest.raises(InputError, match=message):
        sn.quantize(sn.cells.rnn("gru", params), SAMPLES)


def test_the_same_infinity_is_no_error() -> None:
    def ruled_out(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x @ p["W"] + h)
        return np.concatenate([h, np.log(h * 0)], axis=-1), h

    layer = sn.RNN(ruled_out, {"W": normal(6, 4)}, memory=4)
    (error,) = sn.quantize(layer, SAMPLES, "int8").report.outputs
    plain = sn.RNN(lambda x, h, p: (ruled_out(x, h, p)[1],) * 2, layer.params, memory=4)
    (right,) = sn.quantize(plain, SAMPLES, "int8").report.outputs
    assert 0 < error.largest == right.largest
    assert error.scale == pytest.approx(right.scale)


def test_inputs_that_leave_nothing_in_fewer_bits() -> None:
    layer = cell("gru", 6, 4)
    message = "quantized to int8, but has no product of float32 values with parameters for inputs of these"
    with pytest.raises(InputError, match=message):
        sn.quantize(layer, SAMPLES, "int8")(np.zeros((1, 2, 6)))
    with pytest.raises(InputError, match=message):
        sn.quantize(sn.Graph(lambda x, p: layer(x)[0]), SAMPLES, "int8")(np.zeros((1, 2, 6)))


def test_a_step_that_does_not_read_its_memory_stays_in_float32() -> None:
    weights = normal(6, 6)
    plain = sn.RNN(lambda x, h, p: (np.tanh(x @ p), h), weights, memory=6)
    layer = cell("gru", 6, 4)
    small = sn.quantize(sn.Graph(lambda x, p: layer(plain(x)[0])[0]), SAMPLES, "int8")
    first, second = small.report.recurrences
    assert (first.dtype, second.dtype) == ("float32", "int8")
    reason = "nothing reads its memory, so it is computed for all steps at once"
    assert first.what == first.reasons["int8"] == reason
