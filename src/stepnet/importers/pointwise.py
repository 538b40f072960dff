"""The table of elementwise operators, and the operators on values of several dtypes.

A value of a net has no axes of steps and sequences, so a function of the table deals only with features. The
reader of a format refers to a row by its name.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial, reduce
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.compiler.values.records import dataclass
from stepnet.importers import activations, padding
from stepnet.importers.broadcasting import applied, joint_axes
from stepnet.importers.padding import Special
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.importers.values import as_dtype


@dataclass(frozen=True)
class PointwiseOperator:
    """Row of the table of elementwise operators that formats of models refer to by name.

    function: computes the result from arrays or values of a net, followed by numbers if it takes any.
    fact: finds what is known of the result at padding steps if only some operands are known there; None for
    nothing.
    counts: whether an operand may be the number of steps, as a symbolic size.
    """

    function: Callable[..., Any]
    fact: Special | None = None
    counts: bool = False


OPERATORS: Mapping[str, PointwiseOperator] = {
    "absolute": PointwiseOperator(np.absolute),
    "add": PointwiseOperator(np.add, padding.added, counts=True),
    "affine": PointwiseOperator(activations.affine),
    "arccos": PointwiseOperator(np.arccos),
    "arccosh": PointwiseOperator(np.arccosh),
    "arcsin": PointwiseOperator(np.arcsin),
    "arcsinh": PointwiseOperator(np.arcsinh),
    "arctan": PointwiseOperator(np.arctan),
    "arctan2": PointwiseOperator(np.arctan2),
    "arctanh": PointwiseOperator(np.arctanh),
    "ceil": PointwiseOperator(np.ceil),
    "clip": PointwiseOperator(np.clip),
    "clip6": PointwiseOperator(activations.clip6),
    "cos": PointwiseOperator(np.cos),
    "cosh": PointwiseOperator(np.cosh),
    "divide": PointwiseOperator(np.true_divide),
    "elu": PointwiseOperator(functions.elu),
    "equal": PointwiseOperator(activations.equal, padding.COMPARED["equal"], counts=True),
    "erf": PointwiseOperator(functions.erf),
    "exp": PointwiseOperator(np.exp),
    "exp2": PointwiseOperator(np.exp2),
    "expm1": PointwiseOperator(np.expm1),
    "floor": PointwiseOperator(np.floor),
    "gelu": PointwiseOperator(functions.gelu),
    "greater": PointwiseOperator(np.greater, padding.COMPARED["greater"], counts=True),
    "greater_equal": PointwiseOperator(np.greater_equal, padding.COMPARED["greater_equal"], counts=True),
    "hard_shrink": PointwiseOperator(activations.hard_shrink),
    "hard_sigmoid": PointwiseOperator(activations.hard_sigmoid),
    "hard_swish": PointwiseOperator(activations.hard_swish),
    "leaky_relu": PointwiseOperator(activations.leaky_relu),
    "less": PointwiseOperator(np.less, padding.COMPARED["less"], counts=True),
    "less_equal": PointwiseOperator(np.less_equal, padding.COMPARED["less_equal"], counts=True),
    "linear": PointwiseOperator(activations.linear),
    "log": PointwiseOperator(np.log),
    "log1p": PointwiseOperator(np.log1p),
    "log_sigmoid": PointwiseOperator(activations.log_sigmoid),
    "logical_and": PointwiseOperator(np.logical_and, padding.absorbed(False)),
    "logical_not": PointwiseOperator(np.logical_not),
    "logical_or": PointwiseOperator(np.logical_or, padding.absorbed(True)),
    "logical_xor": PointwiseOperator(np.logical_xor),
    "maximum": PointwiseOperator(np.maximum, counts=True),
    "minimum": PointwiseOperator(np.minimum, counts=True),
    "multiply": PointwiseOperator(np.multiply, padding.multiplied, counts=True),
    "negative": PointwiseOperator(np.negative),
    "not_equal": PointwiseOperator(activations.not_equal),
    "quotient": PointwiseOperator(activations.quotient, padding.divided, counts=True),
    "reciprocal": PointwiseOperator(activations.reciprocal),
    "relu": PointwiseOperator(functions.relu),
    "remainder": PointwiseOperator(np.remainder, counts=True),
    "rint": PointwiseOperator(np.rint),
    "rsqrt": PointwiseOperator(activations.rsqrt),
    "scaled_tanh": PointwiseOperator(activations.scaled_tanh),
    "selu": PointwiseOperator(activations.selu),
    "sigmoid": PointwiseOperator(functions.sigmoid),
    "sign": PointwiseOperator(np.sign),
    "signed_remainder": PointwiseOperator(activations.signed_remainder, counts=True),
    "silu": PointwiseOperator(functions.silu),
    "sin": PointwiseOperator(np.sin),
    "sinh": PointwiseOperator(np.sinh),
    "soft_shrink": PointwiseOperator(activations.soft_shrink),
    "softplus": PointwiseOperator(functions.softplus),
    "softsign": PointwiseOperator(functions.softsign),
    "sparse_plus": PointwiseOperator(activations.sparse_plus),
    "sqrt": PointwiseOperator(np.sqrt),
    "square": PointwiseOperator(activations.square),
    "squared_difference": PointwiseOperator(activations.squared_difference),
    "squareplus": PointwiseOperator(activations.squareplus),
    "subtract": PointwiseOperator(np.subtract, padding.subtracted, counts=True),
    "tan": PointwiseOperator(np.tan),
    "tanh_shrink": PointwiseOperator(activations.tanh_shrink),
    "tanh": PointwiseOperator(np.tanh),
    "thresholded_relu": PointwiseOperator(activations.thresholded_relu),
}
"""The elementwise operators by name: the names of a net's operations where it has them."""


def elementwise(name: str, *values: Placed, numbers: Sequence[Any] = ()) -> Placed:
    """Applies the operator called `name` in the table `OPERATORS` to values, broadcast as by NumPy; returns
    the result with its axes.

    numbers: the numbers that follow its operands, such as the slope of a leaky ReLU.
    """
    function = OPERATORS[name].function
    return applied(lambda *operands: function(*operands, *numbers), *values)


def folded(name: str, values: Sequence[Placed]) -> Placed:
    """Applies an operator of two operands to one or more values from left to right, as in a sum."""
    return reduce(partial(elementwise, name), values)


def mean(*values: Placed) -> Placed:
    """Computes the elementwise mean of several values, in the dtype of the first."""
    return elementwise(
        "divide", folded("add", values), constant(np.asarray(len(values), dtype_of(values[0])))
    )


def dtype_of(value: Placed) -> np.dtype[Any]:
    """Returns the dtype of a value, an array or one of a net."""
    return np.dtype(value.value.dtype)


def clip(x: Placed, low: Any = None, high: Any = None) -> Placed:
    """Limits the numbers of a value to two bounds, by default the least and largest finite numbers of a float
    dtype, and none for integers.
    """
    dtype = dtype_of(x)
    if dtype.kind == "f":
        low = np.finfo(dtype).min if low is None else low
        high = np.finfo(dtype).max if high is None else high
    for bound, name in ((low, "maximum"), (high, "minimum")):
        if bound is not None:
            x = elementwise(name, x, constant(np.asarray(bound, dtype)))
    return x


def power(base: Placed, exponent: Placed) -> Placed:
    """Computes base to the power of exponent elementwise, in the dtype of the base; a floating-point base
    casts the exponent.
    """
    dtype = dtype_of(base)
    if dtype.kind == "f":
        exponent = exponent.with_value(as_dtype(exponent.value, dtype))
    result = applied(np.power, base, exponent)
    return result.with_value(as_dtype(result.value, dtype))


def where(condition: Placed, a: Placed, b: Placed) -> Placed:
    """Computes an elementwise choice: `a` where the condition is true, else `b`.

    If the condition is known and uniform, as a mask is at a sequence's own steps, the selected value is
    returned without an operation.
    """
    if condition.is_constant and np.size(condition.value):
        true = bool(np.all(condition.value))
        value = a if true else b
        if (true or not np.any(condition.value)) and value.axes == joint_axes([condition, a, b]):
            return value.with_value(value.value)
    return applied(np.where, condition, a, b)


# ---- dtypes ------------------------------------------------------------------------------------------------


def cast(x: Placed, dtype: str, rounded: str = "") -> Placed:
    """Computes a value in another dtype. Sizes of which some are symbolic, and placeholders for values that
    cannot be computed with, stay as they are.

    rounded: "float16" or "bfloat16" rounds to it first; "" does not.
    """
    if isinstance(x.value, Unusable):
        return x
    if dtype_of(x).kind == "O":  # sizes, which are integers
        if not all(isinstance(size, int) for size in x.value.flat):
            return x
        x = x.with_value(x.value.astype(np.int64))
    cast_value = as_type(x.value, dtype)
    return x.with_value(round_to_half(cast_value, x.value, rounded) if rounded else cast_value)


def as_type(value: Any, dtype: str) -> Any:
    """Casts an array or traced value to a dtype, without a warning about numbers that do not fit."""
    with np.errstate(all="ignore"):
        return value.astype(dtype)


def round_to_half(single: Any, value: Any, dtype: str) -> Any:
    """Rounds a value to float16 or bfloat16 and returns it as float32, in which half precision is computed.

    single: the value already cast to float32, which is used if the value is not floating-point. dtype:
    "float16" or "bfloat16".
    """
    if not isinstance(value, Traced):
        return as_type(as_type(value, dtype), "float32")
    source = value if value.type.is_float else single
    return apply("cast", apply("cast", source, dtype=dtype), dtype="float32")
