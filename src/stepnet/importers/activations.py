"""Elementwise functions that neither NumPy nor stepnet has. Numbers follow the operand, in their order."""

from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import Traced
from stepnet.importers.sizes import is_equal
from stepnet.importers.values import as_dtype

# NumPy's functions return traced values for traced arguments, which its type stubs do not express.
numpy: Any = np


def affine(x: Any, slope: float, offset: float) -> Any:
    """Computes slope x + offset elementwise."""
    return slope * x + offset


def clip6(x: Any) -> Any:
    """Computes x limited to 0..6 elementwise, as relu6."""
    return np.minimum(np.maximum(x, 0), 6)


def hard_shrink(x: Any, threshold: float) -> Any:
    """Computes x where it is beyond the threshold on either side, else 0, elementwise."""
    return np.where(np.abs(x) > threshold, x, 0)


def hard_sigmoid(x: Any, slope: float, offset: float) -> Any:
    """Computes slope x + offset, limited to 0..1, elementwise."""
    return np.minimum(np.maximum(slope * x + offset, 0), 1)


def hard_swish(x: Any) -> Any:
    """Computes x times its hard sigmoid (slope 1/6, offset 0.5), elementwise."""
    return np.multiply(x, hard_sigmoid(x, 1 / 6, 0.5))


def leaky_relu(x: Any, slope: Any = 0.01) -> Any:
    """Computes x where it is at least 0, else slope x, elementwise. The slope may be infinite or NaN."""
    return numpy.where(x >= 0, x, slope * x)


def linear(x: Any) -> Any:
    """Returns x, as an activation that is the identity."""
    return x


def log_sigmoid(x: Any) -> Any:
    """Computes the logarithm of the sigmoid of x, elementwise."""
    return -functions.softplus(-x)


def squared_difference(x: Any, y: Any) -> Any:
    """Computes (x - y) squared."""
    return square(x - y)


def reciprocal(x: Any) -> Any:
    """Computes 1 / x."""
    return 1 / x


def rsqrt(x: Any) -> Any:
    """Computes 1 / sqrt(x)."""
    return 1 / np.sqrt(x)


def scaled_tanh(x: Any, factor: float, slope: float) -> Any:
    """Computes factor tanh(slope x)."""
    return factor * np.tanh(slope * x)


def selu(x: Any, alpha: float, factor: float) -> Any:
    """Computes the scaled exponential linear unit: factor elu(x, alpha)."""
    return factor * functions.elu(x, alpha)


def soft_shrink(x: Any, threshold: float) -> Any:
    """Computes x moved towards 0 by the threshold, and 0 within it, elementwise."""
    return x - np.minimum(np.maximum(x, -threshold), threshold)


def sparse_plus(x: Any) -> Any:
    """Computes 0 up to -1, x from 1 on, and (x + 1)^2 / 4 in between, elementwise."""
    inside: Any = np.minimum(np.maximum(x, -1), 1) + 1
    return numpy.where(x >= 1, x, inside * inside / 4)


def square(x: Any) -> Any:
    """Computes x * x elementwise."""
    return x * x


def squareplus(x: Any, b: float) -> Any:
    """Computes (x + sqrt(x^2 + b)) / 2 elementwise."""
    return (x + np.sqrt(x * x + b)) / 2


def tanh_shrink(x: Any) -> Any:
    """Computes x - tanh(x) elementwise."""
    return x - np.tanh(x)


def thresholded_relu(x: Any, threshold: float) -> Any:
    """Computes x where it is above the threshold, else 0, elementwise."""
    return np.where(x > threshold, x, 0)


# ---- numbers and sizes -------------------------------------------------------------------------------------


def is_sizes(value: Any) -> bool:
    """Tells whether a value is a constant array of objects, whose elements may be symbolic sizes."""
    return not isinstance(value, Traced) and np.asarray(value).dtype.kind == "O"


def is_whole(value: Any) -> bool:
    """Tells whether an array or a traced value consists of integers or symbolic sizes."""
    return (
        np.asarray(value).dtype.kind in "iuO" if not isinstance(value, Traced) else value.dtype.kind in "iu"
    )


def equal(a: Any, b: Any) -> Any:
    """Tells elementwise whether numbers or symbolic sizes are equal; sizes (numbers of sequences or steps,
    known in a call) have dtype object. Raises `ModelError` if that depends on the call.
    """
    if not (is_sizes(a) or is_sizes(b)):
        return np.equal(a, b)
    return np.asarray(np.frompyfunc(is_equal, 2, 1)(a, b), bool)


def not_equal(a: Any, b: Any) -> Any:
    """Tells elementwise whether numbers or symbolic sizes differ, as `equal` compares them."""
    return np.logical_not(equal(a, b)) if is_sizes(a) or is_sizes(b) else np.not_equal(a, b)


def quotient(a: Any, b: Any) -> Any:
    """Computes a / b elementwise, integers truncated towards 0. Symbolic sizes must divide exactly."""
    if not (is_whole(a) and is_whole(b)):
        return a / b
    floor: Any = a // b
    if is_sizes(a) or is_sizes(b):
        return floor
    is_below: Any = ((a < 0) != (b < 0)) & (floor * b != a)
    return floor + is_below.astype(floor.dtype)


def signed_remainder(a: Any, b: Any) -> Any:
    """Computes the remainder of a / b elementwise with the sign of a, as C's fmod; integers stay integers."""
    remainder: Any = np.remainder(np.abs(a), np.abs(b))
    is_negative: Any = a < 0
    return as_dtype(remainder * (1 - 2 * is_negative.astype(remainder.dtype)), remainder.dtype)
