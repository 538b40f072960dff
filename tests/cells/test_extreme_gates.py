"""Every cell with gates far from zero, and with equal ones, over long sequences: results and gradients."""

from typing import Any

import numpy as np
import pytest
from extreme_gates import ALL, EQUAL, Gated, cast_to, gated
from gradcheck import assert_gradient, segments_of
from tolerance import assert_close

import stepnet as sn
from stepnet.compiler.values import leaves, transform

Array = np.ndarray
WIDTH = 15
"""The most numbers that a step sums."""
LENGTH, STEPS = 5000, 2
EXPONENTS = ("mlstm", "slstm", "rwkv4")
"""The cells whose memory is divided by exp(m): two memories with another m may be the same."""


def results(cell: str, given: Gated, dtype: str, engine: str) -> list[tuple[Any, bool]]:
    """Outputs, final memories and gradients, each with whether it has rows."""
    x, initial = cast_to(dtype, given.x), cast_to(dtype, given.initial)
    (outputs, final), backward = sn.vjp(given.rnn(dtype))(x, initial=initial, engine=engine)
    random = np.random.default_rng(9)
    of_outputs, of_final = (
        transform(lambda one: random.normal(size=one.shape).astype("float32").astype(dtype), part)
        for part in (outputs, final)
    )
    made = backward(of_outputs, None if cell in EXPONENTS else of_final)
    by_row = [outputs, final, made.inputs, made.initial]
    return [(leaf, True) for leaf in leaves(by_row)] + [(leaf, False) for leaf in leaves([made.params])]


def check(cell: str, steps: int) -> None:
    """Asserts that float32 is float64 but for rounding. Sums of many steps may cancel, so errors are relative
    to the largest number of a row.
    """
    given = gated(cell, steps)
    pairs = zip(
        results(cell, given, "float32", "llvm"),
        results(cell, given, "float64", "interpret"),
        strict=True,
    )
    for (found, has_rows), (right, _) in pairs:
        if right is None:
            continue
        parts = zip(found, right, strict=True) if has_rows else [(found, right)]
        for one, other in parts:
            largest = max(1, float(np.abs(other).max()))
            assert_close(one / np.float32(largest), other / largest, steps, WIDTH, "float32")


@pytest.mark.long(every=4)
@pytest.mark.parametrize("cell", ALL)
def test_gates_far_from_zero(cell: str):
    check(cell, 20)


@pytest.mark.long(every=16)
@pytest.mark.parametrize("cell", ALL)
def test_gates_far_from_zero_over_long_sequences(cell: str):
    check(cell, LENGTH)


@pytest.mark.long(every=2)
@pytest.mark.parametrize("cell", ALL)
def test_gradients_at_equal_gates_are_those_of_differences(cell: str):
    given = gated(cell, STEPS, EQUAL)
    net = sn.RNN(given.step, given.params, memory=given.memory, inputs=specs(given.x)).net
    x = transform(lambda one: one.reshape(-1, *one.shape[2:]), given.x)
    arrays = leaves([one for one in (x, given.initial, given.params) if one is not None])
    assert_gradient(net, segments_of([STEPS] * len(EQUAL)), arrays)


def specs(x: Any) -> Any:
    return transform(lambda one: sn.Spec(one.shape[2:], "float64"), x)


def test_min_lstm_with_gates_that_underflow():
    """With i = f the memory is the mean of both, however far the gates are below zero."""
    gates = -np.array([30.0, 100.0, 110.0, 300.0, 3e38], "float32")
    x = {"f": gates, "i": gates, "n": np.full(5, 3.0, "float32")}
    output, _ = sn.RNN(sn.cells.min_lstm, memory=5)(
        transform(lambda one: one[None, None], x), np.ones((1, 5), "float32"), engine="llvm"
    )
    assert output.tolist() == [[[2.0] * 5]]


@pytest.mark.long(each=True)
@pytest.mark.parametrize(
    ("name", "slope"), [("softplus", 0.5), ("elu", 1.0), ("selu", 1.6732632423543772 * 1.0507009873554805)]
)
def test_smooth_functions_have_their_derivatives_at_zero(name: str, slope: float, engine: str):
    rnn = sn.RNN(lambda x, h, p: (getattr(sn, name)(x), h), memory=())
    (outputs, _), backward = sn.vjp(rnn)(np.zeros((1, 1, 3)), engine=engine)
    np.testing.assert_allclose(backward(np.ones_like(outputs)).inputs, slope, rtol=1e-15)
