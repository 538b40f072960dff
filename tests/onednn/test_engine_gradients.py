"""Gradients with engine="onednn": llvm runs them, so they are llvm's bit by bit, of any model.

That llvm's are right is tested in `tests/model/gradients/test_gradients.py` and
`tests/model/graph/test_graph_gradients.py`.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from zoo import rnn_of

import stepnet as sn
from stepnet.compiler.targets import gradient_order
from stepnet.compiler.values import leaves
from tests.onednn.test_onednn_engine import HIDDEN, INPUTS, begin, sequences

Array = np.ndarray
BOTH = ("onednn", "llvm")


def arrays_of(value: Any) -> list[Any]:
    """The arrays of a structure, Raggeds by their values."""
    return [leaf.values if isinstance(leaf, sn.Ragged) else leaf for leaf in leaves(value)]


def same(ours: Any, theirs: Any) -> None:
    """Asserts that two structures have the same arrays."""
    pairs = list(zip(arrays_of(ours), arrays_of(theirs), strict=True))
    assert pairs
    for one, other in pairs:
        np.testing.assert_array_equal(one, other)


def cell(name: str, reverse: bool = False, inputs: int = INPUTS) -> sn.RNN:
    return rnn_of(name, inputs, HIDDEN, reverse=reverse)


def weights(*names: str, inputs: int = INPUTS, units: int = HIDDEN) -> dict[str, Array]:
    """Random matrices; those whose names begin with R are of memories."""
    random = np.random.default_rng(3)
    sizes = ((name, HIDDEN if name.startswith("R") else inputs) for name in names)
    return {name: random.normal(size=(size, units)).astype("f4") / 3 for name, size in sizes}


def mine(x: Array, h: Array, p: Any) -> tuple[Array, Array]:
    """A cell that oneDNN does not have."""
    h = np.sin(x @ p["W"] + h @ p["R"])
    return h, h


def with_statics(x: Array, h: Array, p: Any, statics: Any) -> tuple[Array, Array]:
    """A step that reads a static, which oneDNN cannot."""
    h = np.tanh(x @ p["W"] + h @ p["R"] + statics)
    return h, h


def with_c(x: Array, memory: Any, p: Any) -> tuple[Any, Any]:
    """An LSTM that gives c at each step, of which oneDNN has no gradient."""
    i, f, g, o = np.split(x @ p["W"] + memory["h"] @ p["R"], 4, axis=-1)
    c = sn.sigmoid(f) * memory["c"] + sn.sigmoid(i) * np.tanh(g)
    h = sn.sigmoid(o) * np.tanh(c)
    return (h, c), {"h": h, "c": c}


def mixed() -> sn.Stack:
    """A GRU and an LSTM in both directions, a cell of one's own, and a simple recurrence."""
    both = sn.Bidirectional(cell("gru"), cell("lstm", reverse=True))
    own = sn.RNN(mine, weights("W", "R", inputs=2 * HIDDEN), memory=HIDDEN)
    return sn.Stack([both, own, cell("simple_rnn", inputs=HIDDEN)])


def nested() -> sn.RNN:
    """Words inside of sentences, whose recurrence begins with the memory of the outer one."""
    words = cell("gru")

    def sentence(x: Any, h: Any, p: Any) -> tuple[Any, Any]:
        _, last = words(x, initial=h)
        h = np.tanh(last @ p["R"])
        return h, h

    return sn.RNN(sentence, weights("R"), memory=HIDDEN)


X = sequences(2, 5, 0, 5)
PADDED = np.random.default_rng(0).normal(size=(3, 7, INPUTS)).astype("f4")
MODELS: dict[str, tuple[Callable[[], Any], Any, dict[str, Any]]] = {
    "a cell": (lambda: cell("lstm"), X, {"initial": begin("lstm", 4)}),
    "in reverse": (lambda: cell("gru_reset_before", reverse=True), X, {"last_only": True}),
    "with lengths": (lambda: cell("gru"), PADDED, {"lengths": [7, 0, 3]}),
    "in pieces": (lambda: cell("gru"), X, {"checkpoint": "sqrt"}),
    "float64": (lambda: cell("gru"), X.with_values(X.values.astype("f8")), {}),
    "layers": (mixed, X, {}),
    "nested": (nested, sequences(2, 5, 0, 3, 1).group([2, 0, 3]), {}),
    "statics": (
        lambda: sn.RNN(with_statics, weights("W", "R"), memory=HIDDEN),
        X,
        {"statics": np.ones((4, HIDDEN), "f4")},
    ),
    "c of each step": (
        lambda: sn.RNN(with_c, weights("W", "R", units=4 * HIDDEN), memory={"h": HIDDEN, "c": HIDDEN}),
        X,
        {},
    ),
}


@pytest.mark.long(every=2)
@pytest.mark.parametrize("name", MODELS)
def test_gradients_are_those_of_llvm(name: str) -> None:
    make, x, options = MODELS[name]
    run = sn.vjp(make())
    (outputs, final), backward = run(x, **options)
    wanted = backward(outputs, final)
    for engine in ("onednn", BOTH):
        (ours, last), backward = run(x, engine=engine, **options)
        same((ours, last), (outputs, final))
        made = backward(outputs, final)
        same([made.params, made.inputs], [wanted.params, wanted.inputs])


@pytest.mark.parametrize("checkpoint", [None, 2])
def test_a_loss(checkpoint: int | None) -> None:
    train = sn.value_and_grad(lambda y, target: ((y - target) ** 2).sum(axis=-1), cell("lstm"))
    x = sequences(2, 5, 1, 5)
    targets = x.with_values(np.ones((len(x.values), HIDDEN), "f4"))
    wanted = train(x, targets, checkpoint=checkpoint)
    for engine in ("onednn", BOTH):
        value, made = train(x, targets, checkpoint=checkpoint, engine=engine)
        same([value, made.params], [wanted[0], wanted[1].params])


def test_explain_names_the_engine_that_runs() -> None:
    run = sn.vjp(mixed())
    run(X)
    for engine in ("onednn", BOTH):
        text = run.explain(engine=engine)
        assert "  engine      llvm\n" in text
        assert text == run.explain()


def test_the_order_of_the_other_engines_stays() -> None:
    assert gradient_order(("interpret", "onednn", "auto")) == ("interpret", "llvm")
    assert sn.vjp(cell("gru"))(X, engine=("onednn", "interpret"))[0][0].values.shape == (12, HIDDEN)
