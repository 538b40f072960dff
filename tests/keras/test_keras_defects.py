"""Calls that Keras 3.15 cannot run on torch run here; and wrong calls raise what they raise there."""

from typing import Any

import numpy as np
import pytest
import torch

import stepnet as sn
import stepnet.keras
from stepnet.errors import FileError
from tests.keras.keras_cases import (
    BATCH,
    INPUTS,
    MASKS,
    STEPS,
    UNITS,
    Call,
    Counted,
    assert_same,
    keras,
    numbers,
    pair,
    same_weights,
)


@pytest.mark.parametrize("mask", ["right", "gaps"])
def test_unrolled_backwards_under_a_mask(mask: str):
    theirs, _ = pair("GRU", go_backwards=True, return_sequences=True)
    unrolled, ours = pair("GRU", go_backwards=True, return_sequences=True, unroll=True)
    with pytest.raises(AttributeError):
        Call(mask).answers(unrolled)
    assert_same(Call(mask).answers(ours), Call(mask).answers(theirs))


@pytest.mark.parametrize("training", [True, False])
def test_no_steps_at_all(training: bool):
    theirs, ours = pair("SimpleRNN", dropout=0.5)
    x = np.zeros((2, 0, INPUTS), "float32")
    with pytest.raises(IndexError):
        theirs(x)
    assert not ours(x, training=training).detach().numpy().any()
    assert ours(x, initial_state=[np.ones((2, UNITS), "float32")]).shape == (2, UNITS)


@pytest.mark.parametrize("merge_mode", ["concat", None])
def test_states_of_both_directions_under_a_mask(merge_mode: str | None):
    options = {"stateful": True, "return_state": True, "return_sequences": True}
    inner = {"merge_mode": merge_mode}
    theirs = keras.layers.Bidirectional(keras.layers.GRU(UNITS, **options), **inner)
    ours = stepnet.keras.Bidirectional(stepnet.keras.GRU(UNITS, **options), **inner)
    same_weights(theirs, ours)
    x, mask = torch.tensor(numbers(BATCH, STEPS, INPUTS)), torch.tensor(MASKS["gaps"])
    with pytest.raises(TypeError):
        theirs(x, mask=mask)
    with Counted() as counted:
        given = ours(x, mask=mask)
    assert counted.fast == 2
    flat = keras.tree.flatten(given)
    masks = [keras.src.backend.get_keras_mask(one) for one in flat]  # of each output, and of no state
    assert [one is not None for one in masks] == [True] * (len(flat) - 2) + [False, False]
    plain = keras.layers.Bidirectional(
        keras.layers.GRU(UNITS, return_state=True, return_sequences=True), **inner
    )
    plain.build(x.shape)
    plain.set_weights(ours.get_weights()[: len(plain.get_weights())])
    for one, other in zip(flat, keras.tree.flatten(plain(x, mask=mask)), strict=True):
        torch.testing.assert_close(one, other)


def test_dropout_of_each_gate_alone():
    theirs, ours = pair("LSTM", dropout=0.3, implementation=1, seed=4)
    with pytest.raises((ValueError, RuntimeError)):
        Call(training=True).answers(theirs)
    same, _ = pair("LSTM", dropout=0.3, implementation=1, seed=4, use_cudnn=False)
    assert_same(Call(training=True).answers(ours), Call(training=True).answers(same))


WRONG: dict[str, Any] = {
    "features": lambda layer: layer(np.ones((2, 5, INPUTS + 1), "float32")),
    "axes": lambda layer: layer(np.ones((2, INPUTS), "float32")),
    "states": lambda layer: layer(
        np.ones((2, 5, INPUTS), "float32"), initial_state=[np.ones((2, UNITS + 1))]
    ),
    "rows of states": lambda layer: layer(
        np.ones((2, 5, INPUTS), "float32"), initial_state=[np.ones((3, UNITS))]
    ),
    "mask": lambda layer: layer(np.ones((2, 5, INPUTS), "float32"), mask=np.ones((2, 4), bool)),
    "units": lambda layer: type(layer)(-1),
    "activation": lambda layer: type(layer)(UNITS, activation="none of them"),
    "stateful": lambda layer: type(layer)(UNITS, stateful=True)(keras.Input((5, INPUTS))),
    "use_cudnn": lambda layer: type(layer)(UNITS, use_cudnn=True, recurrent_dropout=0.2)(
        np.ones((2, 5, INPUTS), "float32"), training=True
    ),
}


def raised(call: Any, layer: Any) -> type[Exception] | None:
    """The type of the error that a call raises."""
    try:
        call(layer)
    except Exception as error:
        return type(error)
    return None


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_calls_raise_what_keras_raises(wrong: str):
    theirs, ours = pair("GRU")
    right = raised(WRONG[wrong], theirs)
    assert right is not None
    assert raised(WRONG[wrong], ours) is right


@pytest.mark.long(every=2)
@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("go_backwards", 1),
        ("go_backwards", 0),
        ("go_backwards", None),
        ("unroll", []),
        ("zero_output_for_mask", 1),
    ],
)
def test_flags_have_their_truth_values(flag: str, value: Any):
    wide = 13  # a size that no other test has: a compiled recurrence of another is found by True as by 1
    theirs = keras.layers.GRU(wide, return_sequences=True, **{flag: value})
    ours = stepnet.keras.GRU(wide, return_sequences=True, **{flag: value})
    same_weights(theirs, ours)
    call = Call("right")
    right = call.answers(theirs)
    assert_same(call.answers(ours), right)
    with stepnet.keras.accelerate(), Counted() as counted:
        assert_same(call.answers(theirs), right)
    assert counted.fast


def test_keras_leaves_errors_of_stepnet_as_they_are():
    class Loads(keras.layers.Layer):
        """A layer that fails."""

        def call(self, inputs: Any) -> Any:
            return sn.load("none.onnx")

    with pytest.raises(FileError) as caught:
        Loads()(numbers(1, 2))
    assert str(caught.value) == "none.onnx: there is no such file"


def test_another_batch_of_a_stateful_layer_is_refused():
    for layer in pair("LSTM", stateful=True):
        layer(numbers(BATCH, STEPS, INPUTS))
        with pytest.raises(ValueError, match="the batch size of the input sequences must be the same"):
            layer(numbers(BATCH + 1, STEPS, INPUTS))
