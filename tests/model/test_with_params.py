"""`RNN.with_params`: other parameters for code that is compiled already."""

from typing import Any

import numpy as np
import pytest
from same_bits import assert_same_bits

import stepnet as sn
from stepnet import cells
from stepnet.compiler.targets.cpu import engine
from stepnet.errors import InputError

GRU = cells.CELLS["gru"]
X = np.random.default_rng(0).normal(size=(3, 6, 5)).astype("f4")


def parameters(seed: int) -> dict[str, Any]:
    return dict(GRU.parameters(5, 7, seed=seed))


@pytest.mark.parametrize("asked", ["llvm", "interpret"])
def test_it_computes_what_one_made_of_them_computes(asked: str):
    rnn = cells.rnn("gru", parameters(1))
    before = rnn(X, engine=asked)
    other = rnn.with_params(parameters(2))
    assert_same_bits(other(X, engine=asked), cells.rnn("gru", parameters(2))(X, engine=asked))
    assert_same_bits(rnn(X, engine=asked), before)


def test_nothing_is_traced_or_compiled(monkeypatch: pytest.MonkeyPatch):
    calls: list[int] = []

    def step(x: Any, h: Any, p: Any) -> Any:
        calls.append(1)
        h = np.tanh(x @ p["W"] + h * p["r"])
        return h, h

    def params(value: float) -> Any:
        return {"W": np.full((5, 4), value, "f4"), "r": np.full(4, value, "f4")}

    rnn = sn.RNN(step, params(0.5), memory=4)
    rnn(X)
    rnn(X, mask=np.ones((3, 6), bool))
    traced = len(calls)
    monkeypatch.setattr(engine, "compiled", lambda *_: pytest.fail("it is compiled anew"))
    for value in (0.25, 1.0):
        other = rnn.with_params(params(value))
        assert other(X)[0][0, 0, 0] == pytest.approx(np.tanh(X[0, 0].sum() * value), rel=1e-5)
        assert other(X, mask=np.zeros((3, 6), bool))[0].sum() == 0
        assert other.program.plan is rnn.program.plan
    assert len(calls) == traced


def test_calls_of_a_shape_that_was_seen_do_not_use_those_before():
    rnn = cells.rnn("gru", parameters(1))
    for _ in range(3):
        rnn(X)
    other = rnn.with_params(parameters(2))
    for _ in range(3):
        assert_same_bits(other(X), cells.rnn("gru", parameters(2))(X))


def test_nested_sequences_and_streams():
    rnn = sn.RNN(
        lambda x, h, p: (lambda new: (new, new))(h + sn.reduce(x, "sum") @ p), np.ones((5, 2), "f4"), memory=2
    )
    groups = sn.Ragged.from_list([[X[0], X[1]], [X[2]]])
    rnn(groups)
    other = rnn.with_params(np.full((5, 2), 3, "f4"))
    np.testing.assert_allclose(other(groups)[1], 3 * rnn(groups)[1], rtol=1e-5)
    gru = cells.rnn("gru", parameters(1)).with_params(parameters(2))
    stream = gru.stream(rows=3)
    assert_same_bits(np.stack([stream.step(X[:, at]) for at in range(6)], axis=1), gru(X)[0])


def test_the_parameters_are_copied_and_may_come_in_another_order():
    rnn, new = cells.rnn("gru", parameters(1)), parameters(2)
    other = rnn.with_params(dict(reversed(new.items())))
    right = cells.rnn("gru", new)(X)
    for array in new.values():
        array[...] = 0
    assert_same_bits(other(X), right)


WRONG = {
    "shape": (lambda p: {**p, "W": p["W"][:, :3]}, r"parameter W is float32\[5, 3\]; .* is float32\[5, 21\]"),
    "dtype": (lambda p: {**p, "W": p["W"].astype("f8")}, r"parameter W is float64\[5, 21\]"),
    "missing": (lambda p: {"W": p["W"]}, r"the parameters are .*; those of the recurrence are"),
    "none": (lambda p: None, r"the parameters are .*; those of the recurrence are"),
}


@pytest.mark.parametrize("name", WRONG)
def test_others_are_refused(name: str):
    change, message = WRONG[name]
    with pytest.raises(InputError, match=message):
        cells.rnn("gru", parameters(1)).with_params(change(parameters(2)))


def test_the_report_of_quantized_layers_stays():
    layers = [cells.rnn("gru", cells.CELLS["gru"].parameters(inputs, 8)) for inputs in (3, 8)]
    x = np.random.default_rng(0).normal(size=(4, 9, 3)).astype("f4")
    small = sn.quantize(sn.Stack(layers), [x], "int8")
    other = small.with_params(small.params)
    assert other.report is small.report
    np.testing.assert_array_equal(other(x)[0], small(x)[0])
