"""The named values of a graph at every step, against the same model in NumPy."""

from typing import Any

import numpy as np
import pytest
from tolerance import assert_close
from zoo import normal, rnn_of, sequences, simple

import stepnet as sn
from stepnet.errors import InputError, StepError

Array = np.ndarray
X = sequences([3, 0, 2], 3, dtype="float64")
PARAMS = {"W": normal(3, 4, dtype="float64"), "R": normal(4, 4, seed=1, dtype="float64")}
RNN = sn.RNN(simple, PARAMS, memory=4)
BACK = sn.RNN(simple, PARAMS, memory=4, reverse=True)


def scaled(x: Any, weight: Any) -> Any:
    product = x * weight
    return product + 1


def model(x: Any, params: Any, statics: Any) -> Any:
    shifted = scaled(x, params)
    beside = shifted + sn.expand(statics, shifted)
    h, final = RNN(beside)
    backwards, _ = BACK(beside)
    mean = sn.reduce(h, "mean")
    return {"h": h * 2, "mean": mean, "back": backwards, "final": final}


def by_hand(x: Array, scale: float, still: Array) -> dict[str, list[Array]]:
    """The values of the variables at each step of one sequence."""
    beside = x * scale + 1 + still
    h, states = np.zeros(4), [np.zeros(4)]
    for step in beside:
        h, _ = simple(step, h, PARAMS)
        states.append(h)
    back, found = np.zeros(4), list[Array]()
    for step in beside[::-1]:
        back, _ = simple(step, back, PARAMS)
        found.append(back)
    mean = np.mean(states[1:], axis=0)
    return {
        "shifted": [*(x * scale + 1)],
        "scaled.product": [*(x * scale)],
        "beside": [*beside],
        "statics": [still] * len(x),
        "RNN.before": states[:-1],
        "RNN.after": states[1:],
        "outputs.h": [2 * state for state in states[1:]],
        "outputs.mean": [mean] * len(x),
        "mean": [mean] * len(x),
        "BACK.after": found[::-1],
        "outputs.back": found[::-1],
        "outputs.final": [states[-1]] * len(x),
    }


def test_values_are_those_of_the_model_in_numpy() -> None:
    scale, still = np.array(0.5), normal(3, 3, dtype="float64")
    scopes = sn.Graph(model, scale).trace_steps(X, statics=still)
    for row, (x, own) in enumerate(zip(X.to_list(), still, strict=True)):
        for name, values in by_hand(x, 0.5, own).items() if len(x) else ():
            assert_close(scopes[name].to_list()[row], np.array(values), 3, 4)
    assert scopes["h"].lengths.tolist() == [3, 0, 2]
    assert repr(scopes) == f"Scopes({len(scopes)} values, 3 sequences of 0 to 3 steps)"


def test_padded_arrays_are_their_sequences() -> None:
    padded, still = np.zeros((3, 4, 3)), normal(3, 3, dtype="float64")
    for row, x in enumerate(X.to_list()):
        padded[row, : len(x)] = x
    graph = sn.Graph(model, np.array(0.5))
    right = graph.trace_steps(X, statics=still)
    for given, time_major in ((padded, False), (padded.swapaxes(0, 1).copy(), True)):
        scopes = graph.trace_steps(given, statics=still, lengths=X.lengths, time_major=time_major)
        assert list(scopes) == list(right)
        np.testing.assert_array_equal(scopes["outputs.h"].values, right["outputs.h"].values)


def test_inner_sequences_and_constants() -> None:
    def reads(words: Any, params: Any) -> Any:
        doubled = 2 * words
        sentence = sn.reduce(doubled, "sum")
        total, _ = sn.RNN(lambda x, h, p: (h + x, h + x), memory=())(sentence)
        return doubled, total, np.float64(3.0)

    documents = sn.Ragged.from_list([[np.array([1.0, 2.0]), np.array([3.0])], [np.zeros(0)]])
    scopes = sn.Graph(reads).trace_steps(documents)
    assert scopes["doubled"].levels == 2
    assert scopes["sentence"].to_list()[0].tolist() == [6.0, 6.0]
    assert scopes["outputs.1"].to_list()[0].tolist() == [6.0, 12.0]
    assert scopes["outputs.2"].to_list()[1].tolist() == [3.0]


def test_what_is_refused() -> None:
    graph, still = sn.Graph(model, np.array(0.5)), np.zeros((3, 3))
    for name in ("initial", "mask", "begun"):
        given: Any = {name: 1}
        with pytest.raises(InputError, match=f"{name}= is not for trace_steps of a graph: trace one of its"):
            graph.trace_steps(X, statics=still, **given)
    with pytest.raises(InputError, match="masked is 'repeat' or 'zero', not 'no'"):
        graph.trace_steps(X, statics=still, masked="no")
    with pytest.raises(InputError, match="none were given"):
        graph.trace_steps(X)
    with pytest.raises(StepError, match="trace_steps is not for a graph inside a model"):
        sn.Graph(lambda x, params: graph.trace_steps(x))(X)
    layer = rnn_of("gru", 3, 4)
    small = sn.quantize(sn.Graph(lambda x, params: layer(x)[0]), [normal(2, 5, 3)], "int8")
    with pytest.raises(InputError, match="the steps of a quantized graph are not traced"):
        small.trace_steps(normal(2, 5, 3))
