"""Gradients of NumPy's functions that a step computes by several operations, against central differences; and
where a part of a formula has no derivative.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stepnet as sn

Function = Callable[..., Any]

ORDINARY = np.array([-1.7, -0.6, 0.3, 0.8, 2.4])
INSIDE = np.array([-0.9, -0.4, 0.1, 0.5, 0.95])
ABOVE = np.array([1.1, 1.5, 2.0, 7.0, 1e5])
POSITIVE = np.array([0.02, 0.4, 1.0, 3.0, 30.0])

OF_ONE: dict[str, tuple[Function, np.ndarray]] = {
    **{name: (getattr(np, name), ORDINARY) for name in ("exp2", "arcsinh", "cbrt", "degrees", "radians")},
    **{name: (getattr(np, name), INSIDE) for name in ("arcsin", "arccos", "arctanh")},
    **{name: (getattr(np, name), POSITIVE) for name in ("log2", "log10")},
    "arccosh": (np.arccosh, ABOVE),
    "arcsinh of large numbers": (np.arcsinh, np.array([2e9, -3e10])),
    "prod": (lambda x: np.prod(x, axis=-1, keepdims=True), ORDINARY),
    "diff": (np.diff, ORDINARY),
    "sort": (lambda x: np.sort(x[:, ::-1] * x[:, 1:2]) * np.arange(5), ORDINARY),
    "sort of some": (lambda x: np.sort(x.reshape(-1, 5, 1)[:, [3, 0, 2]], axis=1)[:, 1], ORDINARY),
    "roll and pad": (lambda x: np.roll(np.pad(x, ((0, 0), (1, 2))), 3, axis=1) ** 2, ORDINARY),
    "norm": (lambda x: np.linalg.norm(x, axis=-1), ORDINARY),
    "whole powers of negative numbers": (lambda x: x**3 + x**4 + x**5 + x**-2 + x**-3, ORDINARY),
    "repeat": (lambda x: np.repeat(x, [2, 0, 1, 3, 1], axis=1), ORDINARY),
    "nan_to_num": (np.nan_to_num, ORDINARY),
    "select": (lambda x: np.select([x > 1, x < 0], [x * x, -x], 3 * x), ORDINARY),
}
OF_TWO: dict[str, tuple[Function, np.ndarray, np.ndarray]] = {
    **{
        name: (getattr(np, name), ORDINARY, ORDINARY[::-1] * 1.3)
        for name in ("arctan2", "hypot", "logaddexp", "logaddexp2", "copysign", "fmod", "fmax", "fmin")
    },
    "power": (np.power, POSITIVE, ORDINARY),
    "power of negative numbers": (lambda x, y: np.power(x, np.rint(y)), ORDINARY, ORDINARY * 3),
}


def gradients(function: Function, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """The values of a function and the derivatives of their sum, by stepnet."""
    inputs = {str(place): array[None, None] for place, array in enumerate(arrays)}
    rnn = sn.RNN(lambda x, h, p: (function(*x.values()), h), memory=1)
    (outputs, _), back = sn.vjp(rnn)(inputs)
    found = back(np.ones_like(outputs)).inputs
    return tuple(found[name][0, 0] for name in inputs)


def differences(function: Function, arrays: list[np.ndarray], place: int) -> np.ndarray:
    """The derivatives of the sum of a function by one operand, by differences."""
    found = []
    for index, number in enumerate(arrays[place]):
        step = 1e-6 * max(1.0, abs(number))
        sums = []
        for shift in (step, -step):
            shifted = [array.copy() for array in arrays]
            shifted[place][index] += shift
            sums.append(np.sum(function(*(array[None] for array in shifted))))
        found.append((sums[0] - sums[1]) / (2 * step))
    return np.array(found)


@pytest.mark.parametrize("name", OF_ONE)
def test_derivatives_of_functions_of_one(name: str) -> None:
    function, x = OF_ONE[name]
    np.testing.assert_allclose(gradients(function, x)[0], differences(function, [x], 0), rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("name", OF_TWO)
def test_derivatives_of_functions_of_two(name: str) -> None:
    function, *arrays = OF_TWO[name]
    found = gradients(function, *arrays)
    for place, own in enumerate(found):
        right = differences(function, list(arrays), place)
        np.testing.assert_allclose(own, right, rtol=1e-6, atol=1e-8, err_msg=f"operand {place}")


# The operands, and the derivatives by each, where a formula of several operations could have none.
SPECIAL: dict[str, tuple[Function, list[list[float]], list[list[float]]]] = {
    "arcsin, arctanh and arcsinh at 0": (
        lambda x: np.arcsin(x) + np.arctanh(x) + np.arcsinh(x),
        [[0.0, -0.0]],
        [[3.0, 3.0]],
    ),
    "powers of 0": (np.power, [[0.0, 0.0, 0.0], [1.0, 2.0, 2.5]], [[1.0, 0.0, 0.0], [0.0, 0.0, 0.0]]),
    "powers to 0, and of 1": (np.power, [[3.0, 1.0], [0.0, 4.0]], [[0.0, 4.0], [np.log(3), 0.0]]),
    "equal logarithms": (np.logaddexp, [[2.0], [2.0]], [[0.5], [0.5]]),
    "infinite logarithms": (np.logaddexp, [[-np.inf, 1.0], [1.0, -np.inf]], [[0.0, 1.0], [1.0, 0.0]]),
    "a point on an axis": (np.arctan2, [[0.0, 2.0, 0.0], [2.0, 0.0, -2.0]], [[0.5, 0, -0.5], [0, -0.5, 0]]),
    "a point on a diagonal": (np.arctan2, [[1.0], [1.0]], [[0.5], [-0.5]]),
    "a small and a large triangle": (
        np.hypot,
        [[3e-200, 3e200], [4e-200, 4e200]],
        [[0.6, 0.6], [0.8, 0.8]],
    ),
    "an infinite number": (np.nan_to_num, [[np.inf, np.nan, 2.0]], [[0.0, 0.0, 1.0]]),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_derivatives_where_a_part_has_none(name: str) -> None:
    function, operands, right = SPECIAL[name]
    for found, exact in zip(gradients(function, *(np.array(each) for each in operands)), right, strict=True):
        np.testing.assert_allclose(found, exact, rtol=1e-9, atol=1e-12)


def test_a_power_by_a_value_keeps_float32_and_one_sequence_its_bits() -> None:
    rnn = sn.RNN(lambda x, h, p: (np.abs(x) ** (p * h + x), x), np.array([0.5, 2, 1], "float32"), memory=3)
    random = np.random.default_rng(0)
    x = random.normal(size=(4, 6, 3)).astype("float32")
    outputs = rnn(x)[0]
    assert outputs.dtype == np.float32
    for row in range(4):
        assert rnn(x[row : row + 1])[0].tobytes() == outputs[row].tobytes()
