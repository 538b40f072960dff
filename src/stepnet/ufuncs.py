"""NumPy's ufuncs on a step's values: which operation each one is, or the rule that makes it of several."""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.ops import OPERATIONS
from stepnet.trace import Traced, apply, array_of, builder_of, lifted, refuse, reshaped


def matmul(left: Any, right: Any) -> Traced:
    """left @ right, where right is a parameter; of two parameters; or of a row's own vector and matrix."""
    builder = builder_of((left, right))
    a = Traced(builder, lifted(builder, left, (left, right)))
    b = Traced(builder, lifted(builder, right, (left, right)))
    if a.is_constant and not b.is_constant:
        raise refuse(
            "a parameter stands left of a step's value, which NumPy on [rows, features] would read "
            "otherwise; write x @ W, or x @ W.T for what is W @ x on one column"
        )
    if not b.is_constant:
        return row_matmul(a, b)
    if not a.is_constant and a.dtype.kind == "i" and b.type.is_float:
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
    if not a.type.shape or len(b.type.shape) != 2 or a.type.shape[-1] != b.type.shape[0]:
        raise refuse(
            f"{title(a)} {a.type.element} @ {title(b)} {b.type.element} does not fit: "
            "the last size of the left must be the first of the right"
        )
    return apply("matmul", a, b)


def title(x: Traced) -> str:
    """What to call a value in a message: an input by its name."""
    node = x.builder.nodes[x.number]
    return f"`{node.name}`" if node.operation == "input" else "a value"


def row_matmul(a: Traced, b: Traced) -> Traced:
    """Each row's [..., k] with that row's own [k, n]: products summed over k."""
    left, right = a.type.shape, b.type.shape
    if len(left) != 2 or len(right) != 2 or left[1] != right[0]:
        raise refuse(
            f"{a.type.element} @ {b.type.element} would mix rows; for a row's own vector and matrix "
            "write x[:, None, :] @ m with m of [rows, k, n]"
        )
    return apply("multiply", reshaped(a, (*left, 1)), reshaped(b, (1, *right))).sum(axis=-2)


def power(x: Any, exponent: Any) -> Traced:
    """x to a constant power."""
    if isinstance(exponent, Traced):
        raise refuse("a power by a value is not an operation of a step; use np.exp(b * np.log(a))")
    if np.ndim(exponent) != 0 or array_of(exponent, "the exponent").dtype.kind not in "biuf":
        raise refuse("the exponent of a power is one constant number")
    if not isinstance(x, Traced):  # pragma: no cover - NumPy calls only for a traced operand
        raise refuse("the base of a power is a step's value")
    if float(exponent).is_integer() and abs(float(exponent)) <= 16:
        return integer_power(x, int(exponent))
    if exponent == 0.5:
        return apply("sqrt", x)
    return apply("power", x if x.type.is_float else x.astype(np.float64), exponent=float(exponent))


def integer_power(x: Traced, exponent: int) -> Traced:
    """x multiplied by itself, by repeated squaring."""
    if exponent < 0:
        if not x.type.is_float:
            raise refuse("integers to negative powers are not allowed")
        return apply("divide", 1, integer_power(x, -exponent))
    if exponent == 0:
        ones: Any = np.ones_like(x)  # of NaN too
        return ones
    half = x if exponent == 1 else integer_power(x, exponent // 2)
    if exponent == 1:
        return x
    squared = apply("multiply", half, half)
    return apply("multiply", squared, x) if exponent % 2 else squared


def square(x: Any) -> Traced:
    """x times itself."""
    return apply("multiply", x, x)


def reciprocal(x: Any) -> Traced:
    """1 / x."""
    return apply("divide", 1, x)


def is_nan(x: Any) -> Traced:
    """Whether x is not a number: only such a one differs from itself."""
    return apply("not_equal", x, x)


def bitwise(operation: str) -> Callable[..., Traced]:
    """&, |, ^ and ~ on booleans; integers have no bits here."""

    def rule(*operands: Any) -> Traced:
        if any(getattr(value, "dtype", np.dtype(bool)) != np.bool_ for value in operands):
            raise refuse(f"&, |, ^ and ~ are for booleans in a step; use np.{operation} or comparisons")
        return apply(operation, *operands)

    return rule


UFUNCS: dict[np.ufunc, str | Callable[..., Traced]] = {
    np.add: "add",
    np.subtract: "subtract",
    np.multiply: "multiply",
    np.true_divide: "divide",
    np.floor_divide: "floor_divide",
    np.remainder: "remainder",
    np.minimum: "minimum",
    np.maximum: "maximum",
    np.equal: "equal",
    np.not_equal: "not_equal",
    np.less: "less",
    np.less_equal: "less_equal",
    np.greater: "greater",
    np.greater_equal: "greater_equal",
    np.logical_and: "logical_and",
    np.logical_or: "logical_or",
    np.logical_xor: "logical_xor",
    np.logical_not: "logical_not",
    np.bitwise_and: bitwise("logical_and"),
    np.bitwise_or: bitwise("logical_or"),
    np.bitwise_xor: bitwise("logical_xor"),
    np.invert: bitwise("logical_not"),
    np.negative: "negative",
    np.positive: Traced.copy,
    np.absolute: "absolute",
    np.fabs: "absolute",
    np.sign: "sign",
    np.floor: "floor",
    np.ceil: "ceil",
    np.rint: "rint",
    np.sqrt: "sqrt",
    np.exp: "exp",
    np.expm1: "expm1",
    np.log: "log",
    np.log1p: "log1p",
    np.tanh: "tanh",
    np.square: square,
    np.reciprocal: reciprocal,
    np.isnan: is_nan,
    np.power: power,
    np.matmul: matmul,
}

assert all(rule in OPERATIONS for rule in UFUNCS.values() if isinstance(rule, str))
