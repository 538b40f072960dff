"""ONNX's functions of single numbers that neither NumPy nor stepnet has, with its names of their numbers."""

from typing import Any

import numpy as np

from stepnet.trace import functions

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


def affine(x: Any, alpha: float, beta: float) -> Any:
    """A line."""
    return alpha * x + beta


def elu(x: Any, alpha: float) -> Any:
    """The exponential linear unit."""
    made: Any = functions.elu(x)
    return functions.relu(made) + alpha * np.minimum(made, 0)


def hard_sigmoid(x: Any, alpha: float, beta: float) -> Any:
    """A line between 0 and 1."""
    return np.minimum(np.maximum(alpha * x + beta, 0), 1)


def hard_swish(x: Any) -> Any:
    """x times a line between 0 and 1."""
    return np.multiply(x, hard_sigmoid(x, 1 / 6, 0.5))


def leaky_relu(x: Any, alpha: Any) -> Any:
    """Numbers from 0 on, and a part of those below."""
    return np.maximum(x, 0) + alpha * np.minimum(x, 0)


def prelu(x: Any, slope: Any) -> Any:
    """Numbers from 0 on, and a slope times those below. The slope may be infinite, or NaN."""
    return numpy.where(x >= 0, x, slope * x)


def reciprocal(x: Any) -> Any:
    """1 / x."""
    return 1 / x


def scaled_tanh(x: Any, alpha: float, beta: float) -> Any:
    """The hyperbolic tangent, scaled."""
    return alpha * np.tanh(beta * x)


def selu(x: Any, alpha: float, gamma: float) -> Any:
    """The scaled exponential linear unit."""
    return gamma * elu(x, alpha)


def thresholded_relu(x: Any, alpha: float) -> Any:
    """Numbers above a threshold, and 0 for others."""
    return np.where(x > alpha, x, 0)
