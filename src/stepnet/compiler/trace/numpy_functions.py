"""NumPy's own functions on a step's values, as operations of the net.

Every rule takes the arguments of the NumPy function. Axes are those that the step sees, rows first. An axis
that holds the rows is refused.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.trace.einsum import einsum, tensordot
from stepnet.compiler.trace.numpy_reductions import (
    argmax,
    deviation,
    extreme,
    mean,
    norm,
    scan,
    total,
    variance,
)
from stepnet.compiler.trace.numpy_shapes import (
    array_split,
    broadcast_to,
    concatenate,
    expand_dims,
    flip,
    in_every_row,
    moveaxis,
    pad,
    reshape,
    roll,
    split,
    squeeze,
    stack,
    swapaxes,
    take,
    transpose,
)
from stepnet.compiler.trace.traced import (
    Traced,
    apply,
    array_of,
    builder_of,
    dtype_in_steps,
    filled,
    is_weak,
    kind_of,
    lifted,
    refuse,
)
from stepnet.compiler.trace.ufuncs import dot
from stepnet.compiler.values.dtypes import COMPUTED, DTYPES, kind_of_dtype

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np


def where(condition: Any, chosen: Any, other: Any) -> Traced:
    """Computes np.where in a step: one of two values, by a condition. Operands may be arrays and numbers."""
    values = tuple(value_or_number(value) for value in (chosen, other))
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
    if isinstance(value, Traced | bool | int | float):
        return value
    array = array_of(value, "a constant")
    if array.dtype.name not in COMPUTED:
        raise refuse(f"a constant of dtype {array.dtype} cannot enter a step; use one of {', '.join(DTYPES)}")
    return array


def clip(
    x: Any,
    a_min: Any = None,
    a_max: Any = None,
    *,
    min: Any = None,  # noqa: A002 - NumPy's name
    max: Any = None,  # noqa: A002 - NumPy's name
) -> Traced:
    """Computes np.clip in a step: the value limited to two bounds, by position or name; None is no bound."""
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


def full_like(x: Traced, value: Any, dtype: Any = None) -> Traced:
    """Computes np.full_like in a step: a value with the shape of x, and one number everywhere."""
    result_dtype = x.dtype if dtype is None else dtype_in_steps(dtype)
    constant = Traced(x.builder, x.builder.constant(filled(x.type.shape, value, result_dtype)))
    return constant if x.is_constant else in_every_row(constant, len(x.type.shape))


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
    np.sum: total,
    np.max: extreme("max"),
    np.amax: extreme("max"),
    np.min: extreme("min"),
    np.amin: extreme("min"),
    np.argmax: argmax,
    np.cumsum: scan("cumsum"),
    np.cumprod: scan("cumprod"),
    np.mean: mean,
    np.var: variance,
    np.std: deviation,
    np.where: where,
    np.clip: clip,
    np.reshape: reshape,
    np.transpose: transpose,
    np.swapaxes: swapaxes,
    np.moveaxis: moveaxis,
    np.concatenate: concatenate,
    np.stack: stack,
    np.expand_dims: expand_dims,
    np.squeeze: squeeze,
    np.split: split,
    np.array_split: array_split,
    np.zeros_like: zeros_like,
    np.ones_like: ones_like,
    np.full_like: full_like,
    np.broadcast_to: broadcast_to,
    np.take: take,
    np.flip: flip,
    np.roll: roll,
    np.pad: pad,
    np.linalg.norm: norm,
    np.dot: dot,
    np.einsum: einsum,
    np.tensordot: tensordot,
    np.copy: Traced.copy,
    np.ndim: ndim,
    np.shape: shape,
}
