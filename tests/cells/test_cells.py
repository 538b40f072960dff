"""The named cells: against their equations written as plain loops, against Keras, and what they refuse."""

import re
from typing import Any

import keras
import numpy as np
import pytest
import torch
from tolerance import assert_close
from turns import in_turns
from zoo import sigmoid

import stepnet as sn
from stepnet.cells import CELLS
from stepnet.errors import InputError

LENGTHS = (4, 0, 1, 7)
INPUTS, HIDDEN, PROJECTED = 5, 7, 3


def by_gate(params: dict[str, np.ndarray], count: int) -> list[Any]:
    """Per gate what the inputs give, and what a state gives, as functions of one vector."""
    hidden = params["W"].shape[1] // count
    found = []
    for gate in range(count):
        at = slice(gate * hidden, (gate + 1) * hidden)
        b, d = (params[name][at] if name in params else np.zeros(hidden) for name in "bd")
        W, R = params["W"][:, at].T, params["R"][:, at].T
        found.append((lambda x, W=W, b=b: W @ x + b, lambda h, R=R, d=d: R @ h + d))
    return found


def one_step(name: str, x: np.ndarray, memory: list[np.ndarray], params: dict[str, np.ndarray]) -> Any:
    """The next memories of one sequence, as its paper has them, in columns; the first is the output."""
    parts = by_gate(params, len(CELLS[name].gates))
    from_x, from_h = [part[0] for part in parts], [part[1] for part in parts]
    h = memory[0]
    if name.startswith("simple_rnn"):
        total = from_x[0](x) + from_h[0](h)
        return [np.maximum(total, 0) if name.endswith("relu") else np.tanh(total)]
    if name == "minimal_gated_unit":
        f = sigmoid(from_x[0](x) + from_h[0](h))
        return [(1 - f) * h + f * np.tanh(from_x[1](x) + from_h[1](f * h))]
    if name.startswith("gru"):
        r = sigmoid(from_x[0](x) + from_h[0](h))
        z = sigmoid(from_x[1](x) + from_h[1](h))
        candidate = from_h[2](r * h) if name == "gru_reset_before" else r * from_h[2](h)
        return [z * h + (1 - z) * np.tanh(from_x[2](x) + candidate)]
    c = memory[1]
    i, f, g, o = (a(x) + b(h) for a, b in zip(from_x, from_h, strict=True))
    if name == "lstm_peephole":
        i, f = i + params["p"][0] * c, f + params["p"][1] * c
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    if name == "lstm_peephole":
        o = o + params["p"][2] * c
    h = sigmoid(o) * np.tanh(c)
    return [params["P"].T @ h if name == "lstm_projection" else h, c]


def drawn(name: str, dtype: str, bias: bool = True) -> tuple[Any, Any, Any, Any]:
    """Sequences, initial memories, parameters and the recurrence of a cell."""
    random = np.random.default_rng(3)
    projected = PROJECTED if name == "lstm_projection" else None
    params = CELLS[name].parameters(INPUTS, HIDDEN, projected, bias=bias, seed=random, dtype=dtype)
    sequences = [random.normal(size=(length, INPUTS)).astype(dtype) for length in LENGTHS]
    sizes = [projected or HIDDEN, HIDDEN][: len(CELLS[name].memories)]
    initial = [random.normal(size=(len(LENGTHS), size)).astype(dtype) for size in sizes]
    return sequences, initial, params, sn.cells.rnn(name, params)


KINDS = [("float32", True), ("float64", True), ("float64", False)]


@pytest.mark.long(every=len(KINDS))
@pytest.mark.parametrize(("name", "kind"), in_turns(CELLS, KINDS), ids=str)
def test_cell_is_its_equations(name: str, kind: tuple[str, bool], engine: str):
    dtype, bias = kind
    sequences, initial, params, rnn = drawn(name, dtype, bias)
    given = initial[0] if len(initial) == 1 else dict(zip("hc", initial, strict=True))
    outputs, final = rnn(sn.Ragged.from_list(sequences), initial=given, engine=engine)
    exact = {key: value.astype("float64") for key, value in params.items()}
    for row, (sequence, output) in enumerate(zip(sequences, outputs, strict=True)):
        memory = [each[row].astype("float64") for each in initial]
        for step, x in enumerate(sequence.astype("float64")):
            memory = one_step(name, x, memory, exact)
            assert output.dtype == dtype
            assert_close(output[step], memory[0], step + 1, INPUTS + HIDDEN)
        finals = [final] if len(initial) == 1 else [final["h"], final["c"]]
        for actual, expected in zip(finals, memory, strict=True):
            assert_close(actual[row], expected, max(LENGTHS), INPUTS + HIDDEN)


@pytest.mark.parametrize("name", CELLS)
def test_step_is_a_function_of_arrays(name: str):
    sequences, initial, params, _ = drawn(name, "float64")
    given = initial[0] if len(initial) == 1 else dict(zip("hc", initial, strict=True))
    x = np.stack([sequences[0][0]] * len(LENGTHS))
    output, after = CELLS[name].step(x, given, params)
    memories = [after] if len(initial) == 1 else [after["h"], after["c"]]
    np.testing.assert_array_equal(output, memories[0])
    for row in range(len(LENGTHS)):
        expected = one_step(name, x[row], [each[row] for each in initial], params)
        for actual, right in zip(memories, expected, strict=True):
            assert_close(actual[row], right, 1, INPUTS + HIDDEN)


# ---- Keras


def swapped(array: np.ndarray, axis: int = -1) -> np.ndarray:
    """Keras' gates z r h as r z n."""
    z, r, n = np.split(array, 3, axis=axis)
    return np.concatenate([r, z, n], axis=axis)


def keras_layer(name: str, dtype: str, bias: bool) -> tuple[Any, str, dict[str, np.ndarray]]:
    """A Keras layer with random weights, our cell's name and the same weights for it."""
    options = {"return_sequences": True, "return_state": True, "use_bias": bias, "dtype": dtype}
    made: dict[str, Any] = {
        "gru": lambda: keras.layers.GRU(HIDDEN, reset_after=True, **options),
        "gru_reset_before": lambda: keras.layers.GRU(HIDDEN, reset_after=False, **options),
        "lstm": lambda: keras.layers.LSTM(HIDDEN, **options),
        "simple_rnn": lambda: keras.layers.SimpleRNN(HIDDEN, **options),
        "simple_rnn_relu": lambda: keras.layers.SimpleRNN(HIDDEN, activation="relu", **options),
    }
    layer = made[name]()
    layer.build((None, None, INPUTS))
    random = np.random.default_rng(5)
    most = 1 / np.sqrt(HIDDEN)
    layer.set_weights([random.uniform(-most, most, each.shape).astype(dtype) for each in layer.weights])
    weights = [each.detach().cpu().numpy().copy() for each in (weight.value for weight in layer.weights)]
    params = dict(zip("WR", weights, strict=False))
    if bias and name == "gru":
        params |= {"b": weights[2][0], "d": weights[2][1]}
    elif bias:
        params |= {"b": weights[2]}
    return layer, name, {k: swapped(v) for k, v in params.items()} if name.startswith("gru") else params


# keras.ops.matmul gives float32 for float64 (Keras 3.15 on torch). Two layers do without it.
KERAS = [
    *((name, "float32") for name in ("gru", "gru_reset_before", "lstm", "simple_rnn", "simple_rnn_relu")),
    *((name, "float64") for name in ("gru", "lstm")),
]


@pytest.mark.long(every=3)
@pytest.mark.parametrize(("kind", "bias"), in_turns(KERAS, [True, False]), ids=str)
def test_cell_is_the_one_of_keras(kind: tuple[str, str], bias: bool, engine: str):
    name, dtype = kind
    layer, cell, params = keras_layer(name, dtype, bias)
    x = np.random.default_rng(6).normal(size=(3, 9, INPUTS)).astype(dtype)
    with torch.no_grad():
        theirs, *states = (each.detach().cpu().numpy() for each in layer(x))
    outputs, final = sn.cells.rnn(cell, params)(x, engine=engine)
    assert outputs.dtype == theirs.dtype == dtype
    assert_close(outputs, theirs, 9, INPUTS + HIDDEN)
    for actual, expected in zip([final["h"], final["c"]] if cell == "lstm" else [final], states, strict=True):
        assert_close(actual, expected, 9, INPUTS + HIDDEN)


# ---- the table


@pytest.mark.parametrize("name", CELLS)
def test_parameters_are_as_their_shapes_say(name: str):
    cell = CELLS[name]
    params = cell.parameters(INPUTS, HIDDEN, dtype="float64")
    assert {key: value.shape for key, value in params.items()} == cell.shapes(INPUTS, HIDDEN)
    assert params["W"].shape == (INPUTS, HIDDEN * len(cell.gates))
    assert all(value.dtype == "float64" for value in params.values())
    every = np.concatenate([value.ravel() for value in params.values()])
    most = 1 / np.sqrt(HIDDEN)
    assert -most <= every.min() < -0.8 * most
    assert 0.8 * most < every.max() <= most
    again, other = cell.parameters(INPUTS, HIDDEN), cell.parameters(INPUTS, HIDDEN, seed=1)
    np.testing.assert_array_equal(again["R"], params["R"].astype("float32"))
    assert not np.array_equal(again["R"], other["R"])
    assert set(cell.parameters(INPUTS, HIDDEN, bias=False)) == set(params) - {"b", "d"}
    assert cell.step.__name__ == name


def test_memory_has_the_sizes_of_the_parameters():
    params = CELLS["lstm_projection"].parameters(INPUTS, HIDDEN, PROJECTED)
    assert CELLS["lstm_projection"].sizes(params) == (INPUTS, HIDDEN, PROJECTED)
    assert CELLS["lstm_projection"].memory(HIDDEN, PROJECTED) == {"h": PROJECTED, "c": HIDDEN}
    assert CELLS["lstm"].memory(HIDDEN) == {"h": HIDDEN, "c": HIDDEN}
    assert CELLS["gru"].memory(HIDDEN) == HIDDEN
    assert CELLS["minimal_gated_unit"].sizes(CELLS["minimal_gated_unit"].parameters(1, 1)) == (1, 1, None)


def test_recurrence_knows_its_inputs_before_the_first_call():
    assert "f32[15]" in str(sn.cells.rnn("gru", CELLS["gru"].parameters(INPUTS, 5)).net)


GRU = CELLS["gru"].parameters(INPUTS, HIDDEN)


@pytest.mark.parametrize(
    ("name", "params", "message"),
    [
        ("grue", GRU, "no cell is called 'grue'; there are simple_rnn, "),
        ("gru", {"W": GRU["W"]}, "gru was given no parameter R: it has W, R, b, d, and given are W"),
        ("gru", {}, "gru was given no parameter W: it has W, R, b, d, and given are none"),
        ("gru", GRU | {"bias": GRU["b"]}, "gru was given a parameter bias it does not know"),
        ("gru", GRU | {"b": GRU["b"][:-1]}, "b of gru has shape (20,) where (21,) fits the others"),
        ("gru", GRU | {"R": GRU["R"][:-1]}, "R of gru has shape (6, 21) where (7, 21) fits the others"),
        ("gru", GRU | {"W": GRU["W"][:, :-1]}, "3 gates (rzn) of 7, 5 inputs"),
        ("gru", GRU | {"R": GRU["b"]}, "W and R of gru have two axes, not (5, 21) and (21,)"),
        ("lstm", GRU, "of 5, 5 inputs"),
        ("lstm_peephole", CELLS["lstm"].parameters(INPUTS, HIDDEN), "lstm_peephole was given no parameter p"),
    ],
)
def test_parameters_that_do_not_fit(name: str, params: dict[str, np.ndarray], message: str):
    with pytest.raises(InputError, match=re.escape(message)):
        sn.cells.rnn(name, params)


def test_projection_of_a_cell_without():
    with pytest.raises(InputError, match="gru has no projection; leave projected= out"):
        CELLS["gru"].parameters(INPUTS, HIDDEN, PROJECTED)
