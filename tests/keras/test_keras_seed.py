"""The 18 tests of recurrent layers that the MXNet backend of Keras 2 learnt to pass, by their names, for all
three layers: here with values and gradients, which are those of Keras' own layers.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import stepnet.keras
from tests.keras.keras_cases import STATES, Call, Counted, assert_same, keras, numbers, ops, same_weights

SAMPLES, TIMESTEPS, INPUTS, UNITS = 2, 5, 4, 3
SHAPE = (SAMPLES, TIMESTEPS, INPUTS)
each_layer = pytest.mark.parametrize("kind", STATES)
Maker = Callable[[Any], Any]


def assert_trains_alike(make: Maker, inputs: Any, rate: float = 0.3) -> Any:
    """Asserts that a model trains like the same one of Keras' layers; gives ours.

    make: gives the model of the layers of a module. What a step of gradient descent changes is the gradient.
    """
    theirs, ours = make(keras.layers), make(stepnet.keras)
    outputs, _ = (listed(model(inputs)) for model in (theirs, ours))
    weights = [
        numbers(*weight.shape, seed=place) / 2 for place, weight in enumerate(theirs.trainable_weights)
    ]
    for model in (theirs, ours):
        for variable, value in zip(model.trainable_weights, weights, strict=True):
            variable.assign(value)
        model.compile(keras.optimizers.SGD(rate), "mse")
    targets = [numbers(*output.shape, seed=9) for output in outputs]
    targets = targets[0] if len(targets) == 1 else targets
    answers = []
    for model in (ours, theirs):
        known: dict[str, Any] = {
            f"loss {step}": np.float32(model.train_on_batch(inputs, targets)) for step in range(2)
        }
        known |= {f"weight {place}": weight.numpy() for place, weight in enumerate(model.trainable_weights)}
        known |= {f"y {place}": y for place, y in enumerate(listed(model.predict_on_batch(inputs)))}
        answers.append(known)
    assert_same(answers[0], answers[1], 2 * TIMESTEPS)
    for place, before in enumerate(weights):
        assert abs(answers[0][f"weight {place}"] - before).max() > 1e-6, place
    assert not stepnet.keras.report(ours).left
    return ours


def listed(value: Any) -> list[Any]:
    """One or several results as a list."""
    return list(value) if isinstance(value, list | tuple) else [value]


@each_layer
def test_return_sequences(kind: str):
    x = numbers(*SHAPE)

    def make(where: Any) -> Any:
        return keras.Sequential([getattr(where, kind)(UNITS, return_sequences=True)])

    ours = assert_trains_alike(make, x)
    again = type(ours.layers[0]).from_config(ours.layers[0].get_config())
    again.build(SHAPE)
    again.set_weights(ours.get_weights())
    assert again.compute_output_shape(SHAPE) == (SAMPLES, TIMESTEPS, UNITS)
    np.testing.assert_array_equal(again(x).detach(), ours.predict_on_batch(x))


@each_layer
def test_dynamic_behavior(kind: str):
    def make(where: Any) -> Any:
        return keras.Sequential([keras.Input((None, INPUTS)), getattr(where, kind)(UNITS)])

    ours = assert_trains_alike(make, numbers(*SHAPE))
    theirs = make(keras.layers)
    theirs.set_weights(ours.get_weights())
    for steps in (1, 9):
        x = numbers(SAMPLES + steps, steps, INPUTS)
        assert_same({"y": ours.predict_on_batch(x)}, {"y": theirs.predict_on_batch(x)}, steps)


@each_layer
def test_stateful_invalid_use(kind: str):
    layer = getattr(stepnet.keras, kind)(UNITS, stateful=True)
    model = keras.Sequential([keras.Input(batch_shape=SHAPE), layer])
    model.compile("sgd", "mse")
    x, y = numbers(4, TIMESTEPS, INPUTS), numbers(4, UNITS)
    with pytest.raises(ValueError, match="the batch size of the input"):
        model.fit(x, y, batch_size=4, verbose=0)
    with pytest.raises(ValueError, match="the batch size of the input"):
        model.predict(x, batch_size=SAMPLES + 1, verbose=0)
    assert not any(state.numpy().any() for state in layer.states)


@each_layer
def test_masking_correctness(kind: str):
    layer = getattr(stepnet.keras, kind)(UNITS)
    theirs = getattr(keras.layers, kind)(UNITS)
    same_weights(theirs, layer, SHAPE)
    x = numbers(*SHAPE)
    padded = []
    for before, after in ((0, 3), (3, 0), (2, 1)):
        whole = np.pad(x, [(0, 0), (before, after), (0, 0)])
        padded.append(layer(torch.tensor(whole), mask=torch.tensor((whole != 0).any(-1))))
    for one in padded:
        assert_same({"y": one.detach().numpy()}, {"y": theirs(x).detach().numpy()})
    gradients = [
        torch.autograd.grad(one.square().sum(), layer.cell.kernel.value)[0].numpy() for one in padded
    ]
    right = torch.autograd.grad(theirs(x).square().sum(), theirs.cell.kernel.value)[0].numpy()
    for gradient in gradients:
        assert_same({"dW": gradient}, {"dW": right})


@pytest.mark.long(every=4)
@each_layer
@pytest.mark.parametrize("implementation", [1, 2])
@pytest.mark.parametrize(
    "options", [{}, {"dropout": 0.1, "recurrent_dropout": 0.1, "seed": 2}, {"use_bias": False}]
)
def test_implementation_mode(kind: str, implementation: int, options: dict[str, Any]):
    known = options if kind == "SimpleRNN" else {**options, "implementation": implementation}
    theirs, ours = (getattr(where, kind)(UNITS, **known) for where in (keras.layers, stepnet.keras))
    same_weights(theirs, ours, SHAPE)
    call = Call(training=True, shape=SHAPE)
    assert_same(call.answers(ours), call.answers(theirs))


@each_layer
def test_regularizer(kind: str):
    options: dict[str, Any] = {
        "kernel_regularizer": keras.regularizers.L1(0.01),
        "recurrent_regularizer": keras.regularizers.L1(0.02),
        "bias_regularizer": "l2",
        "activity_regularizer": "l2",
        "kernel_constraint": keras.constraints.MaxNorm(0.7),
    }

    def make(where: Any) -> Any:
        return keras.Sequential([getattr(where, kind)(UNITS, **options)])

    x = numbers(*SHAPE)
    ours = assert_trains_alike(make, x)
    ours(x)
    losses = [float(loss.detach()) for loss in ours.layers[0].losses]
    assert len(losses) == 4 - (kind == "SimpleRNN")  # which drops that of its activity
    assert min(losses) > 0
    assert np.linalg.norm(ours.layers[0].cell.kernel.numpy(), axis=0).max() < 0.7001


@pytest.mark.parametrize("unroll", [False, True])
def test_masking_layer(unroll: bool):
    x = numbers(*SHAPE)
    x[0, 3:], x[1, 1] = 0, 0

    def make(where: Any) -> Any:
        layer = where.LSTM(UNITS, return_sequences=True, unroll=unroll)
        return keras.Sequential([keras.Input(SHAPE[1:]), keras.layers.Masking(), layer])

    assert_trains_alike(make, x)


@each_layer
def test_specify_initial_state_keras_tensor(kind: str):
    x = [numbers(*SHAPE)]
    x += [numbers(SAMPLES, UNITS, seed=place) for place in range(STATES[kind])]

    def make(where: Any) -> Any:
        sequences, *states = inputs = [keras.Input(value.shape[1:]) for value in x]
        layer = getattr(where, kind)(UNITS)
        output = layer(sequences, initial_state=states)
        assert any(tensor is states[0] for tensor in layer._inbound_nodes[0].input_tensors)
        return keras.Model(inputs, output)

    assert_trains_alike(make, x)


@each_layer
def test_specify_initial_state_non_keras_tensor(kind: str):
    states = [keras.Variable(numbers(SAMPLES, UNITS, seed=place)) for place in range(STATES[kind])]
    theirs, ours = (getattr(where, kind)(UNITS) for where in (keras.layers, stepnet.keras))
    same_weights(theirs, ours, SHAPE)
    answers = []
    for layer in (ours, theirs):
        output = layer(numbers(*SHAPE), initial_state=states)
        gradients = torch.autograd.grad(output.square().sum(), [state.value for state in states])
        answers.append({str(place): one.detach().numpy() for place, one in enumerate([output, *gradients])})
    assert_same(*answers)


@each_layer
def test_initial_states_as_other_inputs(kind: str):
    x = [numbers(*SHAPE)]
    x += [numbers(SAMPLES, UNITS, seed=place) for place in range(STATES[kind])]

    def make(where: Any) -> Any:
        sequences, *states = inputs = [keras.Input(value.shape[1:]) for value in x]
        return keras.Model(inputs, getattr(where, kind)(UNITS)(sequences, states))

    assert_trains_alike(make, x)


@each_layer
def test_specify_state_with_masking(kind: str):
    x = [numbers(*SHAPE)]
    x[0][0, 2:] = 0
    x += [numbers(SAMPLES, UNITS, seed=place) for place in range(STATES[kind])]

    def make(where: Any) -> Any:
        sequences, *states = inputs = [keras.Input((None, INPUTS)), *(keras.Input((UNITS,)) for _ in x[1:])]
        mask = keras.layers.Masking().compute_mask(sequences)  # which Keras hands on to one tensor alone
        return keras.Model(inputs, getattr(where, kind)(UNITS)(sequences, initial_state=states, mask=mask))

    ours = assert_trains_alike(make, x)
    shorter = [x[0][:1, :2], *(state[:1] for state in x[1:])]  # the masked steps do not matter
    np.testing.assert_allclose(ours.predict_on_batch(shorter), ours.predict_on_batch(x)[:1], atol=1e-6)


@each_layer
def test_return_state(kind: str):
    x = numbers(*SHAPE)

    def make(where: Any) -> Any:
        inputs = keras.Input(batch_shape=SHAPE)
        return keras.Model(inputs, list(getattr(where, kind)(UNITS, return_state=True)(inputs)))

    assert len(assert_trains_alike(make, x).outputs) == 1 + STATES[kind]
    layer = getattr(stepnet.keras, kind)(UNITS, return_state=True, stateful=True)
    output, *states = layer(x)
    assert torch.equal(output, states[0])
    for state, kept in zip(states, layer.states, strict=True):
        np.testing.assert_array_equal(state.detach(), kept.numpy())


@pytest.mark.long(every=3)
@each_layer
@pytest.mark.parametrize("options", [{}, {"dropout": 0.2, "seed": 5}])
def test_state_reuse(kind: str, options: dict[str, Any]):
    """Also test_state_reuse_with_dropout."""

    def make(where: Any) -> Any:
        inputs = keras.Input(batch_shape=SHAPE)
        first = getattr(where, kind)(UNITS, return_state=True, return_sequences=True, **options)
        outputs, *states = first(inputs)
        return keras.Model(inputs, getattr(where, kind)(UNITS, **options)(outputs, initial_state=states))

    assert_trains_alike(make, numbers(*SHAPE))


class MinimalRNNCell:
    """A cell that is no layer, with one state."""

    compute_dtype = "float32"

    def __init__(self, units: int) -> None:
        self.units = self.state_size = units
        self.kernel = keras.Variable(numbers(INPUTS, units))

    def call(self, inputs: Any, states: Any) -> Any:
        output = ops.matmul(inputs, self.kernel) + states[0]
        return output, [output]

    __call__ = call


class MinimalRNNCellWithStates(MinimalRNNCell):
    """A cell that is no layer, with two states."""

    def __init__(self, units: int) -> None:
        super().__init__(units)
        self.state_size = [units, units]

    def call(self, inputs: Any, states: Any) -> Any:
        output = ops.matmul(inputs, self.kernel) + states[0] - ops.tanh(states[1])
        return output, [output, states[0]]

    __call__ = call


@pytest.mark.parametrize("cell", [MinimalRNNCell, MinimalRNNCellWithStates])
def test_minimal_rnn_cell_non_layer(cell: Any):
    """Also test_minimal_rnn_cell_non_layer_multiple_states."""
    answers = []
    for where in (stepnet.keras, keras.layers):
        cells = cell(UNITS)
        model = keras.Sequential([where.RNN(cells), keras.layers.Dense(2)])
        model.build(SHAPE)
        model.layers[1].set_weights([numbers(UNITS, 2), numbers(2)])
        output = model(numbers(*SHAPE))
        gradients = torch.autograd.grad(output.square().sum(), [cells.kernel.value])
        answers.append({"y": output.detach().numpy(), "dW": gradients[0].numpy()})
        if where is stepnet.keras:
            assert not stepnet.keras.report(model).left
    assert_same(answers[0], answers[1], 8 * TIMESTEPS)


class LayerCell(keras.layers.Layer):
    """A cell that is a layer."""

    def __init__(self, units: int, **options: Any) -> None:
        super().__init__(**options)
        self.units = self.state_size = units

    def build(self, shape: Any) -> None:
        self.kernel = self.add_weight(shape=(shape[-1], self.units), name="kernel")
        self.recurrent = self.add_weight(shape=(self.units, self.units), name="recurrent")

    def call(self, inputs: Any, states: Any) -> Any:
        output = ops.matmul(inputs, self.kernel) + ops.matmul(states[0], self.recurrent)
        return output, [output]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def test_minimal_rnn_cell_layer():
    x = numbers(*SHAPE)
    ours = assert_trains_alike(lambda where: keras.Sequential([where.RNN(LayerCell(UNITS))]), x, 0.01)
    layer = ours.layers[0]
    with keras.saving.custom_object_scope({"LayerCell": LayerCell}):
        again = stepnet.keras.RNN.from_config(layer.get_config())
    again.build(SHAPE)
    again.set_weights(layer.get_weights())
    np.testing.assert_array_equal(again(x).detach(), layer(x).detach())
    stacked = assert_trains_alike(
        lambda where: keras.Sequential([where.RNN([LayerCell(4), LayerCell(UNITS)])]), x, 0.01
    )
    assert len(stacked.layers[0].cell.cells) == 2


@each_layer
def test_batch_size_equal_one(kind: str):
    def make(where: Any) -> Any:
        return keras.Sequential(
            [keras.Input(batch_shape=(1, TIMESTEPS, INPUTS)), getattr(where, kind)(UNITS)]
        )

    with Counted() as counted:
        assert_trains_alike(make, numbers(1, TIMESTEPS, INPUTS))
    assert counted.slow == 0
