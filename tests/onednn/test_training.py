"""Gradients by oneDNN's backward pass beside torch's autograd in float64, step by step."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from tolerance import assert_close, tolerance

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.targets.onednn import OneDnnLibrary
from stepnet.errors import InputError, RefusedError
from tests.onednn.oracle import Case, case

pytestmark = pytest.mark.usefixtures("dnnl")
Array = np.ndarray
Tensor = torch.Tensor


def tensor(array: Any) -> Tensor:
    return torch.tensor(np.asarray(array, np.float64), requires_grad=True)


def gru_step(p: dict[str, Tensor], origin_mode: bool) -> Any:
    d = p["WeightH"].shape[0]
    flat = p["WeightH"].reshape(-1)
    gates, candidate = flat[: 2 * d * d].reshape(d, 2 * d), flat[2 * d * d :].reshape(d, d)

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        a = x @ p["WeightX"] + p["Bias"][0]
        u, r = torch.sigmoid(a[: 2 * d] + h @ gates).split(d)
        n = torch.tanh(a[2 * d :] + (r * h) @ candidate)
        return (u * h + (1 - u) * n if origin_mode else u * n + (1 - u) * h), c

    return step


def lstm_step(p: dict[str, Tensor], peepholes: bool) -> Any:
    d = p["Weight"].shape[0]
    b = p["Bias"][0]
    p_i, p_f, p_o = b[4 * d :].split(d) if peepholes else (torch.zeros(d, dtype=torch.float64),) * 3

    def step(x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        g, i, f, o = (x @ p["fc/Weight"] + h @ p["Weight"] + b[: 4 * d]).split(d)
        c = torch.sigmoid(f + p_f * c) * c + torch.sigmoid(i + p_i * c) * torch.tanh(g)
        return torch.sigmoid(o + p_o * c) * torch.tanh(c), c

    return step


def right(
    inputs: Case, step: Any, weights: dict[str, Tensor], reverse: bool, drawn: dict[str, Any]
) -> dict[str, Any]:
    """The gradients by autograd."""
    xs, h0, c0 = [tensor(x) for x in inputs.x], tensor(inputs.h0), tensor(inputs.c0)
    loss = sum((0 * each.sum() for each in (*weights.values(), h0)), torch.zeros((), dtype=torch.float64))
    for row, x in enumerate(xs):
        h, c = h0[row], c0[row]
        for t in reversed(range(len(x))) if reverse else range(len(x)):
            h, c = step(x[t], h, c)
            loss = loss + (torch.tensor(drawn["outputs"][row][t]) * h).sum()
        loss = loss + (torch.tensor(drawn["h"][row]) * h).sum() + (torch.tensor(drawn["c"][row]) * c).sum()
    wanted = [*xs, h0, c0, *weights.values()]
    grads = torch.autograd.grad(loss, wanted, allow_unused=True)
    arrays = [np.zeros(w.shape) if g is None else g.numpy() for w, g in zip(wanted, grads, strict=True)]
    count = len(xs)
    return {
        "x": arrays[:count],
        "h0": arrays[count],
        "c0": arrays[count + 1],
        "weights": dict(zip(weights, arrays[count + 2 :], strict=True)),
    }


def drawn_for(inputs: Case, with_c: bool) -> dict[str, Any]:
    """Random gradients of the results."""
    random = np.random.default_rng(9)
    rows, hidden = len(inputs.x), inputs.hidden
    return {
        "outputs": [random.normal(size=(len(x), hidden)) for x in inputs.x],
        "h": random.normal(size=(rows, hidden)),
        "c": random.normal(size=(rows, hidden)) * with_c,
    }


def check(
    layer: onednn.Layer, inputs: Case, step: Any, reverse: bool, is_lstm: bool, roundings: int = 16
) -> None:
    drawn = drawn_for(inputs, is_lstm)
    begin = (inputs.h0, inputs.c0) if is_lstm else (inputs.h0,)
    outputs, _, pullback = layer.vjp(inputs.ragged, *begin, reverse=reverse)
    plain, _ = layer(inputs.ragged, *begin, reverse=reverse)
    low = layer.recurrence is not None and layer.recurrence.dtype != "float32"
    bound = {"length": 20, "width": 30, "dtype": "bfloat16" if low else "float32"}
    assert_close(outputs.values, plain.values, **bound)
    d_outputs = outputs.with_values(
        np.concatenate([np.zeros((0, inputs.hidden)), *drawn["outputs"]]).astype("f4")
    )
    d_final = (
        {"h": drawn["h"].astype("f4"), "c": drawn["c"].astype("f4")} if is_lstm else drawn["h"].astype("f4")
    )
    made = pullback(d_outputs, d_final)
    weights = {name: tensor(array) for name, array in layer.source.arrays.items()}
    wanted = right(inputs, step(weights), weights, reverse, drawn)
    most = tolerance(
        "bfloat16" if low else "float32", max(map(len, inputs.x), default=0) * len(inputs.x), 8, roundings
    )

    def near(ours: Array, theirs: Array, name: str) -> None:
        assert ours.shape == theirs.shape
        scale = max(1.0, float(np.abs(theirs).max(initial=0)))
        away = np.abs(ours - theirs).max(initial=0) / scale
        assert away <= most, f"{name}: {away:.3g} away, where {most:.3g} is allowed"

    for ours, theirs in zip(made["x"].to_list(), wanted["x"], strict=True):
        near(ours, theirs, "x")
    for name in ("h0", "c0") if is_lstm else ("h0",):
        near(made[name], wanted[name], name)
    for name, theirs in wanted["weights"].items():
        near(made["weights"][name], theirs, name)


LENGTHS = [[2, 4, 3], [3], [4, 4], [2, 0, 4], [0, 0], [], [5, 5, 2, 2, 1], [1, 11, 7]]


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("origin_mode", [False, True])
def test_gru(lengths: list[int], reverse: bool, origin_mode: bool):
    inputs = case(lengths)
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias, origin_mode=origin_mode)
    check(layer, inputs, lambda p: gru_step(p, origin_mode), reverse, is_lstm=False)


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("biases", [4, 7])
def test_lstm(lengths: list[int], reverse: bool, biases: int):
    inputs = case(lengths, gates=4, biases=biases)
    layer = onednn.lstm_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    check(layer, inputs, lambda p: lstm_step(p, biases == 7), reverse, is_lstm=True)


@pytest.mark.parametrize("reverse", [False, True])
def test_bfloat16(dnnl: OneDnnLibrary, reverse: bool):
    if reason := dnnl.lacks("bfloat16"):
        pytest.skip(reason)
    inputs = case([2, 4, 3], 6, 12)
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias, dtype="bfloat16")
    check(layer, inputs, lambda p: gru_step(p, False), reverse, is_lstm=False, roundings=1)


TORCH = {
    "torch.gru": torch.nn.GRU,
    "torch.lstm": torch.nn.LSTM,
    "torch.rnn": torch.nn.RNN,
}


@pytest.mark.parametrize("layout", TORCH)
def test_layers_of_torch(layout: str):
    """Gradients come back in the layout of the weights, both biases included."""
    torch.manual_seed(0)
    module: Any = TORCH[layout](3, 5, batch_first=True, dtype=torch.float64)
    weights = {name: p.detach().numpy().astype("f4") for name, p in module.named_parameters()}
    semantics = {"candidate_activation": "tanh"} if layout == "torch.rnn" else {}
    layer = onednn.layer(weights, layout, semantics=semantics)
    x = np.random.default_rng(0).normal(size=(4, 6, 3)).astype("f4")
    given = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    theirs, _ = module(given)
    outputs, _, pullback = layer.vjp(x)
    assert_close(outputs, theirs.detach().numpy().astype("f4"), 6, 8)
    d = np.random.default_rng(1).normal(size=outputs.shape).astype("f4")
    (theirs * torch.tensor(d, dtype=torch.float64)).sum().backward()
    made = pullback(d)
    assert_close(made["x"], np.asarray(given.grad).astype("f4"), 24, 8)
    for name, parameter in module.named_parameters():
        assert_close(made["weights"][name], parameter.grad.numpy().astype("f4"), 24, 8)


def equal(first: Any, second: Any) -> None:
    """Asserts that two dicts of gradients have the same bits."""
    assert first.keys() == second.keys()
    for name, value in first.items():
        if isinstance(value, dict):
            equal(value, second[name])
        else:
            pair = (getattr(each, "values", each) for each in (value, second[name]))
            np.testing.assert_array_equal(*pair)


@pytest.mark.parametrize("layout", ["gru", "lstm"])
def test_passes_do_not_disturb_each_other(layout: str):
    """Two forward passes of the same shapes, then their gradients in either order, twice, in two threads."""
    gates = {"gru": 3, "lstm": 4}[layout]
    first, second = case([3, 0, 2], gates=gates), case([3, 0, 2], gates=gates, seed=1)
    make = onednn.gru_layer if layout == "gru" else onednn.lstm_layer
    layer = make(first.weight_x, first.weight_h, first.bias)
    wanted: list[Any] = []
    for each in (first, second):
        outputs, final, pullback = layer.vjp(each.ragged, each.h0)
        wanted.append(pullback(outputs, final))
    assert not np.array_equal(wanted[0]["x"].values, wanted[1]["x"].values)
    both = [layer.vjp(each.ragged, each.h0) for each in (first, second)]
    for place in (1, 0, 1, 0):
        outputs, final, pullback = both[place]
        equal(pullback(outputs, final), wanted[place])
        with ThreadPoolExecutor(1) as other:
            equal(other.submit(pullback, outputs, final).result(), wanted[place])


def test_primitives_of_gradients_are_used_again():
    inputs = case([3, 2])
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    for _ in range(3):
        layer.vjp(inputs.ragged)[2]()
    assert onednn.counters()["primitives"].misses == 2


def test_padding_cannot_overflow_into_the_gradients():
    """A memory that grows without bound: behind the end of a short sequence it would become infinite."""
    weights = {"weight_ih_l0": np.ones((2, 1), "f4"), "weight_hh_l0": np.full((2, 2), 2, "f4")}
    layer = onednn.layer(weights, "torch.rnn", semantics={"candidate_activation": "relu"})
    x = [np.ones((length, 1), "f4") for length in (2, 90)]
    x[1] *= 0
    outputs, _, pullback = layer.vjp(sn.Ragged.from_list(x), np.array([[1, 1], [0, 0]], "f4"))
    made = pullback(outputs.with_values(np.ones_like(outputs.values)))["weights"]
    # h1 = 1 + 2 + 2 = 5, h2 = 1 + 20 = 21; dh2 = 1, dh1 = 1 + 4 = 5; dR = dh2 h1 + dh1 h0, dW = dh2 x + dh1 x
    np.testing.assert_array_equal(made["weight_hh_l0"], np.full((2, 2), 1 * 5 + 5 * 1))
    np.testing.assert_array_equal(made["weight_ih_l0"], np.full((2, 1), 1 + 5))


def test_what_has_no_gradient():
    inputs = case([2])
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    low = layer.in_dtype("int8", layer.calibrate([inputs.ragged]))
    with pytest.raises(RefusedError, match="gradients of the cell gru in float32, bfloat16, not in int8"):
        low.vjp(inputs.ragged)
    with pytest.raises(RefusedError, match="runs on llvm"):
        onednn.gru_layer(inputs.weight_x, inputs.weight_h, activation="relu").vjp(inputs.ragged)
    outputs, _, pullback = layer.vjp(inputs.ragged)
    with pytest.raises(
        InputError, match=r"gradient of the outputs has shape \(2, 4\), and must have \(2, 5\)"
    ):
        pullback(outputs.with_values(np.zeros((2, 4), "f4")))
    for other in (np.zeros((2, 5), "f4"), "a", case([1, 1]).ragged.with_values(np.zeros((2, 5), "f4"))):
        with pytest.raises(InputError, match="gradient of the outputs is a Ragged of the lengths"):
            pullback(other)
    with pytest.raises(InputError, match="the gradient of h has shape"):
        pullback(outputs, np.zeros((2, 5), "f4"))


def test_gradients_of_an_array_have_its_form():
    """An array with its axes in another order has as many numbers."""
    inputs = case([2])
    layer = onednn.gru_layer(inputs.weight_x, inputs.weight_h, inputs.bias)
    outputs, _, pullback = layer.vjp(np.ones((4, 6, 3), "f4"))
    assert outputs.shape == (4, 6, 5)
    for shape in ((6, 4, 5), (24, 5)):
        with pytest.raises(InputError, match=r"must have \(4, 6, 5\)"):
            pullback(np.ones(shape, "f4"))


def test_gradients_of_memories_are_by_name():
    inputs = case([2])
    layer = onednn.lstm_layer(np.ones((3, 20), "f4"), np.ones((5, 20), "f4"))
    _, final, pullback = layer.vjp(inputs.ragged)
    with pytest.raises(InputError, match="a dict of 'h', 'c' or both, and there is no 'memory'"):
        pullback(None, {"memory": final["h"]})
    with pytest.raises(InputError, match="a dict of 'h', 'c' or both, not a ndarray"):
        pullback(None, final["h"])
