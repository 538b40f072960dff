"""GRUs with attention beside NumPy's equations, step by step; and why they have no gradients."""

from typing import Any

import numpy as np
import pytest
from tolerance import assert_close, distance, tolerance

import stepnet as sn
from stepnet import onednn
from stepnet.compiler.targets.onednn import OneDnnLibrary
from stepnet.compiler.targets.onednn.primitives import PrimitiveRun, RecurrenceWeights
from stepnet.compiler.targets.onednn.recurrence import OneDnnRecurrence
from stepnet.errors import InputError, RefusedError
from tests.onednn.oracle import Case, case, sigmoid
from tests.onednn.test_primitives import drawn

pytestmark = pytest.mark.usefixtures("dnnl")
Array = np.ndarray
LENGTHS = [[2, 4, 3], [3], [4, 4], [2, 0, 4], [0, 0], [], [1, 11, 7]]


def attention_of(inputs: Case) -> list[Array]:
    """One number from 0 to 1 per step, both ends among them."""
    random = np.random.default_rng(5)
    made = [random.uniform(size=len(x)).astype("f4") for x in inputs.x]
    for a in made:
        a[:2] = [0, 1][: len(a)]
    return made


def ragged(values: list[Array], shape: tuple[int, ...]) -> sn.Ragged:
    """Sequences with a feature shape, of none too."""
    offsets = np.concatenate([[0], np.cumsum([len(each) for each in values])]).astype(np.int64)
    whole = np.concatenate([np.zeros((0, *shape), "f4"), *(each.reshape(-1, *shape) for each in values)])
    return sn.Ragged(whole, (offsets,))


def torch_weights(inputs: Case) -> dict[str, Array]:
    """The weights of a torch.nn.GRU, with both biases."""
    random = np.random.default_rng(1)
    hidden = inputs.hidden
    shapes = {"weight_ih_l0": (3 * hidden, 3), "weight_hh_l0": (3 * hidden, hidden)}
    shapes |= {"bias_ih_l0": (3 * hidden,), "bias_hh_l0": (3 * hidden,)}
    return {name: random.normal(size=shape).astype("f4") / 2 for name, shape in shapes.items()}


def torch_step(p: dict[str, Array], x: Array, h: Array, a: float) -> Array:
    """torch.nn.GRU's equations, with the update gate weighed."""
    own = np.split(x @ p["weight_ih_l0"].T + p["bias_ih_l0"], 3)
    inner = np.split(h @ p["weight_hh_l0"].T + p["bias_hh_l0"], 3)
    r, z = sigmoid(own[0] + inner[0]), sigmoid(own[1] + inner[1])
    n = np.tanh(own[2] + r * inner[2])
    z = (1 - a) * z
    return (1 - z) * n + z * h


def paddle_step(p: dict[str, Array], x: Array, h: Array, a: float) -> Array:
    """Paddle's equations, whose gate u writes: what keeps is its complement."""
    d = p["WeightH"].shape[0]
    flat = p["WeightH"].reshape(-1)
    gates, candidate = flat[: 2 * d * d].reshape(d, 2 * d), flat[2 * d * d :].reshape(d, d)
    own = x @ p["WeightX"] + p["Bias"][0]
    u, r = np.split(sigmoid(own[: 2 * d] + h @ gates), 2)
    n = np.tanh(own[2 * d :] + (r * h) @ candidate)
    keeps = (1 - a) * (1 - u)
    return keeps * h + (1 - keeps) * n


CELLS: dict[str, Any] = {"torch.gru": torch_step, "paddle.fusion_gru": paddle_step}


def weights_of(layout: str, inputs: Case) -> dict[str, Array]:
    if layout == "torch.gru":
        return torch_weights(inputs)
    return {"WeightX": inputs.weight_x, "WeightH": inputs.weight_h, "Bias": inputs.bias}


def semantics_of(layout: str) -> dict[str, Any]:
    if layout == "torch.gru":
        return {}
    return {"update": "write", "candidate_activation": "tanh", "gate_activation": "sigmoid"}


@pytest.mark.long(pairs=True)
@pytest.mark.parametrize("lengths", LENGTHS, ids=str)
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("layout", CELLS)
def test_values(layout: str, reverse: bool, lengths: list[int]):
    inputs, step = case(lengths), CELLS[layout]
    weights, attention = weights_of(layout, inputs), attention_of(inputs)
    layer = onednn.augru(weights, layout, semantics=semantics_of(layout))
    outputs, final = layer(inputs.ragged, inputs.h0, attention=ragged(attention, ()), reverse=reverse)
    p = {name: array.astype("f8") for name, array in weights.items()}
    for row, x in enumerate(inputs.x):
        h, steps = inputs.h0[row].astype("f8"), np.zeros((len(x), inputs.hidden))
        for t in reversed(range(len(x))) if reverse else range(len(x)):
            h = steps[t] = step(p, x[t].astype("f8"), h, float(attention[row][t]))
        assert_close(final[row], h, 20, 30)
        assert_close(outputs.to_list()[row], steps, 20, 30)


def test_arrays_as_well():
    """[batch, time, features], and attention with or without an axis of its own."""
    inputs = case([4, 4])
    layer = onednn.augru(torch_weights(inputs), "torch.gru")
    x, a = np.stack(inputs.x), np.stack(attention_of(inputs))
    right, last = layer(inputs.ragged, attention=ragged(attention_of(inputs), ()))
    for given in (a, a[..., None]):
        outputs, final = layer(x, attention=given)
        np.testing.assert_array_equal(outputs.reshape(-1, inputs.hidden), right.values)
        np.testing.assert_array_equal(final, last)


def test_no_attention_is_the_gru_and_all_of_it_the_candidate():
    inputs = case([2, 4, 3])
    weights = torch_weights(inputs)
    attending, plain = onednn.augru(weights, "torch.gru"), onednn.layer(weights, "torch.gru")
    count = len(inputs.ragged.values)
    zeros = inputs.ragged.with_values(np.zeros((count,), "f4"))
    right = plain(inputs.ragged, inputs.h0)
    for ours, theirs in zip(attending(inputs.ragged, inputs.h0, attention=zeros), right, strict=True):
        assert_close(getattr(ours, "values", ours), getattr(theirs, "values", theirs), 4, 8)
    ones, _ = attending(inputs.ragged, inputs.h0, attention=zeros.with_values(np.ones((count,), "f4")))
    x, h = inputs.x[0][0].astype("f8"), inputs.h0[0].astype("f8")
    own = np.split(x @ weights["weight_ih_l0"].T + weights["bias_ih_l0"], 3)
    inner = np.split(h @ weights["weight_hh_l0"].T + weights["bias_hh_l0"], 3)
    assert_close(ones.values[0], np.tanh(own[2] + sigmoid(own[0] + inner[0]) * inner[2]), 4, 8)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_halves(dnnl: OneDnnLibrary, dtype: str):
    if reason := dnnl.lacks(dtype):
        pytest.skip(reason)
    inputs = case([2, 4, 3])
    whole = onednn.augru(torch_weights(inputs), "torch.gru")
    low = onednn.augru(torch_weights(inputs), "torch.gru", dtype=dtype)
    given = ragged(attention_of(inputs), ())
    right, ours = whole(inputs.ragged, attention=given)[0], low(inputs.ragged, attention=given)[0]
    away = np.abs(ours.values - right.values).max()
    assert 0 < away <= tolerance(dtype, 4, 1, roundings=1)


MISTAKES: dict[str, tuple[Any, str]] = {
    "none": (None, "takes attention=, one number for each step of x"),
    "an array": (np.ones((2, 3), "f4"), "attention is an array, and x a Ragged: give both in the same form"),
    "other lengths": (
        sn.Ragged.from_list([np.ones(2, "f4")]),
        "attention is a Ragged(1 sequence of ",
    ),
    "wider": (
        sn.Ragged.from_list([np.ones((2, 2), "f4"), np.ones((3, 2), "f4")]),
        "attention has shape [5, 2], and must have [5] or [5, 1]",
    ),
    "float64": (sn.Ragged.from_list([np.ones(2), np.ones(3)]), "attention has dtype float64"),
}


@pytest.mark.parametrize(("attention", "message"), MISTAKES.values(), ids=MISTAKES)
def test_mistakes(attention: Any, message: str):
    inputs = case([2, 3])
    layer = onednn.augru(torch_weights(inputs), "torch.gru")
    with pytest.raises(InputError) as error:
        layer(inputs.ragged, attention=attention)
    assert message in str(error.value)


def test_what_is_refused():
    inputs = case([2, 3])
    given = ragged(attention_of(inputs), ())
    layer = onednn.layer(torch_weights(inputs), "torch.gru")
    with pytest.raises(InputError, match=r"attention is for a layer of onednn\.augru, and this is Layer"):
        layer(inputs.ragged, attention=given)
    relu = semantics_of("paddle.fusion_gru") | {"candidate_activation": "relu"}
    with pytest.raises(RefusedError, match="a GRU with attention runs on oneDNN alone, and "):
        onednn.augru(weights_of("paddle.fusion_gru", inputs), "paddle.fusion_gru", semantics=relu)
    rnn = {"weight_ih_l0": np.ones((5, 3), "f4"), "weight_hh_l0": np.ones((5, 5), "f4")}
    with pytest.raises(
        InputError, match=r"augru takes the weights of a GRU, and torch\.rnn is a layout of the cell rnn"
    ):
        onednn.augru(rnn, "torch.rnn", semantics={"candidate_activation": "tanh"})
    with pytest.raises(RefusedError, match=r"oneDNN has the cell lbr_augru in .*, not in int8"):
        onednn.augru(torch_weights(inputs), "torch.gru", dtype="int8")
    with pytest.raises(RefusedError, match="backward pass of the cell lbr_augru is not the derivative"):
        onednn.augru(torch_weights(inputs), "torch.gru").vjp(inputs.ragged)


@pytest.mark.parametrize("cell", ["augru", "lbr_augru"])
def test_the_backward_primitive_is_no_derivative(dnnl: OneDnnLibrary, cell: str):
    """Of the bias of the candidate it gives what a GRU without attention has. Where this fails, a library has
    mended it, and the refusal is to go.
    """
    recurrence = OneDnnRecurrence(cell, 3, 5, training=True)
    weights, inputs = drawn(recurrence, 1, 2)
    forward = PrimitiveRun(dnnl, recurrence, 1, 2)
    backward = PrimitiveRun(dnnl, recurrence, 1, 2, forward)
    for run in (forward, backward):
        RecurrenceWeights.of(recurrence, weights).bind(run)
    for name, array in inputs.items():
        forward.view(name)[...] = array
    forward.run()
    backward.view("diff_dst_layer")[...] = 1
    backward.view("diff_dst_iter")[...] = 0
    backward.run()
    own = {name: array[0, 0].astype("f8") for name, array in weights.items()}
    x, h, a = inputs["src_layer"][0], inputs["src_iter"][0, 0], inputs["attention"][0]
    from_x, from_h = (
        np.einsum("ni,igh->gnh", *pair) for pair in ((x, own["weights_layer"]), (h, own["weights_iter"]))
    )
    u, r = sigmoid(from_x[:2] + from_h[:2] + own["bias"][:2, None])
    inner = r * (from_h[2] + own["bias"][3]) if cell == "lbr_augru" else (r * h) @ own["weights_iter"][:, 2]
    slope = 1 - np.tanh(from_x[2] + own["bias"][2] + inner) ** 2
    made = backward.view("diff_bias")[0, 0, 2]
    assert_close(made, ((1 - u) * slope).sum(0), 2, 8)
    assert distance(made, ((1 - (1 - a) * u) * slope).sum(0)) > 0.1
