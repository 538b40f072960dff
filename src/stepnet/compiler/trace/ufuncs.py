"""NumPy's ufuncs on a step's values: each as one operation, or by a rule as several."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.net.ops import OPERATIONS
from stepnet.compiler.trace.contractions import matrix_product
from stepnet.compiler.trace.traced import (
    Traced,
    apply,
    array_of,
    builder_of,
    filled,
    kind_of,
    lifted,
    misfit,
    refuse,
    reshaped,
    title,
)
from stepnet.compiler.values.dtypes import COMPUTED, kind_of_dtype

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np


def matmul(left: Any, right: Any) -> Traced:
    """Computes left @ right in a step: a value times a parameter, two parameters, or the product of two
    matrices for each row. Raises `StepError` for other operands, and for sizes that do not fit.
    """
    builder = builder_of((left, right))
    a = Traced(builder, lifted(builder, left, (left, right)))
    b = Traced(builder, lifted(builder, right, (left, right)))
    if a.is_constant and not b.is_constant:
        raise refuse(
            "a parameter is multiplied by a step's value from the left, which NumPy on [rows, "
            "features] would do over other axes; write x @ W, or x @ W.T for W @ x of one column"
        )
    if not b.is_constant:
        return of_matrices(a, b)
    if not a.is_constant and kind_of_dtype(a.dtype) == "integer" and b.type.is_float:
        raise refuse(
            f"{title(a)} has dtype {a.dtype} and meets {b.dtype} parameters in a product; cast it: "
            f"x.astype(np.{b.dtype}) (for token ids, index an embedding: E[x])"
        )
    if len(b.type.shape) == 1:
        product = matmul(a, reshaped(b, (*b.type.shape, 1)))
        return reshaped(product, product.type.shape[:-1])
    if len(a.type.shape) == 1 and a.is_constant:
        product = matmul(reshaped(a, (1, *a.type.shape)), b)
        return reshaped(product, product.type.shape[1:])
    if len(b.type.shape) > 2:
        return of_matrices(a, b)
    if not a.type.shape:
        raise refuse(
            f"{title(a)} is one number in each row, and {title(b)} {b.type.element} multiplies features: an "
            "input has a last axis of features, [batch, time, features]; over the steps of an inner sequence "
            "write sn.reduce(x, 'mean'), and for the last one sn.reduce(x, 'last')"
        )
    if len(b.type.shape) != 2 or a.type.shape[-1] != b.type.shape[0]:
        raise refuse(
            f"{title(a)} {a.type.element} @ {title(b)} {b.type.element} does not fit: "
            "the last size of the left must be the first of the right"
        )
    return apply("matmul", a, b)


def of_matrices(a: Traced, b: Traced) -> Traced:
    """Multiplies matrices [..., m, k] and [..., k, n] of the same row, or of each row and a parameter, which
    may have another first axis of size 1 for the rows; raises `StepError` for shapes that would mix rows.
    """
    left, right = a.type.shape, b.type.shape
    if b.is_constant and len(right) == len(left) + 1 and right[0] == 1:  # the same in every row
        b, right = reshaped(b, right[1:]), right[1:]
    beside = a.is_constant == b.is_constant and (len(left) == len(right) or a.is_constant)
    if min(len(left), len(right)) < 2 or left[-1] != right[-2] or not (beside or len(right) <= len(left)):
        raise misfit(
            f"{a.type.element} @ {b.type.element} would mix rows; for a row's own vector and matrix "
            "write x[:, None, :] @ m with m of [rows, k, n]",
            a.builder,
            [a.number, b.number],
        )
    np.broadcast_shapes(left[:-2], right[:-2])
    return matrix_product(a, b)


def dot(left: Any, right: Any) -> Traced:
    """Computes np.dot in a step; raises `StepError` for rows on both sides, which np.dot would mix."""
    if all(isinstance(value, Traced) and not value.is_constant for value in (left, right)):
        raise refuse("np.dot of two values mixes their rows; for a row's own vector and matrix write @")
    return matmul(left, right)


def in_loop(ufunc: np.ufunc, *operands: Any) -> list[Traced]:
    """Casts the operands of a ufunc to the dtypes in which NumPy computes it; returns traced values. ufunc:
    one of NumPy's elementwise functions.
    """
    builder = builder_of(operands)
    dtypes = loop_dtypes(ufunc, *operands)
    values = [Traced(builder, lifted(builder, value, operands)) for value in operands]
    return [value.astype(dtype) for value, dtype in zip(values, dtypes, strict=True)]


def loop_dtypes(ufunc: np.ufunc, *operands: Any) -> tuple[Any, ...]:
    """Returns the dtypes to which NumPy casts a ufunc's operands; raises `StepError` if steps do not compute
    in one of them.
    """
    try:
        dtypes = ufunc.resolve_dtypes((*map(kind_of, operands), None))
    except TypeError as error:
        raise refuse(str(error)) from None
    for dtype in dtypes:
        if dtype.name not in COMPUTED:
            raise refuse(
                f"np.{ufunc.__name__} would compute in dtype {dtype} here, which steps do not support: cast "
                "with .astype"
            )
    return dtypes[:-1]


def power_by_number(x: Traced, exponent: Any) -> Traced:
    """Computes x to the power of one constant number, as NumPy does; raises `StepError` for no number."""
    if kind_of_dtype(array_of(exponent, "the exponent").dtype) == "other":
        raise refuse("the exponent of a power is a number, a value of the step, or an array of numbers")
    dtype, dtype_of_exponent = loop_dtypes(np.power, x, exponent)
    number: Any = filled((), exponent, dtype_of_exponent).item()
    if kind_of_dtype(dtype) == "float":
        return float_power(x.astype(dtype), number)
    if x.dtype == np.bool_:
        raise refuse("whole powers of booleans are not an operation of a step; cast with .astype first")
    if number < 0:
        raise refuse(f"integers to negative powers are not allowed: write x ** {float(number)}")
    return integer_power(x.astype(dtype), number)


def float_power(x: Traced, exponent: float) -> Traced:
    """Raises a float to a constant power: by products, a quotient or a square root for the powers in
    `FLOAT_POWERS`, and otherwise by the operation `power`.
    """
    if exponent in FLOAT_POWERS:
        return FLOAT_POWERS[exponent](x)
    if math.isnan(exponent):
        return numpy.where(x == 1, x, exponent)
    return apply("power", x, exponent=exponent)


def integer_power(x: Traced, exponent: int) -> Traced:
    """Raises an integer to a constant power by repeated squaring."""
    if exponent < 2:
        return x if exponent else numpy.ones_like(x)
    half = integer_power(x, exponent // 2)
    squared = apply("multiply", half, half)
    return apply("multiply", squared, x) if exponent % 2 else squared


FLOAT_POWERS: dict[float, Callable[[Traced], Traced]] = {
    -1.0: lambda x: apply("divide", 1, x),
    0.0: lambda x: numpy.ones_like(x),  # of NaN too
    0.5: lambda x: apply("sqrt", x),
    1.0: lambda x: x,
    2.0: lambda x: apply("multiply", x, x),
    3.0: lambda x: apply("multiply", apply("multiply", x, x), x),
}


def square(x: Any) -> Traced:
    """Computes np.square in a step: x times itself."""
    (x,) = in_loop(np.square, x)
    return apply("multiply", x, x)


def reciprocal(x: Any) -> Traced:
    """Computes np.reciprocal in a step: 1 / x, which is truncated for integers as in NumPy."""
    (x,) = in_loop(np.reciprocal, x)
    return apply("divide", 1, x) if x.type.is_float else apply("divide", 1, x).astype(x.dtype)


def positive(x: Any) -> Traced:
    """Computes np.positive in a step: x unchanged."""
    return in_loop(np.positive, x)[0]


def fabs(x: Any) -> Traced:
    """Computes np.fabs in a step: |x| as a float."""
    return apply("absolute", *in_loop(np.fabs, x))


def is_nan(x: Any) -> Traced:
    """Computes np.isnan in a step: only NaN differs from itself."""
    return apply("not_equal", x, x)


def bitwise(ufunc: np.ufunc, operation: str) -> Callable[..., Traced]:
    """Makes the rule for &, |, ^ or ~ in a step, which is a logical operation for booleans.

    ufunc: NumPy's bitwise function, whose name that of integers has. operation: the name of the logical one,
        such as "logical_and".
    """

    def rule(*operands: Any) -> Traced:
        """Applies &, |, ^ or ~ in a step to booleans or to integers; raises `StepError` for floats."""
        values = in_loop(ufunc, *operands)
        return apply(operation if values[0].dtype == np.bool_ else ufunc.__name__, *values)

    return rule


UFUNCS: dict[np.ufunc, str | Callable[..., Traced]] = {
    **{row.meaning: row.name for row in OPERATIONS.values() if isinstance(row.meaning, np.ufunc)},
    np.bitwise_and: bitwise(np.bitwise_and, "logical_and"),
    np.bitwise_or: bitwise(np.bitwise_or, "logical_or"),
    np.bitwise_xor: bitwise(np.bitwise_xor, "logical_xor"),
    np.invert: bitwise(np.invert, "logical_not"),
    np.positive: positive,
    np.fabs: fabs,
    np.square: square,
    np.reciprocal: reciprocal,
    np.isnan: is_nan,
    np.matmul: matmul,
}
"""A ufunc that is the meaning of an operation maps to it; of the others, these take one operation or two.
`composed` has those that take more."""
