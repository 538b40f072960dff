"""Models in float16: their matrices and tables are rounded once, and all else is as in float32."""

import pickle
import re
from typing import Any

import numpy as np
import pytest
from installed_onednn import missing_onednn
from same_bits import assert_same_bits
from zoo import normal, rnn_of

import stepnet as sn
from stepnet.compiler.values import leaves
from stepnet.errors import InputError, RefusedError

X = normal(3, 7, 6)


def half(array: Any) -> np.ndarray:
    """The numbers of a matrix, rounded by NumPy; a vector as it is."""
    return array.astype("f2").astype("f4") if array.ndim > 1 else array


def rnn(name: str, inputs: int, hidden: int, rounded: bool = False) -> sn.RNN:
    """A known cell, whose matrices may be rounded."""
    params = rnn_of(name, inputs, hidden).params
    return sn.cells.rnn(name, {key: half(each) if rounded else each for key, each in params.items()})


def backward(rounded: bool) -> sn.RNN:
    """A GRU from the last step to the first."""
    params = rnn_of("gru", 6, 4).params
    own = {key: half(each) if rounded else each for key, each in params.items()}
    return sn.cells.rnn("gru", own, reverse=True)


def tagger(rounded: bool = False) -> sn.Graph:
    """A graph with layers that it captures, and parameters of its own."""
    layers = sn.Stack([rnn("gru", 6, 9, rounded), rnn("lstm", 9, 5, rounded)])
    params = {"D": normal(5, 3), "b": normal(3, seed=1)}
    params = {key: half(each) if rounded else each for key, each in params.items()}
    return sn.Graph(lambda x, p: sn.softmax(layers(x)[0] @ p["D"] + p["b"]), params, inputs=6)


MODELS: dict[str, Any] = {
    "rnn": lambda rounded: rnn("gru", 6, 9, rounded),
    "stack": lambda rounded: sn.Stack([rnn("gru", 6, 9, rounded), rnn("lstm", 9, 5, rounded)]),
    "bidirectional": lambda rounded: sn.Bidirectional(rnn("gru", 6, 4, rounded), backward(rounded)),
    "graph": tagger,
}


def squared(y: Any, goal: Any) -> Any:
    """A loss of each step."""
    return np.sum((y - goal) ** 2, axis=-1)


@pytest.mark.parametrize("engine", ["auto", "interpret"])
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_in_float32_with_rounded_matrices(name: str, engine: str):
    model, right = (MODELS[name](rounded) for rounded in (False, True))
    small = sn.quantize(model, [X], "float16")
    expected = leaves(right(X, engine=engine))
    assert_same_bits(leaves(small(X, engine=engine)), expected)
    if name != "graph":  # whose model function is local
        assert_same_bits(leaves(pickle.loads(pickle.dumps(small))(X, engine=engine)), expected)
    exact = leaves(model(X, engine=engine))[0]
    error = np.abs(expected[0].astype("f8") - exact)
    assert error.max() > 0
    (measured,) = small.report.outputs
    if engine == "auto":
        assert measured.largest == pytest.approx(error.max())
    assert {row.dtype for row in small.report.recurrences} == {"float16"}


def test_gradients_and_streams_are_those_of_the_rounded_model():
    small, right = sn.quantize(rnn("gru", 6, 9), [X], "float16"), rnn("gru", 6, 9, rounded=True)
    streams = [each.stream(rows=3) for each in (small, right)]
    for step in range(3):
        assert_same_bits(*(stream.step(X[:, step]) for stream in streams))
    goal = normal(3, 7, 9)
    first, second = (sn.value_and_grad(squared, each)(X, goal) for each in (small, right))
    assert_same_bits(first[0], second[0])
    assert_same_bits(first[1].params, second[1].params)


def test_onednn_computes_in_float32_too():
    if reason := missing_onednn():
        pytest.skip(reason)
    small, right = sn.quantize(rnn("lstm", 6, 9), [X], "float16"), rnn("lstm", 6, 9, rounded=True)
    assert_same_bits(leaves(small(X, engine="onednn")), leaves(right(X, engine="onednn")))


def test_other_inputs_are_traced_with_the_rounded_matrices():
    small, right = sn.quantize(tagger(), [X], "float16"), tagger(rounded=True)
    wide = X.astype("f8")
    assert_same_bits(small(wide), right(wide))


def test_a_bound_keeps_the_model_as_it_is():
    for name, make in MODELS.items():
        model = make(False)
        same = sn.quantize(model, [X], "float16", within=1e-9)
        assert_same_bits(leaves(same(X)), leaves(model(X)))
        assert "not float16: an output is then more than 1e-07% away" in str(same.report), name
        assert same.report.outputs[0].largest == 0


def test_what_is_refused():
    dense = sn.Graph(lambda x, p: x @ p, normal(6, 2), inputs=6)
    with pytest.raises(RefusedError, match=re.escape("build it with dtype='float16'")):
        sn.quantize(dense, [X], "float16")
    with pytest.raises(InputError, match="activations need weights in int8"):
        sn.quantize(rnn("gru", 6, 9), [X], "float16", activations="int8")
    small = sn.quantize(rnn("gru", 6, 9), [X], "float16")
    with pytest.raises(InputError, match="that is not quantized"):
        sn.quantize(small, [X], "float16")
