"""ONNX's elementwise functions that neither NumPy nor stepnet has. Parameters have ONNX's names."""

from typing import Any

import numpy as np

from stepnet.compiler.trace import functions

# NumPy's functions return traced values for traced arguments, which its type stubs do not express.
numpy: Any = np


def affine(x: Any, alpha: float, beta: float) -> Any:
    """alpha x + beta."""
    return alpha * x + beta


def elu(x: Any, alpha: float) -> Any:
    """The exponential linear unit."""
    unit: Any = functions.elu(x)
    return functions.relu(unit) + alpha * np.minimum(unit, 0)


def hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    """alpha x + beta, clipped to 0..1."""
    return np.minimum(np.maximum(alpha * x + beta, 0), 1)


def hard_swish(x: Any) -> Any:
    """x times its hard sigmoid."""
    return np.multiply(x, hard_sigmoid(x, 1 / 6, 0.5))


def leaky_relu(x: Any, alpha: Any) -> Any:
    """x where it is at least 0, else alpha x."""
    return np.maximum(x, 0) + alpha * np.minimum(x, 0)


def prelu(x: Any, slope: Any) -> Any:
    """x where it is at least 0, else slope x. The slope may be infinite or NaN."""
    return numpy.where(x >= 0, x, slope * x)


def reciprocal(x: Any) -> Any:
    """1 / x."""
    return 1 / x


def scaled_tanh(x: Any, alpha: float, beta: float) -> Any:
    """alpha tanh(beta x)."""
    return alpha * np.tanh(beta * x)


def selu(x: Any, alpha: float, gamma: float) -> Any:
    """The scaled exponential linear unit."""
    return gamma * elu(x, alpha)


def thresholded_relu(x: Any, alpha: float) -> Any:
    """x where it is above alpha, else 0."""
    return np.where(x > alpha, x, 0)
