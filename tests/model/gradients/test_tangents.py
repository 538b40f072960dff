"""Tangents of models: against differences and gradients, on every engine, and what is refused."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gradcheck import assert_gradient, assert_tangent, segments_of
from random_gradients import assert_adjoint, cast, gradients_of, plain, random_like
from same_bits import assert_same_bits
from tolerance import assert_close
from turns import in_turns
from zoo import rnn_of, uniform

import stepnet as sn
from stepnet.compiler.grad import vjp
from stepnet.compiler.values import leaves
from stepnet.errors import StepnetError

LENGTHS = (3, 0, 1, 5)
WIDTH, SEED = 16, 3


def numbers(*shape: int) -> Any:
    return uniform(*shape, dtype="float64")


def sequences(features: int = 3, lengths: tuple[int, ...] = LENGTHS) -> sn.Ragged:
    return sn.Ragged.from_list([numbers(length, features) for length in lengths])


def cell(name: str, dtype: str, inputs: int = 3, reverse: bool = False) -> sn.RNN:
    return rnn_of(name, inputs, 4, dtype=dtype, reverse=reverse)


def layers(dtype: str) -> sn.Stack:
    both = sn.Bidirectional(cell("lstm", dtype, 4), cell("gru", dtype, 4, True))
    return sn.Stack([cell("gru", dtype), both])


def nested(dtype: str) -> sn.RNN:
    words = cell("gru", dtype)

    def step(x: Any, h: Any, p: Any) -> Any:
        outputs, last = words(x, initial=h)
        h = np.tanh(last @ p + sn.reduce(outputs, "max"))
        return h, h

    return sn.RNN(step, numbers(4, 4).astype(dtype), memory=4)


def attending(dtype: str) -> sn.Graph:
    def model(x: Any, p: Any) -> Any:
        h, _ = cell("gru", dtype)(x)
        mixed = sn.attention(h @ p["q"], h @ p["k"], h, heads=2)
        strided = sn.max_pool1d(sn.conv1d(mixed, p["w"]), 2, stride=2)
        return {"steps": strided, "mean": sn.reduce(strided, "mean")}

    params = {"q": numbers(4, 4), "k": numbers(4, 4), "w": numbers(3, 4, 2)}
    return sn.Graph(model, cast(params, dtype), inputs=sn.Spec(3, dtype))


def documents() -> sn.Ragged:
    return sn.Ragged.from_list([[numbers(n, 3) for n in one] for one in ([3, 0, 1], [], [2], [0, 4])])


MODELS: dict[str, tuple[Callable[[str], Any], sn.Ragged]] = {
    "layers": (layers, sequences()),
    "nested": (nested, documents()),
    "attention and convolutions": (attending, sequences()),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize(("name", "dtype"), in_turns(MODELS, ["float32", "float64"]))
def test_machine_code_has_the_tangents_of_the_interpreter(name: str, dtype: str) -> None:
    make, x = MODELS[name]
    model = make("float64")
    tangents = {"inputs": random_like(x, 1), "params": random_like(model.params, 2)}
    right = sn.jvp(model)(x, tangents, engine="interpret")
    narrow = {kind: cast(part, dtype) for kind, part in tangents.items()}
    found = sn.jvp(make(dtype))(cast(x, dtype), narrow, engine="llvm")
    for one, wide in zip(leaves(found), leaves(right), strict=True):
        assert plain(one)[0].dtype == dtype
        assert_close(plain(one)[0], plain(wide)[0], 24, WIDTH)


def test_the_tangents_of_a_graph_are_the_adjoint_of_its_gradients() -> None:
    graph, x = attending("float64"), sequences()
    outputs, backward = sn.vjp(graph)(x)
    slopes = backward(random_like(outputs, SEED))
    directions = {"params": random_like(slopes.params, SEED), "inputs": random_like(slopes.inputs, SEED)}
    _, tangents = sn.jvp(graph)(x, directions)
    sides = [
        sum(float(np.sum(a * b)) for a, b in zip(plain(left), plain(right), strict=True))
        for left, right in (
            (random_like(outputs, SEED), tangents),
            (slopes.params, directions["params"]),
            (slopes.inputs, directions["inputs"]),
        )
    ]
    assert abs(sides[0] - sides[1] - sides[2]) < 1e-10


@pytest.mark.parametrize("name", ["lstm", "gru"])
def test_second_derivatives_in_both_orders(name: str) -> None:
    net = sn.Bidirectional(cell(name, "float64"), cell(name, "float64", reverse=True))
    net(sequences())
    assert_gradient(assert_tangent(net.net, segments_of(LENGTHS)), segments_of(LENGTHS))
    assert_tangent(vjp(net.net), segments_of(LENGTHS))


def test_attention_and_convolutions() -> None:
    assert_tangent(attending("float64").net, segments_of((3, 1, 5)))


@pytest.mark.parametrize("reverse", [False, True])
def test_the_tangents_of_rows_that_end_early(reverse: bool) -> None:
    params = {"W": numbers(3, 3), "R": numbers(3, 3) / 2}

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(x @ p["W"] + h @ p["R"])
        return h, h

    rnn = sn.RNN(step, params, memory=3, reverse=reverse, until=lambda y, h: h[:, 0] > 0.2)
    given = {"sequences": sequences(3, (5, 0, 1, 4, 6)), "initial": numbers(5, 3)}
    (outputs, _), gradients = gradients_of(rnn, given, SEED, engine="interpret")
    assert outputs.lengths.sum() < given["sequences"].lengths.sum()
    slopes = {"params": gradients.params, "inputs": gradients.inputs, "initial": gradients.initial}
    assert_adjoint(rnn, given, slopes, SEED)


def test_tangents_that_are_left_out_are_zeros() -> None:
    rnn, x = cell("gru", "float64"), numbers(2, 4, 3)
    whole = {"inputs": numbers(2, 4, 3), "params": None, "initial": np.zeros((2, 4))}
    for tangents in ({"inputs": whole["inputs"]}, whole):
        _, (outputs, final) = sn.jvp(rnn)(x, tangents)
        _, (right, last) = sn.jvp(rnn)(x, whole)
        assert_close(outputs, right)
        assert_close(final, last)
    (_, final), (outputs, last) = sn.jvp(rnn)(x, {})
    assert final.any()
    assert not outputs.any()
    assert not last.any()


def test_integers_have_no_tangents() -> None:
    def step(x: Any, memory: Any, p: Any) -> Any:
        h, count = memory
        h = np.tanh(p[x] + h) * (count + 1)[:, None]
        return (h, count), (h, count + 1)

    rnn = sn.RNN(step, numbers(5, 3), memory=(3, sn.Spec((), "int64")))
    words = np.array([[0, 3, 1]])
    _, ((moved, outputs), (h, count)) = sn.jvp(rnn)(words, {"params": numbers(5, 3), "initial": None})
    assert moved.shape == (1, 3, 3)
    assert h.any()
    assert outputs is None
    assert count is None
    with pytest.raises(StepnetError, match="the tangent of inputs is given, but values of int64 have no"):
        sn.jvp(rnn)(words, {"inputs": words})


REFUSED: dict[str, Any] = {
    "tangents is a dict with the tangents of some of 'params', 'inputs'": np.ones((1, 2, 3)),
    "tangents are of some of 'params', 'inputs', 'initial', 'statics', not 'outputs'": {
        "outputs": np.ones(1)
    },
    "the tangent of inputs is [1, 3, 3]; it should be [1, 2, 3]": {"inputs": np.ones((1, 3, 3))},
    "the tangent of inputs is a Ragged; it should be an array [1, 2, 3], as the argument is": {
        "inputs": sequences()
    },
    "the tangents of params are array; params are {W: array": {"params": np.ones(3)},
}


@pytest.mark.parametrize("message", REFUSED)
def test_tangents_that_do_not_fit_are_refused(message: str) -> None:
    with pytest.raises(StepnetError, match=re.escape(message)):
        sn.jvp(cell("gru", "float64"))(np.ones((1, 2, 3)), REFUSED[message])


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ((1, 4), "float64), in which sequence 0 has length 1; it should be Ragged(2 sequences of 1 to 4 "),
        ((1, 4), "3 features, float64), in which sequence 0 has length 4"),
        ((4, 1, 1), "Ragged(3 sequences of 1 to 4 steps, 3 features, float64); it should be Ragged(2 "),
    ],
)
def test_a_tangent_of_other_lengths_is_refused(lengths: tuple[int, ...], message: str) -> None:
    with pytest.raises(StepnetError, match=re.escape(message)):
        sn.jvp(cell("gru", "float64"))(sequences(3, (4, 1)), {"inputs": sequences(3, lengths)})


def test_tangents_of_half_precision_are_wide() -> None:
    rnn = sn.RNN(lambda x, h, W: (h + x * W, h + x * W), np.array([2.0], "float16"), memory=1)
    x = np.ones((1, 2, 1), "float16")
    results, tangents = sn.jvp(rnn)(x, {"inputs": x})
    assert [array.dtype for array in (*results, *tangents)] == ["float16"] * 2 + ["float32"] * 2


@pytest.mark.parametrize("value", [np.tanh, 3])
def test_tangents_are_those_of_models(value: Any) -> None:
    message = (
        f"gradients are of an RNN, a Stack, a Bidirectional or a Graph, not {value}: give a model such as"
    )
    with pytest.raises(StepnetError, match=message):
        sn.jvp(value)


@pytest.mark.parametrize(
    ("make", "x"), [(cell, numbers(2, 4, 3)), (cell, sequences()), (attending, sequences())]
)
def test_later_calls_have_the_bits_of_the_first(make: Callable[..., Any], x: Any) -> None:
    """Also with other numbers, and where tangents are of other arguments, or one array has none."""
    model = cell("lstm", "float32") if make is cell else make("float32")
    push, given, moved = sn.jvp(model), x, dict[str, Any]()
    for seed in range(4):
        given = cast(random_like(x, seed), "float32")
        moved = {"inputs": random_like(given, seed + 9), "params": random_like(model.params, seed + 20)}
        moved["params"] = {**moved["params"], "b" if make is cell else "w": None}
        assert_same_bits(push(given, moved), sn.jvp(model)(given, moved))
    for other in ({**moved, "params": model.params}, {"inputs": moved["inputs"]}, {}):
        assert_same_bits(push(given, other), sn.jvp(model)(given, other))
    with pytest.raises(StepnetError, match="the tangent of inputs is"):
        push(given, {**moved, "inputs": numbers(1, 1, 3)})
    if make is cell:
        begun = {"initial": {"h": np.ones((len(x), 4), "float32"), "c": None}}
        assert_same_bits([push(given, begun) for _ in range(3)], [sn.jvp(model)(given, begun)] * 3)
