"""Cells of one's own, and cells that are stacked: their own steps are traced."""

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import stepnet.keras
from tests.keras.keras_cases import (
    BATCH,
    INPUTS,
    STEPS,
    UNITS,
    Call,
    Counted,
    assert_same,
    keras,
    numbers,
    ops,
    same_weights,
)


class Gated(keras.layers.Layer):
    """A cell with a layer in it, two states, and an output that is none of them."""

    def __init__(self, units: int = UNITS, slope: float = 1.0, **options: Any) -> None:
        super().__init__(**options)
        self.units, self.slope, self.state_size, self.output_size = units, slope, [units, units], units
        self.gates, self.drop = (
            keras.layers.Dense(2 * units, dtype=self.dtype_policy),
            keras.layers.Dropout(0.5),
        )

    def build(self, shape: Any) -> None:
        self.gates.build((shape[0], shape[1] + self.units))
        self.scale = self.add_weight(shape=(self.units,), initializer="ones", name="scale")

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        h, total = states
        candidate, gate = ops.split(self.gates(ops.concatenate([inputs, h], axis=-1)), 2, axis=-1)
        h = h + ops.sigmoid(gate) * (ops.tanh(self.slope * candidate) - h)
        return self.drop(h * self.scale, training=False), [h, total + ops.mean(h, axis=-1, keepdims=True)]


class Plain:
    """A cell that is no layer; Keras knows nothing of its variables."""

    state_size, compute_dtype = UNITS, "float32"

    def __init__(self) -> None:
        self.kernel = keras.Variable(numbers(INPUTS, UNITS) / 2)
        self.recurrent = keras.Variable(numbers(UNITS, UNITS) / 2)

    def call(self, inputs: Any, states: Any) -> Any:
        h = ops.tanh(inputs @ self.kernel + states[0] @ self.recurrent)
        return h, [h]

    __call__ = call


def both(cell: Any, **options: Any) -> tuple[Any, Any]:
    """A layer of Keras and one of ours with cells of the same class and weights."""
    layers = [where.RNN(cell(), return_state=True, **options) for where in (keras.layers, stepnet.keras)]
    same_weights(*layers)
    return layers[0], layers[1]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("mask", ["none", "gaps"])
@pytest.mark.parametrize("return_sequences", [True, False])
def test_a_cell_of_ones_own(mask: str, return_sequences: bool):
    theirs, ours = both(Gated, return_sequences=return_sequences, go_backwards=True)
    call = Call(mask, training=True, begin=True)
    with Counted() as counted:
        answers = call.answers(ours)
    assert (counted.fast, counted.slow) == (1, 0)
    assert {"d scale", "d kernel", "d bias", "d state 0"} <= answers.keys()
    assert_same(answers, call.answers(theirs))


def test_a_cell_that_is_no_layer_has_its_gradients():
    cells = Plain(), Plain()
    layers = keras.layers.RNN(cells[0]), stepnet.keras.RNN(cells[1])
    gradients = []
    for layer, cell in zip(layers, cells, strict=True):
        layer(numbers(BATCH, STEPS, INPUTS)).square().sum().backward()
        gradients.append({"W": cell.kernel.value.grad.numpy(), "R": cell.recurrent.value.grad.numpy()})
    assert_same(gradients[1], gradients[0])


def test_an_attribute_that_is_set_anew_is_used():
    theirs, ours = both(Gated)
    before = Call().answers(ours)
    for layer in (theirs, ours):
        layer.cell.slope = 3.0
    after = Call().answers(ours)
    assert_same(after, Call().answers(theirs))
    assert abs(after["result 0"] - before["result 0"]).max() > 0.01


class Dropping(Gated):
    """A cell that draws at every step."""

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        output, states = super().call(inputs, states)
        return self.drop(output, training=training), states


RATE = 1.0
NOISE = np.random.default_rng(0)


class Reading(Gated):
    """A cell that reads a global variable and an attribute of its class."""

    factor = 1.0

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        return super().call(inputs * RATE * self.factor, states)


class Drawing(Gated):
    """A cell that draws from a generator of NumPy."""

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        return super().call(inputs * float(NOISE.normal()), states)


class Counting(Gated):
    """A cell that changes as it runs."""

    calls = 0

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        self.calls = self.calls + 1
        return super().call(inputs, states)


class Mixing(Gated):
    """A cell whose rows see each other."""

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        return super().call(inputs - ops.mean(inputs, axis=0, keepdims=True), states)


class Branching(Gated):
    """A cell that looks at a number."""

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        return super().call(inputs if float(ops.sum(inputs)) > 0 else -inputs, states)


class Losing(Gated):
    """A cell that adds a loss."""

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        self.add_loss(ops.mean(ops.square(inputs)))
        return super().call(inputs, states)


class Assigning(Gated):
    """A cell that keeps a number in a variable."""

    def build(self, shape: Any) -> None:
        super().build(shape)
        self.latest = self.add_weight(shape=(), initializer="zeros", trainable=False, name="latest")

    def call(self, inputs: Any, states: Any, training: bool = False) -> Any:
        self.latest.assign(ops.mean(inputs))
        return super().call(inputs, states)


@pytest.mark.parametrize(
    ("cell", "why", "line"),
    [
        (Dropping, "dropout draws anew at every step", "self.drop(output, training=training)"),
        (Counting, "the step of Counting changes `self.calls`", ""),
        (Mixing, "which mixes them", "ops.mean(inputs, axis=0, keepdims=True)"),
        (Branching, "a step cannot branch on a value", "float(ops.sum(inputs))"),
        (Losing, "the step adds a loss at every step", "self.add_loss("),
        (Assigning, "the step assigns to the variable", "self.latest.assign("),
    ],
)
def test_what_cannot_be_traced_runs_keras_own_loop_and_says_why(cell: Any, why: str, line: str):
    theirs, ours = both(cell)
    with Counted() as counted:
        outputs = ours(numbers(BATCH, STEPS, INPUTS), training=cell is Dropping)
    assert (counted.fast, counted.slow) == (0, 1)
    reason = stepnet.keras.report(ours).left[ours.path]
    assert why in reason
    assert not line or ("test_keras_cells.py:" in reason and line in reason)
    if cell is not Dropping:
        right = theirs(numbers(BATCH, STEPS, INPUTS))
        for one, other in zip(outputs, right, strict=True):
            torch.testing.assert_close(one, other)


def test_a_cell_that_draws_with_numpy_runs_keras_own_loop():
    _, ours = both(Drawing)
    x = numbers(BATCH, STEPS, INPUTS)
    first, second = (ours(x)[0] for _ in range(2))
    assert not torch.equal(first, second)
    reason = stepnet.keras.report(ours).left[ours.path]
    assert "draws random numbers from `NOISE`, and a trace" in reason
    assert "inputs * float(NOISE.normal())" in reason


def test_globals_and_class_attributes_are_settings(monkeypatch: pytest.MonkeyPatch):
    theirs, ours = both(Reading)
    for change in (
        lambda: None,
        lambda: monkeypatch.setitem(globals(), "RATE", 0.5),
        lambda: monkeypatch.setattr(Reading, "factor", 0.25),
    ):
        change()
        assert_same(Call().answers(ours), Call().answers(theirs))
        assert str(stepnet.keras.report(ours)) == f"{ours.path}: compiled, Reading"


def outputs_of(layer: Any) -> Any:
    """The outputs of a layer, as a function of its sequences alone."""
    return lambda x: layer(x)[0]


def test_make_fx_records_keras_own_loop():
    theirs, ours = both(Gated)
    x, graphs = numbers(BATCH, STEPS, INPUTS), list[Any]()
    for layer in (theirs, ours):
        layer(x)
        with Counted() as counted:
            graphs.append(make_fx(outputs_of(layer))(x))
        assert counted.fast == 0
    kinds = [[node.target for node in graph.graph.nodes if node.op == "call_function"] for graph in graphs]
    assert kinds[0] == kinds[1]


def test_a_cell_that_draws_is_compiled_where_it_does_not():
    theirs, ours = both(Dropping)
    assert_same(Call().answers(ours), Call().answers(theirs))
    assert str(stepnet.keras.report(ours)) == f"{ours.path}: compiled, Dropping"


STACKS: dict[str, Any] = {
    "own": lambda: [
        keras.layers.LSTMCell(4, dropout=0.3, recurrent_dropout=0.2, seed=1),
        keras.layers.StackedRNNCells(
            [keras.layers.GRUCell(3, reset_after=False), keras.layers.SimpleRNNCell(4)]
        ),
        keras.layers.GRUCell(UNITS, dropout=0.3, seed=2, implementation=1, recurrent_dropout=0.1),
    ],
    "mixed": lambda: [
        keras.layers.LSTMCell(4, dropout=0.3, seed=1),
        Gated(),
        keras.layers.SimpleRNNCell(2, "exponential"),
    ],
}


@pytest.mark.long(each=True)
@pytest.mark.parametrize("stack", STACKS)
@pytest.mark.parametrize("training", [True, False])
def test_stacked_cells_are_one_step(stack: str, training: bool):
    theirs, ours = both(lambda: keras.layers.StackedRNNCells(STACKS[stack]()), return_sequences=True)
    call = Call("gaps", training=training)
    with Counted() as counted:
        answers = call.answers(ours)
    assert (counted.fast, counted.slow) == (1, 0)
    assert_same(answers, call.answers(theirs))


class Two(keras.layers.Layer):
    """A cell of two inputs."""

    state_size = output_size = UNITS

    def build(self, shapes: Any) -> None:
        (_, first), (_, *second) = shapes["a"], shapes["b"]
        self.first = self.add_weight(shape=(first, UNITS), name="first")
        self.second = self.add_weight(shape=(*second, UNITS), name="second")

    def call(self, inputs: Any, states: Any) -> Any:
        h = ops.tanh(
            inputs["a"] @ self.first + ops.einsum("nij,ijk->nk", inputs["b"], self.second) + states[0]
        )
        return h, [h]


def test_several_inputs_at_once():
    ours = stepnet.keras.RNN(Two(), return_sequences=True)
    a, b = (torch.tensor(numbers(BATCH, STEPS, *sizes)) for sizes in ((3,), (2, 2)))
    a.requires_grad_()
    outputs = ours({"a": a, "b": b})
    assert stepnet.keras.report(ours).left == {}
    h, right = torch.zeros(BATCH, UNITS), []
    for step in range(STEPS):
        second = torch.einsum("nij,ijk->nk", b[:, step], ours.cell.second.value)
        h = torch.tanh(a[:, step] @ ours.cell.first.value + second + h)
        right.append(h)
    torch.testing.assert_close(outputs, torch.stack(right, 1))
    gradients = [
        torch.autograd.grad(y.square().sum(), [a, ours.cell.second.value])
        for y in (outputs, torch.stack(right, 1))
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)
    assert ours.compute_output_shape({"a": (2, 6, 3), "b": (2, 6, 2, 2)}) == (2, 6, UNITS)


def test_low_precision_of_a_cell_with_layers_in_it():
    ours = stepnet.keras.RNN(Gated(dtype="mixed_bfloat16"), dtype="mixed_bfloat16")
    exact = keras.layers.RNN(Gated())
    x = numbers(BATCH, STEPS, INPUTS)
    for layer in (ours, exact):
        layer.build(x.shape)
    exact.set_weights(ours.get_weights())
    with Counted() as counted:
        outputs = ours(x)
    assert stepnet.keras.report(ours).left == {}  # or the reason
    assert (counted.fast, outputs.dtype) == (1, torch.bfloat16)
    assert ours.cell.compute_dtype == ours.cell.gates.compute_dtype == "bfloat16"
    np.testing.assert_allclose(outputs.detach().float(), exact(x).detach(), atol=0.03)


class Wrapping(keras.layers.Layer):
    """A cell whose product is a module of PyTorch, which reads its own parameters."""

    state_size = output_size = UNITS

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.product = keras.layers.TorchModuleWrapper(torch.nn.Linear(INPUTS + UNITS, UNITS))

    def call(self, inputs: Any, states: Any) -> Any:
        h = ops.tanh(self.product(ops.concatenate([ops.cast(inputs, "float32"), states[0]], axis=-1)))
        return h, [h]


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_parameters_that_a_module_of_pytorch_reads_are_found_under_every_policy(policy: str):
    ours = stepnet.keras.RNN(Wrapping(dtype="float32"), dtype=policy)
    exact = keras.layers.RNN(ours.cell, dtype=policy)
    x = numbers(BATCH, STEPS, INPUTS)
    with Counted() as counted:
        outputs = ours(x)
    assert stepnet.keras.report(ours).left == {}
    assert counted.fast == 1
    np.testing.assert_allclose(outputs.detach().float(), exact(x).detach().float(), atol=0.03)


@pytest.mark.parametrize("cell", [Gated, Mixing, lambda: keras.layers.LSTMCell(3)])
def test_nothing_keeps_a_cell(cell: Any):
    layer = stepnet.keras.RNN(cell())
    layer(numbers(BATCH, STEPS, INPUTS))
    known = weakref.ref(layer.cell), weakref.ref(layer)
    del layer
    gc.collect()
    assert [reference() for reference in known] == [None, None]


def test_a_copy_runs_with_weights_of_its_own():
    layer = stepnet.keras.GRU(UNITS)
    x = numbers(BATCH, STEPS, INPUTS)
    before = layer(x).detach().numpy()
    other = copy.deepcopy(layer)
    other.cell.kernel.assign(2 * other.cell.kernel.value)
    np.testing.assert_array_equal(layer(x).detach(), before)
    layer.cell.kernel.assign(2 * layer.cell.kernel.value)
    np.testing.assert_array_equal(other(x).detach(), layer(x).detach())


def test_weights_that_are_shared_get_both_gradients():
    theirs, ours = both(Gated)
    gradients = []
    for layer in (ours, theirs):
        x = torch.tensor(numbers(BATCH, STEPS, INPUTS))
        total = layer(x)[0].square().sum() + layer(2 * x)[0].sum()
        gradients.append({"dW": torch.autograd.grad(total, layer.cell.gates.kernel.value)[0].numpy()})
    assert_same(gradients[0], gradients[1])


def test_second_gradients():
    theirs, ours = both(lambda: keras.layers.GRUCell(UNITS))
    answers = []
    for layer in (ours, theirs):
        x = torch.tensor(numbers(BATCH, STEPS, INPUTS), requires_grad=True)
        (first,) = torch.autograd.grad(layer(x)[0].square().sum(), x, create_graph=True)
        weight = layer.cell.recurrent_kernel.value
        answers.append({"d": torch.autograd.grad(first.square().sum(), weight)[0].numpy()})
    assert_same(answers[0], answers[1], 4 * STEPS)


def test_a_loss_of_a_cell_at_every_step_is_kept():
    losses = []
    for where in (stepnet.keras, keras.layers):
        layer = where.RNN(keras.layers.GRUCell(UNITS, activity_regularizer="l2"))
        layer.build((BATCH, STEPS, INPUTS))
        layer.set_weights([numbers(*weight.shape) for weight in layer.get_weights()])
        layer(numbers(BATCH, STEPS, INPUTS))
        losses.append([float(loss.detach()) for loss in layer.losses])
    assert len(losses[0]) >= STEPS
    np.testing.assert_allclose(losses[0], losses[1], rtol=1e-5)
