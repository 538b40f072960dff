"""The net of a model as a function with gradients of any order, which front ends of frameworks run."""

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet import cells
from stepnet.model.gradients.differentiable import ModelNet, ModelNets

Array = np.ndarray
RANDOM = np.random.default_rng(0)
SHAPES = {"W": (3, 12), "R": (4, 12), "b": (12,), "d": (12,)}
RNN = cells.rnn("gru", {name: RANDOM.normal(size=shape) for name, shape in SHAPES.items()})
X, LENGTHS = RANDOM.normal(size=(2, 5, 3)), np.array([5, 3])


def arrays_of(net: ModelNet) -> list[Array | None]:
    """The inputs of the net: sequences, no initial memory, parameters."""
    assert net.names[0] == "x"
    return [X.reshape(10, 3), None, *RNN.params.values()]


@pytest.mark.parametrize("last_only", [False, True])
def test_both_passes_give_the_bits_of_vjp(last_only: bool):
    net, positions, lead = ModelNets(RNN).read(X, None, None, LENGTHS, last_only)
    (outputs, final), backward = sn.vjp(RNN)(X, lengths=LENGTHS, last_only=last_only)
    right = backward(np.cos(outputs), np.sin(final))
    arrays, wanted = arrays_of(net), (0, *range(2, 6))
    for passes in (net.passes(wanted), net.halves(wanted)):
        made = passes.forward(arrays, positions)
        np.testing.assert_array_equal(made[0].reshape(outputs.shape), outputs)
        np.testing.assert_array_equal(made[1], final)
        saved = [made[place] for place in passes.saved]
        cotangents = [np.cos(made[0]), np.sin(made[1])]
        dx, *dparams = passes.backward(arrays, cotangents, saved, positions)
        np.testing.assert_array_equal(dx.reshape(*lead, 3), right.inputs)
        for one, other in zip(dparams, right.params.values(), strict=True):
            np.testing.assert_array_equal(one, other)


def test_values_that_a_graph_holds_have_known_types():
    net, positions, _ = ModelNets(RNN).read(X, None, None, LENGTHS)
    passes = net.halves((0, 2))
    made = passes.forward(arrays_of(net), positions)
    assert [(type_.shape, type_.dtype) for type_ in passes.types] == [
        (array.shape[1:], str(array.dtype)) for array in made
    ]
    assert passes.gradient_types == [net.inputs[0], net.inputs[2]]


def test_a_gradient_is_a_net_itself():
    net, positions, _ = ModelNets(RNN).read(X, None, None, LENGTHS)
    gradient, passes, arrays = net.gradient((0,)), net.passes((0,)), arrays_of(net)
    assert gradient.inputs == [*net.inputs, *net.results]
    assert gradient.results == [net.inputs[0]]
    made = passes.forward(arrays, positions)
    cotangents = [np.cos(made[0]), np.sin(made[1])]
    (right,) = passes.backward(arrays, cotangents, [made[place] for place in passes.saved], positions)
    found, *_ = gradient.passes((0,)).forward([*arrays, *cotangents], positions)
    valid = positions.all_step_indices
    assert_close(found[valid], right[valid], 5, 4)


def test_a_net_has_parameters_of_a_call_or_fixed_ones():
    net, positions, _ = ModelNets(RNN).read(X, None, None, LENGTHS)
    x, memory, *params = arrays_of(net)
    doubled = [2 * one for one in params if one is not None]
    fixed = net.fixed(doubled)
    for one, other in zip(fixed([x, memory], positions), net([x, memory, *doubled], positions), strict=True):
        np.testing.assert_array_equal(one, other)
    outputs, final = RNN.with_params(dict(zip(RNN.params, doubled, strict=True)))(X, lengths=LENGTHS)
    made = fixed([x, memory], positions)
    np.testing.assert_array_equal(made[0].reshape(outputs.shape), outputs)
    np.testing.assert_array_equal(made[1], final)
