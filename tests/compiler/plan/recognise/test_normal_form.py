"""The normal form: spellings of activations, views of features, and the order of what is read."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.net import ROWS, Builder, Type
from stepnet.compiler.plan.recognise import Recognised, Refused, check, recognise
from stepnet.compiler.plan.recognise.functions import SPELLINGS
from stepnet.compiler.plan.recognise.views import views_of
from stepnet.layout.equations import ACTIVATIONS
from tests.compiler.plan.recognise.cell_spellings import H, X, both

ROWS_OF_TABLE = [row for group in SPELLINGS for row in group]
names = [f"{name} {place}" for place, (name, _) in enumerate(ROWS_OF_TABLE)]


@pytest.mark.parametrize(("name", "spelling"), ROWS_OF_TABLE, ids=names)
def test_a_spelling_is_its_activation(name: str, spelling: Callable[[Any], Any]) -> None:
    numbers = np.concatenate([np.linspace(-9, 9, 91), [0.0, 3.0, -3.0, 2.5]])
    # exp(9) and what is divided by it: width is how much larger than the result numbers on the way are.
    assert_close(spelling(numbers), ACTIVATIONS[name](numbers), width=100)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(("name", "spelling"), ROWS_OF_TABLE, ids=names)
def test_a_spelling_is_recognised_in_a_step(name: str, spelling: Any, dtype: str) -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        h = spelling(p["b"] - x @ p["W"] + 0.5 * (h @ p["R"]))
        return h, h

    params = {"W": np.ones((X, H), dtype), "R": np.ones((H, H), dtype), "b": np.ones(H, dtype)}
    known = recognise(sn.RNN(step, params, memory=H, inputs=sn.Spec(X, dtype)).net)
    assert isinstance(known, Recognised), str(known)
    assert known.semantics.candidate_activation == name
    check(known)


@pytest.mark.parametrize(
    "step",
    [
        lambda x, h, p: x @ p["W"] + h[:, [3, 1, 0, 2]] @ p["R"],
        lambda x, h, p: x[:, ::-1] @ p["W"] + h @ p["R"],
        lambda x, h, p: x @ p["W"][:, ::-1] + h @ p["R"].T,
        lambda x, h, p: x @ p["W"] + (h @ np.take(p["R"], [2, 0, 3, 1], axis=1))[:, [1, 0, 2, 3]],
        lambda x, h, p: x @ p["W"] + h[:, :1] @ p["R"][:1] + h[:, 1:] @ p["R"][1:],
        lambda x, h, p: (
            np.concatenate([x, 2 * h, x], axis=-1) @ np.concatenate([p["W"], p["R"], p["W"]], axis=0)
        ),
        lambda x, h, p: np.concatenate([np.concatenate([x, h], axis=-1), h], axis=-1) @ p["K"],
        lambda x, h, p: -np.concatenate([x, h], axis=-1) @ p["K"][: X + H],
        lambda x, h, p: (x @ p["W"]).reshape(-1, 2, 2).transpose(0, 2, 1).reshape(-1, H) + h @ p["R"],
        lambda x, h, p: np.einsum("rx,xh->rh", x, p["W"]) + np.einsum("rk,kh->rh", h, p["R"]),
        lambda x, h, p: x @ p["W"][:, :1] + h @ p["R"],
        lambda x, h, p: x[:, :1] @ p["W"][:1] + h @ (p["R"] * p["b"]) * p["b"] + p["b"] / 3 + p["b"] ** 2,
        lambda x, h, p: (x + 1) @ p["W"] + (h - p["b"]) @ p["R"],
        lambda x, h, p: x @ p["W"] + (h * p["b"] / 2) @ p["R"] / p["b"],
        lambda x, h, p: x[:, :1] * p["b"] + h @ p["R"],
        lambda x, h, p: x @ p["W"] + 2 * x[:, [0, 1, 2, 2]] + h @ p["R"],
        lambda x, h, p: x @ np.exp(p["W"]) + h @ np.tanh(p["R"]) + np.exp(p["b"]),
    ],
)
def test_features_are_found_where_they_lie(step: Any) -> None:
    random = np.random.default_rng(1)
    shapes = {"W": (X, H), "R": (H, H), "K": (X + 2 * H, H), "b": (H,)}
    params = {name: random.normal(size=shape) for name, shape in shapes.items()}

    def tanh(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(step(x, h, p))
        return h, h

    recur = sn.RNN(tanh, params, memory=H, inputs=sn.Spec(X, "float64")).program.traced.recur()
    known = recognise(recur)
    assert isinstance(known, Recognised), str(known)
    for ours, theirs in zip(*both(recur, known), strict=True):
        assert_close(theirs, ours, length=3, width=4 * (X + H))
    check(known)


def test_a_view_that_mixes_axes_is_itself() -> None:
    """A reshape of a transposed value: places are no sum over axes any more."""
    builder = Builder()
    x = builder.input(Type(ROWS, (2, 3), "float32"), "x")
    turned = builder.add("transpose", x, order=(1, 0))
    flat = builder.add("reshape", turned, rank=2, shape=(6,))
    mixed = builder.add("reshape", flat, rank=1, shape=(2, 3))
    views = views_of(builder.net([mixed, builder.add("reshape", mixed, rank=2, shape=(3, 2))]))
    places = [view.indices(np.arange(6)).tolist() for view in views]
    assert [view.root for view in views] == [0, 0, 0, 3, 3]  # a view of the second reshape is one again
    assert places[1:3] == [[0, 3, 1, 4, 2, 5]] * 2
    assert places[4] == [0, 1, 2, 3, 4, 5]


def test_a_step_of_the_builder_is_recognised() -> None:
    rnn = sn.create_rnn_op()
    with rnn.stepnet():
        x = rnn.add_input(np.ones((2, 5, X), np.float32))
        h = rnn.add_memory(shape=[H])
        h.update(np.tanh(x @ np.ones((X, H), np.float32) + h.pre_state() @ np.eye(H, dtype=np.float32)))
        rnn.add_outputs(h)
    known = recognise(rnn.recurrence.net)
    assert str(known) == "rnn; 4 units, W, R"
    assert isinstance(known, Recognised)
    check(known)


def test_a_nested_recurrence_is_refused() -> None:
    inner = sn.RNN(lambda x, h, p: (h + x, h + x), memory=H)

    def step(x: Any, h: Any, p: Any) -> Any:
        h = np.tanh(inner(x, initial=h)[1] @ p + h @ p)
        return h, h

    refused = recognise(sn.RNN(step, np.ones((H, H)), memory=H, inputs=sn.Spec(H, "float64", levels=1)).net)
    assert isinstance(refused, Refused)


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (
            lambda x, h, p: (h.reshape(-1, 2, 2) @ p["R"][:2, :2]).reshape(-1, H),
            "products of several vectors",
        ),
        (
            lambda x, h, p: np.concatenate([h @ p["R"][:, :2], x @ p["W"][:, :2]], axis=-1),
            "several pieces of a concatenation",
        ),
        (lambda x, h, p: h[:, [0, 0, 1, 2]] @ p["R"], "a feature is multiplied twice by one matrix"),
    ],
)
def test_features_that_have_no_place_in_the_arrays_are_refused(step: Any, reason: str) -> None:
    params = {"W": np.ones((X, H)), "R": np.ones((H, H))}

    def tanh(x: Any, h: Any, p: Any) -> Any:
        return h, np.tanh(step(x, h, p))

    refused = recognise(sn.RNN(tanh, params, memory=H, inputs=sn.Spec(X, "float64")).net)
    assert isinstance(refused, Refused), str(refused)
    assert reason in refused.reason


def test_a_condition_is_itself_however_often_it_is_asked() -> None:
    def step(x: Any, h: Any, p: Any) -> Any:
        a = x @ p["W"] + h @ p["R"]
        large = a > 0
        h = np.where(large, np.where(large, a, np.sin(a)), 0)
        return h, h

    params = {"W": np.ones((X, H)), "R": np.ones((H, H))}
    known = recognise(sn.RNN(step, params, memory=H, inputs=sn.Spec(X, "float64")).net)
    assert isinstance(known, Recognised), str(known)
    assert known.semantics.candidate_activation == "relu"
    check(known)
