"""NumPy's own functions on a step's values, as operations of the net.

Every rule takes the arguments of the NumPy function. Axes are those that the step sees, rows first. An axis
that holds the rows is refused.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.trace import numpy_reductions, numpy_shapes
from stepnet.compiler.trace.einsum import einsum, tensordot
from stepnet.compiler.trace.traced import (
    Traced,
    apply,
    builder_of,
    constant_of,
    dtype_in_steps,
    filled,
    is_weak,
    kind_of,
    lifted,
    refuse,
)
from stepnet.compiler.trace.ufuncs import dot
from stepnet.compiler.values.arguments import is_integer, short_repr
from stepnet.compiler.values.dtypes import kind_of_dtype

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np


def where(condition: Any, *choices: Any) -> Traced:
    """Computes np.where in a step: one of two values, by a condition. Operands may be arrays and numbers.
    Raises `StepError` for a condition alone.
    """
    if len(choices) != 2:
        raise refuse(
            "np.where of a condition alone gives another number of places in each row: write "
            "np.where(condition, x, y)"
        )
    values = tuple(value_or_number(value) for value in choices)
    dtype = np.result_type(*(value if is_weak(value) else kind_of(value) for value in values))
    builder = builder_of((condition, *values))
    numbers = [Traced(builder, lifted(builder, value, values)).astype(dtype) for value in values]
    if not isinstance(condition, Traced):
        condition = np.asarray(condition)
    if condition.dtype != np.bool_:
        condition = condition != 0
    return apply("where", condition, *numbers)


def value_or_number(value: Any) -> Any:
    """Returns a step's value or a Python number unchanged; converts anything else to an array of numbers."""
    return value if isinstance(value, Traced | bool | int | float) else constant_of(value)


def clip(
    x: Any,
    a_min: Any = None,
    a_max: Any = None,
    *,
    min: Any = None,  # noqa: A002 - NumPy's name
    max: Any = None,  # noqa: A002 - NumPy's name
) -> Traced:
    """Computes np.clip in a step: the value limited to two bounds, by position or name; None is no bound.
    Raises `StepError` for bounds by both.
    """
    if any(bound is not None for bound in (a_min, a_max)) and any(bound is not None for bound in (min, max)):
        raise refuse("np.clip takes two bounds by place or by the names min and max, not by both")
    low, high = a_min if min is None else min, a_max if max is None else max
    dtype = kind_of(x)
    if kind_of_dtype(dtype) == "integer":  # a bound beyond the range of the dtype is no bound
        low = None if type(low) is int and low <= np.iinfo(dtype).min else low
        high = None if type(high) is int and high >= np.iinfo(dtype).max else high
    if low is None and high is None:
        return numpy.positive(x)
    above = x if low is None else apply("maximum", x, low)
    return above if high is None else apply("minimum", above, high)


def select(condlist: Sequence[Any], choicelist: Sequence[Any], default: Any = 0) -> Traced:
    """Computes np.select in a step: the choice of the first condition that is true, or else the default.
    Raises `StepError` for conditions that are no booleans, or not as many as the choices.
    """
    if len(condlist) != len(choicelist) or not condlist:
        raise refuse(
            f"np.select takes a choice for each condition, and {len(condlist)} conditions meet "
            f"{len(choicelist)} choices"
        )
    if any(kind_of(condition) != np.bool_ for condition in condlist):
        raise refuse("the conditions of np.select are booleans: write x != 0")
    values = tuple(value_or_number(value) for value in (*choicelist, default))
    dtype = np.result_type(*(value if is_weak(value) else kind_of(value) for value in values))
    result = values[-1]
    for condition, choice in zip(reversed(condlist), reversed(values[:-1]), strict=True):
        result = where(condition, choice, result)
    return result.astype(dtype)


def nan_to_num(
    x: Traced, copy: bool = True, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None
) -> Traced:
    """Computes np.nan_to_num in a step: numbers in place of NaN and infinities; integers and booleans stay.
    copy: has no effect.
    """
    if not x.type.is_float:
        return x
    info = np.finfo(x.dtype)
    above, below = info.max if posinf is None else posinf, info.min if neginf is None else neginf
    finite = numpy.where(x == np.inf, above, numpy.where(x == -np.inf, below, x))
    return numpy.where(x != x, nan, finite).astype(x.dtype)


def rounded(a: Traced, decimals: int = 0) -> Traced:
    """Computes np.round in a step: to a number of decimal places, by NumPy's products and quotients; integers
    stay. Raises `StepError` for booleans, and for integers and a negative number of places.
    """
    if not is_integer(decimals):
        raise refuse(f"np.round takes a whole number of decimals, not {short_repr(decimals)}")
    if a.dtype == np.bool_:
        raise refuse("np.round of booleans is not an operation of a step: cast with .astype first")
    if kind_of_dtype(a.dtype) == "integer" and decimals < 0:
        raise refuse("np.round of integers to less than ones: cast with .astype(np.float64)")
    if kind_of_dtype(a.dtype) == "integer":
        return a
    factor = 10.0 ** abs(int(decimals))
    if decimals == 0:
        return apply("rint", a)
    scaled = apply("rint", a * factor if decimals > 0 else a / factor)
    return scaled / factor if decimals > 0 else scaled * factor


def result_type(*arrays_and_dtypes: Any) -> np.dtype[Any]:
    """Computes np.result_type in a step: the dtype to which values and dtypes promote."""
    return np.result_type(*(each.dtype if isinstance(each, Traced) else each for each in arrays_and_dtypes))


def full_like(x: Traced, value: Any, dtype: Any = None) -> Traced:
    """Computes np.full_like in a step: a value with the shape of x, and one number everywhere."""
    result_dtype = x.dtype if dtype is None else dtype_in_steps(dtype)
    constant = Traced(x.builder, x.builder.constant(filled(x.type.shape, value, result_dtype)))
    return constant if x.is_constant else numpy_shapes.in_every_row(constant, len(x.type.shape))


def zeros_like(x: Traced, dtype: Any = None) -> Traced:
    """Computes np.zeros_like in a step: zeros with the shape of x."""
    return full_like(x, 0, dtype)


def ones_like(x: Traced, dtype: Any = None) -> Traced:
    """Computes np.ones_like in a step: ones with the shape of x."""
    return full_like(x, 1, dtype)


def ndim(x: Traced) -> int:
    """Computes np.ndim in a step: the number of axes, with that of the rows."""
    return x.ndim


def shape(x: Traced) -> tuple[Any, ...]:
    """Computes np.shape in a step: the rows, then the sizes of the features."""
    return x.shape


FUNCTIONS: dict[Callable[..., Any], Callable[..., Any]] = {
    np.sum: numpy_reductions.total,
    np.max: numpy_reductions.extreme("max"),
    np.amax: numpy_reductions.extreme("max"),
    np.min: numpy_reductions.extreme("min"),
    np.amin: numpy_reductions.extreme("min"),
    np.argmax: numpy_reductions.argmax,
    np.argmin: numpy_reductions.argmin,
    np.prod: numpy_reductions.product,
    np.all: numpy_reductions.truth("np.all", True),
    np.any: numpy_reductions.truth("np.any", False),
    np.count_nonzero: numpy_reductions.count_nonzero,
    np.diff: numpy_reductions.difference,
    np.sort: numpy_reductions.sort,
    np.argsort: numpy_reductions.argsort,
    np.cumsum: numpy_reductions.scan("cumsum"),
    np.cumprod: numpy_reductions.scan("cumprod"),
    np.mean: numpy_reductions.mean,
    np.var: numpy_reductions.variance,
    np.std: numpy_reductions.deviation,
    np.where: where,
    np.select: select,
    np.clip: clip,
    np.nan_to_num: nan_to_num,
    np.round: rounded,
    np.around: rounded,
    np.reshape: numpy_shapes.reshape,
    np.transpose: numpy_shapes.transpose,
    np.swapaxes: numpy_shapes.swapaxes,
    np.moveaxis: numpy_shapes.moveaxis,
    np.concatenate: numpy_shapes.concatenate,
    np.stack: numpy_shapes.stack,
    np.expand_dims: numpy_shapes.expand_dims,
    np.squeeze: numpy_shapes.squeeze,
    np.split: numpy_shapes.split,
    np.array_split: numpy_shapes.array_split,
    np.zeros_like: zeros_like,
    np.ones_like: ones_like,
    np.full_like: full_like,
    np.broadcast_to: numpy_shapes.broadcast_to,
    np.hstack: numpy_shapes.hstack,
    np.append: numpy_shapes.append,
    np.repeat: numpy_shapes.repeat,
    np.tile: numpy_shapes.tile,
    np.ravel: numpy_shapes.ravel,
    np.fliplr: numpy_shapes.fliplr,
    np.matrix_transpose: numpy_shapes.matrix_transpose,
    np.take: numpy_shapes.take,
    np.flip: numpy_shapes.flip,
    np.roll: numpy_shapes.roll,
    np.pad: numpy_shapes.pad,
    np.linalg.norm: numpy_reductions.norm,
    np.dot: dot,
    np.einsum: einsum,
    np.tensordot: tensordot,
    np.copy: Traced.copy,
    np.ndim: ndim,
    np.shape: shape,
    np.result_type: result_type,
}
