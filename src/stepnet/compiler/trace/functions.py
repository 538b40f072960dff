"""Functions that NumPy lacks, for steps and for arrays alike: activations, and one-hot vectors.

They take values of a step and plain arrays. Unless a function says otherwise, the result has the shape and
the floating dtype of x; integers and bools become float64. All of them raise `InputError` for arguments that
are not arrays of numbers.
"""

# Each is written with NumPy's functions and operators, so that it works on traced values and on arrays,
# except sigmoid and erf, which are operations of a net.

import math
from typing import Any, cast

import numpy as np

from stepnet.compiler.net.ops import OPERATIONS
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.arguments import (
    array_of,
    checked_integer,
    dtype_name,
    flag,
    is_integer,
    short_repr,
)
from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.errors import InputError

MOST_SIZE = 2**24

# For a traced value the result is a traced value, unlike in NumPy's stubs.
where: Any = np.where


def sigmoid(x: Any) -> Any:
    """Computes the logistic function 1 / (1 + exp(-x)), elementwise.

    Args:
        x: An array or a value of a step, of any shape.

    >>> sigmoid(np.array([-np.inf, 0, np.inf])).tolist()
    [0.0, 0.5, 1.0]
    """
    return _operation("sigmoid", x)


def erf(x: Any) -> Any:
    """Computes the error function, elementwise.

    Abramowitz and Stegun, "Handbook of mathematical functions", 7.1.1.

    Args:
        x: An array or a value of a step, of any shape.

    >>> erf(np.array([0.0, 1.0])).round(4).tolist()
    [0.0, 0.8427]
    """
    return _operation("erf", x)


def hard_sigmoid(x: Any, slope: float = 1 / 6) -> Any:
    """Computes the piecewise linear sigmoid max(0, min(1, slope x + 1/2)), elementwise.

    Args:
        x: An array or a value of a step, of any shape.
        slope: 1/6 as in Keras 3 and PyTorch; 0.2 as in Keras 2 and ONNX.

    >>> float(hard_sigmoid(np.float32(3))), float(hard_sigmoid(np.float32(1), slope=0.2))
    (1.0, 0.699999988079071)
    """
    x, slope = numbers("hard_sigmoid", x), numbers("hard_sigmoid", slope)
    return np.clip(x * slope + 0.5, 0.0, 1.0)


def relu(x: Any) -> Any:
    """Computes the rectified linear unit max(x, 0), elementwise. Integers stay integers.

    Args:
        x: An array or a value of a step, of any shape.

    >>> relu(np.array([-2.0, 3.0])).tolist()
    [0.0, 3.0]
    """
    x = numbers("relu", x)
    return np.maximum(x, 0)


def leaky_relu(x: Any, slope: float = 0.01) -> Any:
    """Computes x where it is positive, and slope x elsewhere, elementwise.

    Args:
        x: An array or a value of a step, of any shape.
        slope: The slope for negative x.

    >>> leaky_relu(np.array([-2.0, 3.0])).tolist()
    [-0.02, 3.0]
    """
    x, slope = numbers("leaky_relu", x), numbers("leaky_relu", slope)
    return where(x >= 0, x, x * slope)


def elu(x: Any, alpha: float = 1.0) -> Any:
    """Computes x where it is positive, and alpha (exp(x) - 1) elsewhere, elementwise.

    D.-A. Clevert, T. Unterthiner and S. Hochreiter, "Fast and accurate deep network learning by exponential
    linear units (ELUs)", 2015.

    Args:
        x: An array or a value of a step, of any shape.
        alpha: Minus the limit for x to minus infinity.

    >>> elu(np.array([-np.inf, 3.0])).tolist()
    [-1.0, 3.0]
    """
    x, alpha = numbers("elu", x), numbers("elu", alpha)
    return where(x > 0, x, np.expm1(where(x > 0, 0, x)) * alpha)  # which has a derivative at 0


def selu(x: Any) -> Any:
    """Computes the `elu` with the scale and alpha of self-normalising networks, elementwise.

    G. Klambauer and others, "Self-normalizing neural networks", 2017.

    Args:
        x: An array or a value of a step, of any shape.

    >>> selu(np.array([-np.inf, 1.0])).round(4).tolist()
    [-1.7581, 1.0507]
    """
    x = numbers("selu", x)
    return elu(x, 1.6732632423543772848170429916717) * 1.0507009873554804934193349852946


def softplus(x: Any) -> Any:
    """Computes log(1 + exp(x)), elementwise, without overflow.

    Args:
        x: An array or a value of a step, of any shape.

    >>> softplus(np.array([0.0, 1000.0])).round(4).tolist()
    [0.6931, 1000.0]
    """
    x = numbers("softplus", x)
    low = where(x > 0, -x, x)  # -|x|, whose derivative at 0 makes that of the sum one half
    return np.maximum(x, 0) + np.log1p(np.exp(low))


def softsign(x: Any) -> Any:
    """Computes x / (1 + |x|), elementwise.

    Args:
        x: An array or a value of a step, of any shape.

    >>> softsign(np.array([-1.0, 3.0])).tolist()
    [-0.5, 0.75]
    """
    x = numbers("softsign", x)
    return x / (1 + np.abs(x))


def silu(x: Any) -> Any:
    """Computes x sigmoid(x), elementwise; also called swish.

    Args:
        x: An array or a value of a step, of any shape.

    >>> silu(np.array([0.0, 1.0])).round(4).tolist()
    [0.0, 0.7311]
    """
    x = numbers("silu", x)
    return x * sigmoid(x)


def gelu(x: Any, approximate: bool = False) -> Any:
    """Computes x times the standard normal distribution function at x, elementwise.

    D. Hendrycks and K. Gimpel, "Gaussian error linear units (GELUs)", 2016.

    Args:
        x: An array or a value of a step, of any shape.
        approximate: Whether to use the paper's approximation with tanh instead of erf.

    >>> gelu(np.array([0.0, 1.0])).round(4).tolist()
    [0.0, 0.8413]
    """
    x = numbers("gelu", x)
    if flag(approximate, "approximate"):
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)))
    return 0.5 * x * (1 + erf(x * math.sqrt(0.5)))


def softmax(x: Any, axis: int = -1) -> Any:
    """Computes exp(x) divided by its sum along a feature axis: positive numbers that sum to one; no overflow.

    Args:
        x: An array or a value of a step, of any shape.
        axis: The axis of the sum. In a step it is not the row axis, 0.

    Raises:
        InputError: For an axis that x does not have, or that has no numbers.

    >>> softmax(np.log([[1.0, 3.0]])).round(4).tolist()
    [[0.25, 0.75]]
    """
    x = along("softmax", x, axis)
    powers = np.exp(x - np.max(x, axis=axis, keepdims=True))
    return powers / np.sum(powers, axis=axis, keepdims=True)


def layer_norm(x: Any, scale: Any = 1, shift: Any = 0, epsilon: float = 1e-5, axis: int = -1) -> Any:
    """Shifts and scales x to mean 0 and variance 1 along a feature axis, then applies `scale` and `shift`.

    J. L. Ba, J. R. Kiros and G. E. Hinton, "Layer normalization", 2016.

    Args:
        x: An array or a value of a step, of any shape.
        scale: The factor of the normalised x; broadcast to the shape of x.
        shift: Added after the scaling; broadcast to the shape of x.
        epsilon: Added to the variance, so that constant features do not divide by zero.
        axis: The axis, or a tuple of axes, of mean and variance. In a step the row axis, 0, is none of them.

    Raises:
        InputError: For an axis that x does not have, or that has no numbers.

    >>> layer_norm(np.array([[1.0, 3.0]]), epsilon=0).tolist()
    [[-1.0, 1.0]]
    """
    x = along("layer_norm", x, axis)
    scale, shift, epsilon = (numbers("layer_norm", parameter) for parameter in (scale, shift, epsilon))
    away = x - np.mean(x, axis=axis, keepdims=True)
    return away / np.sqrt(np.mean(away * away, axis=axis, keepdims=True) + epsilon) * scale + shift


def one_hot(index: Any, size: int, dtype: Any = np.float32) -> Any:
    """Makes vectors of `size` numbers, 1 at an integer and 0 elsewhere; all zeros for integers outside.

    Args:
        index: Integers, an array or a value of a step, of any shape.
        size: How many numbers the vector has. The result has the shape of `index`, and this as a last axis.
        dtype: The dtype of the result.

    Raises:
        InputError: For a size that is not a whole number, and for a dtype that steps do not support.

    >>> one_hot(np.array([2, 0]), 3).tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]
    """
    index = numbers("one_hot", index)
    count = checked_integer(size, f"size is how many numbers there are, from 0 to {MOST_SIZE}", 0, MOST_SIZE)
    result_dtype = dtype_name(dtype, "a one-hot vector")
    return (np.expand_dims(index, -1) == np.arange(count)).astype(result_dtype)


# ---- checks of their arguments -----------------------------------------------------------------------------


def numbers(name: str, value: Any) -> Any:
    """Returns the argument of a function such as `relu` in a form to compute with: a value of a step, a float
    or an int unchanged; anything else, such as a list, as an array, with int64 in place of bool.

    name: the function's name, for the message. Raises `InputError` if there are no numbers in it.
    """
    if isinstance(value, Traced | float):
        return value
    array = array_of(value, f"what {name} is given")
    kind = kind_of_dtype(array.dtype)
    if kind == "other":
        raise InputError(f"{name} takes a value of a step, or an array of numbers, not {short_repr(value)}")
    if kind == "bool":
        return array.astype(np.int64)
    return value if isinstance(value, int) else array


def along(name: str, x: Any, axis: Any) -> Any:
    """Returns the argument `x` of a function that works along an axis, as a value of a step or an array.

    name: the function's name, for the message.
    Raises `InputError` if x has no such axis, or one of size 0. For values of a step, the rules of NumPy's
    functions check this.
    """
    x = numbers(name, x)
    if isinstance(x, Traced):
        return x
    shape: tuple[int, ...] = np.shape(x)
    axes = cast("tuple[Any, ...]", axis if isinstance(axis, tuple) else (axis,))
    if not all(is_integer(axis) and -len(shape) <= axis < len(shape) for axis in axes):
        raise InputError(f"axis of {name} is one of the {len(shape)} axes, as -1, not {short_repr(axis)}")
    if len({axis % len(shape) for axis in axes}) < len(axes) or any(not shape[axis] for axis in axes):
        raise InputError(
            f"{name} over axis {short_repr(axis)} of {short_repr(x)}: each axis is given once, and has "
            "at least one element"
        )
    return x


def _operation(name: str, x: Any) -> Any:
    """Applies the operation `name` of nets, such as "sigmoid", to a traced value, which adds a node, or to an
    array, which computes it; integers and bools become float64.
    """
    x = numbers(name, x)
    if isinstance(x, Traced):
        return apply(name, x if x.type.is_float else x.astype(np.float64))
    array = np.asarray(x)
    floats = kind_of_dtype(array.dtype) == "float"
    return OPERATIONS[name].meaning(array if floats else array.astype(np.float64))
