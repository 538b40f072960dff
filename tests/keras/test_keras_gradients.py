"""Cells that stop gradients, or make their own; that are built, and that change, as they are called; and
inputs, weights and transforms that a step may not have.
"""

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

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
    pair,
    same_weights,
)


class Plain(keras.layers.Layer):
    """A cell of one product with its inputs and one with its state."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.state_size = UNITS

    def build(self, shape: Any) -> None:
        self.W = self.add_weight(shape=(shape[-1], UNITS), name="W")
        self.R = self.add_weight(shape=(UNITS, UNITS), name="R")

    def call(self, inputs: Any, states: Any) -> Any:
        h = ops.tanh(self.summed(inputs, states[0]))
        return h, [h]

    def summed(self, x: Any, h: Any) -> Any:
        return ops.matmul(x, self.W) + ops.matmul(h, self.R)


class Stopped(Plain):
    def summed(self, x: Any, h: Any) -> Any:
        return super().summed(x, ops.stop_gradient(h)) + h


class Data(Plain):
    def summed(self, x: Any, h: Any) -> Any:
        return super().summed(x, h.data)


class Quiet(Plain):
    def summed(self, x: Any, h: Any) -> Any:
        with torch.no_grad():
            gate = ops.sigmoid(ops.matmul(x, self.W))
        return super().summed(x, h) * gate


class Sign(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> Any:
        return arguments[1].sign()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * 0.3


class Straight(Plain):
    def summed(self, x: Any, h: Any) -> Any:
        return Sign.apply(super().summed(x, h))


class Kept(Plain):
    def call(self, inputs: Any, states: Any) -> Any:
        return self.summed(inputs, states[0]), states


STOPS = {
    "stop_gradient": (Stopped, None),
    "data": (Data, None),
    "no_grad": (Quiet, "a step cannot turn gradients off or on for a part of it"),
    "a function of its own": (
        Straight,
        "a step cannot have the custom gradient of a torch.autograd.Function",
    ),
    "a state that is kept": (Kept, None),
}


@pytest.mark.parametrize("stop", STOPS)
def test_gradients_end_where_a_step_ends_them(stop: str):
    kind, why = STOPS[stop]
    theirs, ours = (
        keras.layers.RNN(kind(), return_sequences=True),
        stepnet.keras.RNN(kind(), return_sequences=True),
    )
    same_weights(theirs, ours)
    with Counted() as counted:
        assert_same(Call().answers(ours), Call().answers(theirs))
    left = stepnet.keras.report(ours).left
    assert (counted.fast, counted.slow) == ((1, 0) if why is None else (0, 1))
    assert why is None or why in next(iter(left.values()))


def test_second_gradients_end_there_too():
    theirs, ours = keras.layers.RNN(Stopped()), stepnet.keras.RNN(Stopped())
    same_weights(theirs, ours)
    second = list[Any]()
    for layer in (ours, theirs):
        x = torch.tensor(numbers(BATCH, STEPS, INPUTS), requires_grad=True)
        (first,) = torch.autograd.grad(layer(x).sum(), x, create_graph=True)
        second += torch.autograd.grad(first.square().sum(), x)
    assert_same({"dd": second[0].numpy()}, {"dd": second[1].numpy()})


class Checkpointed(torch.autograd.Function):
    @staticmethod
    def forward(*arguments: Any) -> Any:
        return arguments[1](arguments[2])


def test_a_layer_that_a_function_calls_is_compiled():
    ours = stepnet.keras.RNN(Plain())
    with Counted() as counted:
        Checkpointed.apply(ours, torch.zeros(BATCH, STEPS, INPUTS))
    assert (counted.fast, counted.slow) == (1, 0)


class Spelled(Plain):
    """A cell over the numbers of tokens."""

    def build(self, shape: Any) -> None:
        super().build((None, UNITS))
        self.table = self.add_weight(shape=(9, UNITS), name="table")

    def summed(self, x: Any, h: Any) -> Any:
        return super().summed(ops.take(self.table, x[:, 0], axis=0), h)


@pytest.mark.long(each=True)
@pytest.mark.parametrize("dtype", ["int64", "int32", "bool"])
@pytest.mark.parametrize("kind", [Plain, Spelled])
def test_outputs_of_integers_are_floats(kind: Any, dtype: str):
    if kind is Spelled and dtype == "bool":
        return
    theirs, ours = keras.layers.RNN(kind()), stepnet.keras.RNN(kind())
    same_weights(theirs, ours, (BATCH, STEPS, 1))
    x = torch.tensor(np.arange(BATCH * STEPS).reshape(BATCH, STEPS, 1) % 9).to(getattr(torch, dtype))
    with Counted() as counted:
        actual, right = ours(x), theirs(x)
    assert counted.fast == 1
    assert actual.requires_grad
    assert_same({"y": actual.detach().numpy()}, {"y": right.detach().numpy()})


def test_keras_activations_of_integers():
    theirs, ours = pair("GRU", activation=lambda x: ops.tanh(x) * 0.5)
    x = torch.ones(BATCH, STEPS, INPUTS, dtype=torch.int64)
    assert_same({"y": ours(x).detach().numpy()}, {"y": theirs(x).detach().numpy()})


def test_cells_of_another_dtype_than_their_stack():
    cells = [[keras.layers.GRUCell(UNITS, dtype="float64")] for _ in range(2)]
    theirs, ours = keras.layers.RNN(cells[0], dtype="float64"), stepnet.keras.RNN(cells[1], dtype="float64")
    same_weights(theirs, ours)
    x = numbers(BATCH, STEPS, INPUTS, dtype="float64")
    actual, right = ours(x).detach().numpy(), theirs(x).detach().numpy()
    assert actual.dtype == right.dtype
    assert_same({"y": actual.astype("float32")}, {"y": right.astype("float32")})


def test_too_few_states_raise_what_keras_raises():
    theirs, ours = pair("LSTM")
    x, states = numbers(BATCH, STEPS, INPUTS), [numbers(BATCH, UNITS)]
    for layer in (theirs, ours):
        with pytest.raises(IndexError):
            layer(x, initial_state=states)


TRANSFORMS = {
    "vmap": lambda layer, x: torch.func.vmap(lambda row: layer(row[None])[0])(x),
    "jvp": lambda layer, x: torch.func.jvp(layer, (x,), (x,))[1],
    "grad": lambda layer, x: torch.func.grad(lambda x: layer(x).sum())(x),
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # as torch.func.jvp begins
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms_of_torch(transform: str):
    theirs, ours = pair("GRU")
    x, apply = torch.tensor(numbers(BATCH, STEPS, INPUTS)), TRANSFORMS[transform]
    with Counted() as counted:
        actual = apply(ours, x)
    assert (counted.fast > 0) == (transform == "grad")
    assert_same({"y": actual.detach().numpy()}, {"y": apply(theirs, x).detach().numpy()})


class OfTorch(Plain):
    """A cell with a module of PyTorch in it, which Keras wraps."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torch.nn.GRUCell(INPUTS, UNITS)

    def summed(self, x: Any, h: Any) -> Any:
        return super().summed(x, self.inner(x, h))


class Closing:
    """A cell that is no layer, with a parameter of PyTorch."""

    state_size = INPUTS
    compute_dtype = "float32"

    def __init__(self) -> None:
        self.weight = torch.nn.Parameter(torch.ones(INPUTS) / 2)

    def __call__(self, inputs: Any, states: Any) -> Any:
        h = torch.tanh(inputs * self.weight + states[0])
        return h, [h]

    call = __call__


def in_order(layer: Any) -> dict[str, Any]:
    """Answers by their places: Keras numbers the variables that it wraps."""
    return {str(place): answer for place, answer in enumerate(Call().answers(layer).values())}


def test_a_module_of_torch_in_a_cell_is_trained():
    theirs, ours = keras.layers.RNN(OfTorch()), stepnet.keras.RNN(OfTorch())
    same_weights(theirs, ours)
    with Counted() as counted:
        actual, right = in_order(ours), in_order(theirs)
    assert counted.fast == 1
    assert_same(actual, right)
    weights = [weight * 2 for weight in theirs.get_weights()]
    for layer in (theirs, ours):
        layer.set_weights(weights)
    assert_same(in_order(ours), in_order(theirs))


def test_a_parameter_of_torch_is_trained_by_keras_own_loop():
    ours = stepnet.keras.RNN(Closing())
    with Counted() as counted:
        ours(torch.ones(BATCH, STEPS, INPUTS)).sum().backward()
    assert counted.slow == 1
    assert ours.cell.weight.grad is not None
    assert "requires a gradient and is not a variable" in next(iter(stepnet.keras.report(ours).left.values()))


class Late(Plain):
    """A cell with a layer that is built when it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = keras.layers.Dense(UNITS, kernel_initializer="ones")

    def summed(self, x: Any, h: Any) -> Any:
        return self.inner(super().summed(x, h))


def test_a_layer_that_is_built_when_it_is_called_is_trained():
    theirs, ours = keras.layers.RNN(Late()), stepnet.keras.RNN(Late())
    x = torch.tensor(numbers(BATCH, STEPS, INPUTS))
    for layer in (theirs, ours):
        layer(x)
    assert len(ours.trainable_variables) == len(theirs.trainable_variables) == 4
    same_weights(theirs, ours)
    with Counted() as counted:
        actual = Call().answers(ours)
    assert counted.fast == 1
    assert_same(actual, Call().answers(theirs))


class Counting(Plain):
    """A cell that counts its calls."""

    calls = 0

    def summed(self, x: Any, h: Any) -> Any:
        self.calls += 1
        self.latest = h
        return super().summed(x, h) / self.calls


def test_a_trace_leaves_the_attributes_of_a_cell():
    theirs, ours = keras.layers.RNN(Counting()), stepnet.keras.RNN(Counting())
    same_weights(theirs, ours)
    assert_same(Call().answers(ours), Call().answers(theirs))
    assert ours.cell.calls == theirs.cell.calls
    assert type(ours.cell.latest) is torch.Tensor


def test_a_trace_leaves_the_attributes_of_cells_in_a_stack():
    def stack() -> Any:
        inner = keras.layers.StackedRNNCells([Counting(), keras.layers.GRUCell(UNITS)])
        return keras.layers.StackedRNNCells([keras.layers.SimpleRNNCell(INPUTS), inner])

    theirs, ours = keras.layers.RNN(stack()), stepnet.keras.RNN(stack())
    x = numbers(BATCH, STEPS, INPUTS)
    for layer in (theirs, ours):
        layer(x)
    counting = [layer.cell.cells[1].cells[0] for layer in (theirs, ours)]
    assert counting[0].calls == counting[1].calls
    assert type(counting[1].latest) is torch.Tensor


class Scaled(Plain):
    """A cell that scales by something that it holds. scale: what says by how much, of what is held."""

    def __init__(self, held: Any, scale: Any) -> None:
        super().__init__()
        self.held, self.scale = held, scale

    def summed(self, x: Any, h: Any) -> Any:
        return super().summed(x, h) * self.scale(self.held)


class Twice(keras.layers.Layer):
    """A layer whose factor may be set."""

    factor = 2.0

    def call(self, inputs: Any) -> Any:
        return inputs * self.factor


class Settable:
    """An object with a method."""

    factor = 0.5

    def read(self) -> float:
        return self.factor


def half() -> Any:
    return SimpleNamespace(factor=0.5, inner=SimpleNamespace(factor=0.5))


def turned(held: Any) -> None:
    held.trainable = False


HELD: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "an object": (half, lambda held: held.factor, lambda held: setattr(held, "factor", 2.0)),
    "an object in it": (
        half,
        lambda held: held.inner.factor,
        lambda held: setattr(held.inner, "factor", 2.0),
    ),
    "a partial function": (
        lambda: partial(lambda at: at["factor"], {"factor": 0.5}),
        lambda held: held(),
        lambda held: held.args[0].update(factor=2.0),
    ),
    "a method": (
        lambda: Settable().read,
        lambda held: held(),
        lambda held: setattr(held.__self__, "factor", 2.0),
    ),
    "a layer": (Twice, lambda held: held(torch.ones(UNITS)), lambda held: setattr(held, "factor", 0.5)),
    "whether a layer is trained": (Twice, lambda held: 2.0 if held.trainable else 0.5, turned),
    "a tensor": (lambda: torch.ones(UNITS), lambda held: held, lambda held: held.data.mul_(2)),
    "the memory of a tensor": (
        lambda: torch.ones(UNITS),
        lambda held: held,
        lambda held: held.numpy().fill(0.5),
    ),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("held", HELD)
def test_what_a_cell_holds_may_change(held: str):
    make, scale, change = HELD[held]
    theirs, ours = (where.RNN(Scaled(make(), scale)) for where in (keras.layers, stepnet.keras))
    same_weights(theirs, ours)
    for _ in range(2):
        with Counted() as counted:
            assert_same(Call().answers(ours), Call().answers(theirs))
        assert counted.fast == 1
        for layer in (ours, theirs):
            change(layer.cell.held)
