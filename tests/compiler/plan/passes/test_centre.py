"""Means taken from matrices in place of products: values beside the net as it was, and what is left alone."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.plan import PIPELINE, optimised
from stepnet.compiler.plan.passes.centre import centre

W = 12
SHAPES = {"W": (5, W), "R": (W, W), "b": (W,), "g": (W,)}


def normalised(v: Any) -> Any:
    """A vector without its mean, divided by its deviation."""
    away = v - v.mean(-1, keepdims=True)
    return away / np.sqrt((away * away).mean(-1, keepdims=True) + 1e-5)


def by_numpy(v: Any) -> Any:
    """The same by the functions of NumPy, of which the variance takes the mean once more."""
    return (v - np.mean(v, -1, keepdims=True)) / np.sqrt(np.var(v, -1, keepdims=True) + 1e-5)


def model(
    norm: Callable[[Any, Any], Any], dtype: str = "float32", scale: float = 1.0, times: float = 1.0
) -> sn.RNN:
    """A recurrence whose step is the hyperbolic tangent of a norm of its sums. times: that W is larger by."""
    chance = np.random.default_rng(3)
    params = {n: (scale + chance.normal(0, 0.5, shape)).astype(dtype) for n, shape in SHAPES.items()}
    params["W"] *= times

    def step(x: Any, h: Any, p: Any) -> Any:
        """One step."""
        h = np.tanh(norm(x @ p["W"] + h @ p["R"] + p["b"], p) * p["g"])
        return h, h

    return sn.RNN(step, params, memory=W, inputs=5)


def sums_of_values(net: Any) -> int:
    """The sums of a step over values that are known in the step, and not over parameters."""
    (body,) = [node.recur.body for node in net.nodes if node.operation == "recur"]
    return sum(node.operation == "sum" and node.type.extent != () for node in body.nodes)


@pytest.mark.parametrize("norm", [normalised, by_numpy])
def test_a_step_takes_no_mean_of_its_products(norm: Callable[[Any], Any]) -> None:
    before = optimised(model(lambda v, p: norm(v)).net, PIPELINE[:2])
    after = centre(before)
    assert (sums_of_values(before), sums_of_values(after)) == (2, 1)
    assert centre(after) is after


@pytest.mark.parametrize(("scale", "times"), [(0.0, 1.0), (30.0, 1.0), (30.0, 2.0**122)])
def test_results_are_those_of_the_step(scale: float, times: float) -> None:
    """Also where weights are large beside their differences, of which alone the result depends, and where a
    sum of weights is infinite.
    """
    x = np.random.default_rng(4).normal(size=(3, 6, 5))
    x = (np.copysign(np.maximum(np.abs(x), 0.1), x) / times).astype("f4")  # none so small that it is flushed
    rnn, exact = (model(lambda v, p: normalised(v), dtype, scale, times) for dtype in ("float32", "float64"))
    found, last = rnn(x, engine="cuda-emulated")
    expected, end = exact(x.astype("f8"), engine="interpret")
    terms = 6 * W * (1 + scale) ** 2
    assert_close(np.asarray(found), np.asarray(expected), 6, int(terms))
    assert_close(np.asarray(last), np.asarray(end), 6, int(terms))


@pytest.mark.parametrize(
    "norm",
    [
        lambda v, p: v - v.mean(-1, keepdims=True) + np.tanh(v),
        lambda v, p: v - v.mean(-1, keepdims=True) + v.mean(-1, keepdims=True) ** 2,
        lambda v, p: v - v.sum(-1, keepdims=True) / 7,
        lambda v, p: np.tanh(v) - np.tanh(v).mean(-1, keepdims=True),
        lambda v, p: p["g"] * v - (p["g"] * v).mean(-1, keepdims=True),
        lambda v, p: v * 2 - v.mean(-1, keepdims=True),
        lambda v, p: v.mean(-1, keepdims=True) - v,
    ],
)
def test_other_values_are_left_alone(norm: Callable[[Any, Any], Any]) -> None:
    net = optimised(model(norm).net, PIPELINE[:2])
    assert centre(net) is net


def test_weights_in_fewer_bits_are_left_alone() -> None:
    stored = model(lambda v, p: normalised(v), "bfloat16")
    whole, x = model(lambda v, p: normalised(v)), np.ones((2, 3, 5), "f4")
    low = sn.quantize(sn.Graph(lambda x, p: whole(x)[0], inputs=5), [x], "int8")
    low(x)
    for made in (stored, low):
        net = optimised(made.net, PIPELINE[:2])
        assert sums_of_values(net) == 2
        assert centre(net) is net
