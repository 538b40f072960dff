"""`RNN.with_params`: other parameters for code that is compiled already."""

import copy
import pickle
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
    "missing": (lambda p: {"W": p["W"]}, "of the parameters of the recurrence, R, b, d are missing"),
    "none": (lambda p: None, "of the parameters of the recurrence, W, R, b, d are missing"),
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


# ---- a model stays as it was made ----------------------------------------------------------------------


def changed(params: Any, name: str, *arguments: Any) -> None:
    """Calls a method of a dict or a list that changes it."""
    getattr(params, name)(*arguments)


@pytest.mark.parametrize("called", [False, True])
def test_what_a_model_was_made_with_is_not_assigned(called: bool):
    rnn = cells.rnn("gru", parameters(1))
    graph = sn.Graph(lambda x, p: x * p["a"], {"a": np.ones(5, "f4")})
    if called:
        rnn(X)
        graph(X)
    for model in (rnn, graph):
        with pytest.raises(InputError, match=r"the params of this \w+ cannot be set: .*with_params\("):
            model.params = model.params
        with pytest.raises(InputError, match=r"the inputs of this \w+ cannot be set: .* inputs="):
            model.inputs = 5
    for name in ("reverse", "until", "unroll", "memory", "step"):
        with pytest.raises(InputError, match=f"the {name} of this RNN cannot be set: .* with {name}="):
            setattr(rnn, name, None)
    assert_same_bits(rnn(X), cells.rnn("gru", parameters(1))(X))


@pytest.mark.parametrize(
    "change",
    [("__setitem__", "W", 1), ("__delitem__", "W"), ("update", {"W": 1}), ("pop", "W"), ("clear",)],
    ids=lambda change: change[0],
)
def test_parameters_are_not_changed_in_place(change: Any):
    inner: Any = {"gru": parameters(1), "list": [np.ones(1, "f4")]}
    graph = sn.Graph(lambda x, p: cells.rnn("gru", p["gru"])(x)[0] + p["list"][0], inner)
    both = sn.Stack([cells.rnn("gru", parameters(1))])
    for params in (cells.rnn("gru", parameters(1)).params, graph.params["gru"], both.params[0]):
        with pytest.raises(InputError, match=r"set with with_params\(params\)"):
            changed(params, *change)
    for name, *arguments in (("__setitem__", 0, 1), ("append", 1), ("sort",)):
        with pytest.raises(InputError, match=r"list\(params\) make copies"):
            changed(graph.params["list"], name, *arguments)


def test_copies_of_parameters_may_change():
    rnn = cells.rnn("gru", parameters(1))
    for copied in (dict(rnn.params), copy.deepcopy(rnn.params), pickle.loads(pickle.dumps(rnn.params))):
        copied["W"] = 2 * copied["W"]
        assert_same_bits(rnn.with_params(copied)(X), rnn.with_params(rnn.params | {"W": copied["W"]})(X))
    assert_same_bits(copy.deepcopy(rnn)(X), rnn(X))


def test_parameters_that_are_missing_unknown_or_of_another_dtype_are_named():
    rnn = cells.rnn("gru", parameters(1))
    others = {**rnn.params, "V": rnn.params["W"]}
    del others["R"]
    with pytest.raises(InputError, match="of the parameters of the recurrence, R is missing and V is unk"):
        rnn.with_params(others)
    with pytest.raises(InputError, match=r"that of .* is float32\[.*\]: give \.astype\(np\.float32\)"):
        rnn.with_params({**rnn.params, "W": np.float64(0.1) * rnn.params["W"]})


def test_python_numbers_take_a_dtype_and_do_not_give_one():
    def step(x: Any, h: Any, p: Any) -> Any:
        return (p["a"] * h + x,) * 2

    for number in (0.5, 1):
        with pytest.raises(InputError, match=rf"parameter a is the Python number {number}.*np.float32\("):
            sn.RNN(step, {"a": number}, memory=5)
    rnn = sn.RNN(step, {"a": np.float32(1)}, memory=5)
    halved, _ = rnn.with_params({"a": 0.5})(X)
    assert halved.dtype == np.float32
    assert_same_bits(halved, sn.RNN(step, {"a": np.float32(0.5)}, memory=5)(X)[0])
