"""The loop on arrays that other backends call back: beside Keras' own loop on torch, with all gradients."""

from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet.keras
from stepnet.compiler.trace import Spec
from stepnet.keras.array_net import ArrayLoop, ArrayNet, array_loop
from stepnet.keras.array_steps import ArraySettings, ArraySteps
from stepnet.keras.recurrences import LoopSettings
from tests.keras.keras_cases import (
    BATCH,
    INPUTS,
    MASKS,
    STEPS,
    UNITS,
    Array,
    Call,
    assert_same,
    keras,
    numbers,
    pair,
)


def loop_of(layer: Any, dtype: str = "float32") -> ArrayLoop:
    """The function that runs a layer."""
    states = tuple(Spec((size,), dtype) for size in layer.state_size)
    return array_loop(
        layer.cell, LoopSettings.of(layer, False), ArraySettings.of(layer), Spec((INPUTS,), dtype), states, {}
    )


def inputs_of(layer: Any, dtype: str = "float32") -> list[Array]:
    """The arrays of a call, in the order of its net."""
    states = [
        numbers(BATCH, size, seed=7 + place, dtype=dtype) for place, size in enumerate(layer.state_size)
    ]
    weights = [weight.astype(dtype) for weight in layer.get_weights()]
    return [numbers(BATCH, STEPS, INPUTS, dtype=dtype), *states, *weights]


def cosines(like: Array) -> Array:
    """The cotangents that `Call` has."""
    return np.cos(np.arange(like.size).astype(like.dtype)).reshape(like.shape)


def in_keras_order(array: Array, layer: Any) -> Array:
    """Outputs, or their cotangents, of a layer that goes backwards, in the order in which its steps ran."""
    return array[:, ::-1] if layer.go_backwards and layer.return_sequences else array


def answers(layer: Any, mask: Array | None, dtype: str = "float32") -> dict[str, Array]:
    """The results of a `Call`."""
    loop, arrays = loop_of(layer, dtype), inputs_of(layer, dtype)
    made = loop.net.saving(arrays, mask)
    own = made[: len(loop.net.types)]
    for one, other in zip(loop.results(arrays, mask), own, strict=True):
        np.testing.assert_array_equal(one, other)
    own[0] = in_keras_order(own[0], layer)
    cotangents = [cosines(one) for one in own]
    cotangents[0] = in_keras_order(cotangents[0], layer)
    gradients = loop.net.gradients([*arrays, *cotangents, *made], mask)
    count = len(own) - 1
    named = {"d x": gradients[0]} | {f"d state {i}": gradients[1 + i] for i in range(count)}
    names = [weight.path.rpartition("/")[2] for weight in layer.trainable_weights]
    named |= {f"d {name}": one for name, one in zip(names, gradients[1 + count :], strict=True)}
    return named | {f"result {place}": one for place, one in enumerate(own)}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("backwards", [False, True], ids=["forwards", "backwards"])
@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequences"])
@pytest.mark.parametrize(("kind", "zero"), [("GRU", False), ("LSTM", True)])
def test_results_and_gradients_are_those_of_keras(
    kind: str, zero: bool, sequences: bool, backwards: bool, mask: str
):
    options = {"go_backwards": backwards, "return_sequences": sequences, "zero_output_for_mask": zero}
    theirs, ours = pair(kind, return_state=True, **options)
    assert_same(answers(ours, MASKS[mask]), Call(mask, begin=True).answers(theirs))


def test_an_array_loop_takes_weights_as_they_are():
    _, ours = pair("GRU")
    loop, arrays = loop_of(ours), inputs_of(ours)
    before = loop.results(arrays, None)[0]
    bound = loop.bound
    np.testing.assert_array_equal(loop.results(arrays, None)[0], before)
    assert loop.bound is bound
    arrays[-1] += 1  # in place
    right = loop.net.saving(arrays, None)[0]
    np.testing.assert_array_equal(loop.results(arrays, None)[0], right)
    assert abs(right - before).max() > 0.01


def test_layers_of_the_same_settings_share_machine_code():
    first, second = keras.layers.GRU(UNITS), keras.layers.GRU(UNITS)
    for layer in (first, second):
        layer.build((BATCH, STEPS, INPUTS))
    assert loop_of(first) is not loop_of(second)
    assert loop_of(first).net is loop_of(second).net


@pytest.mark.parametrize("sequences", [False, True], ids=["last", "sequences"])
def test_gradients_have_gradients(sequences: bool):
    _, ours = pair("GRU", return_sequences=sequences, return_state=True)
    net, arrays, given = loop_of(ours, "float64").net, inputs_of(ours, "float64"), MASKS["gaps"]
    made = net.saving(arrays, given)
    cotangents = [cosines(one) for one in made[: len(net.types)]]

    def gradients(inputs: list[Array]) -> list[Array]:
        count = len(arrays)
        return net.gradients([*inputs, *net.saving(inputs[:count], given)], given)

    inputs = [*arrays, *cotangents]
    first = gradients(inputs)
    upstream = [cosines(one) for one in first]
    second = second_of(net, inputs, upstream, given)
    step = 1e-6
    for place, gradient in enumerate(second):
        broadcast_rows = numbers(*inputs[place].shape, seed=9, dtype="float64")
        sides = [
            gradients([*inputs[:place], inputs[place] + sign * step * broadcast_rows, *inputs[place + 1 :]])
            for sign in (1, -1)
        ]
        right = sum(np.vdot(up, a - b) / (2 * step) for up, a, b in zip(upstream, *sides, strict=True))
        np.testing.assert_allclose(np.vdot(gradient, broadcast_rows), right, rtol=1e-5, atol=1e-7)


def second_of(net: ArrayNet, inputs: list[Array], upstream: list[Array], mask: Array | None) -> list[Array]:
    """The gradients of the inputs and cotangents of a gradient."""
    return net.gradient.gradients([*inputs, *upstream, *net.gradient.saving(inputs, mask)], mask)


def test_loops_run_on_the_engine_of_the_layer():
    made = dict[str, dict[str, Array]]()
    for engine in ("auto", "interpret"):
        layer = stepnet.keras.GRU(UNITS, return_sequences=True, engine=engine)
        layer.build((BATCH, STEPS, INPUTS))
        layer.set_weights([numbers(*weight.shape) / 2 for weight in layer.get_weights()])
        made[engine] = answers(layer, MASKS["gaps"])
        loop = loop_of(layer)
        assert loop.bound is not None
        programs = [loop.bound.program, loop.net.passes.run.first, loop.net.passes.run.second]
        assert [[*program.kernels] for program in programs] == [[engine]] * 3
    assert_same(made["auto"], made["interpret"])


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("mask", ["right", "left", "gaps"])
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("zero", [False, True])
def test_both_ways_of_steps_are_transposed(zero: bool, reverse: bool, mask: str):
    steps = ArraySteps.of(ArraySettings(reverse, False, zero), (BATCH, STEPS), MASKS[mask])
    outer = numbers(BATCH, STEPS, 2, dtype="float64")
    valid = MASKS[mask]
    assert valid is not None
    np.testing.assert_array_equal(
        steps.outward(steps.inward(outer).copy()), np.where(valid[:, :, None], outer, 0)
    )
    flat = steps.inward(numbers(BATCH, STEPS, 2, seed=1, dtype="float64") * valid[:, :, None])
    assert_close(np.vdot(steps.spread(flat), outer), np.vdot(flat, steps.gather(outer)), STEPS, BATCH)
