"""Zeros of different signs, and NaN, in minimum, maximum, clip and the reductions max and min.

NumPy returns either zero: its choice depends on the processor, and in clip on the number of elements too.
Machine code has -0 below 0.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import stepnet as sn

numpy: Any = np
WIDTHS = (*range(1, 10), 15, 16, 17, 31, 33, 64)
FUNCTIONS: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "maximum": (lambda a, b: numpy.maximum(a, b), False),
    "minimum": (lambda a, b: numpy.minimum(a, b), True),
    "clip from below": (lambda a, b: numpy.clip(a, b, 1.0), False),
    "clip from above": (lambda a, b: numpy.clip(a, -1.0, b), True),
    "max": (lambda a, b: numpy.stack([a, b], axis=-1).max(-1), False),
    "min": (lambda a, b: numpy.stack([a, b], axis=-1).min(-1), True),
}
"""Each function, and whether it gives -0 for zeros of both signs."""


def of_machine_code(function: Any, a: Any, b: Any) -> Any:
    """The results of a function for two rows of numbers."""
    step = lambda x, h, p: (function(x["a"], x["b"]), h)  # noqa: E731
    x = {"a": np.array(a)[None, None], "b": np.array(b)[None, None]}
    return sn.RNN(step, memory=())(x, engine="llvm")[0][0, 0]


@pytest.mark.long(each=True)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_zeros_of_different_signs(name: str, dtype: str, width: int):
    function, negative = FUNCTIONS[name]
    a = np.where(np.arange(width) % 2, 0.0, -0.0).astype(dtype)
    for one, other in ((a, -a), (-a, a)):
        found = of_machine_code(function, one, other)
        np.testing.assert_array_equal(found, 0)
        assert np.signbit(found).tolist() == [negative] * width
    np.testing.assert_array_equal(np.signbit(of_machine_code(function, a, a)), np.signbit(a))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_nan_stays(name: str, dtype: str, width: int):
    function, _ = FUNCTIONS[name]
    a = np.where(np.arange(width) % 3, np.nan, 0.5).astype(dtype)
    b = np.where(np.arange(width) % 2, np.nan, 0.5).astype(dtype)
    np.testing.assert_array_equal(of_machine_code(function, a, b), function(a, b))


@pytest.mark.long(each=True)
@pytest.mark.parametrize("name", ["maximum", "minimum"])
def test_both_of_two_zeros_have_half_of_the_gradient(name: str, engine: str):
    function, _ = FUNCTIONS[name]
    rnn = sn.RNN(lambda x, h, p: (function(x["a"], x["b"]), h), memory=())
    a = np.array([[[0.0, -0.0, 0.0, -0.0]]])
    (outputs, _), backward = sn.vjp(rnn)({"a": a, "b": np.array([[[0.0, 0.0, -0.0, -0.0]]])}, engine=engine)
    found = backward(np.ones_like(outputs)).inputs
    assert found["a"].tolist() == found["b"].tolist() == [[[0.5] * 4]]
