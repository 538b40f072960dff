"""From a step, written as ordinary Python, to a net.

The step runs once on `Traced` values, which stand for arrays [rows, features...] (inputs, memories, statics)
or for whole parameters. NumPy's own protocols bring each operation here; a table says which operation of a
net it is. The same step runs unchanged on NumPy arrays, which is what the result is tested against.
"""

import inspect
import linecache
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from stepnet.errors import NetError, StepError
from stepnet.ir import Builder
from stepnet.ops import OPERATIONS
from stepnet.types import CONST, DTYPES, Type

# What these make of a traced value comes back through its protocols, which the stubs of NumPy do not know.
numpy: Any = np

HERE = os.path.dirname(os.path.abspath(__file__))
NUMPY = os.path.dirname(os.path.abspath(np.__file__))


def user_line() -> str:
    """The file, line and text of the innermost call that is neither stepnet's nor NumPy's."""
    frame = inspect.currentframe()
    while frame is not None:
        file = os.path.abspath(frame.f_code.co_filename)
        if not file.startswith((HERE + os.sep, NUMPY + os.sep)) or os.path.basename(file) == "cells.py":
            text = linecache.getline(frame.f_code.co_filename, frame.f_lineno).strip()
            return f"{frame.f_code.co_filename}:{frame.f_lineno}: {text}".rstrip(": ")
        frame = frame.f_back
    return ""


def refuse(message: str) -> StepError:
    """The error with the user's line under it."""
    return StepError(f"{message}\n  at {user_line()}")


class Rows:
    """The number of rows, which no step may know: it passes through `reshape(x.shape[0], ...)` and nothing
    else.
    """

    def __repr__(self) -> str:
        return "rows"

    def __index__(self) -> int:
        raise refuse(
            "the number of rows is not known in a step; use np.zeros_like(x), or let shapes broadcast"
        )

    __int__ = __index__


ROWS_AXIS = Rows()


class Traced(NDArrayOperatorsMixin):
    """A value in a net being made. It behaves as the array it stands for, as far as a step may."""

    __slots__ = ("builder", "number")
    __array_priority__ = 1000

    def __init__(self, builder: Builder, number: int) -> None:
        self.builder = builder
        self.number = number

    # ---- what it is

    @property
    def type(self) -> Type:
        """Its type in the net."""
        return self.builder.type_of(self.number)

    @property
    def is_constant(self) -> bool:
        """Whether it is a parameter or made of parameters alone."""
        return self.type.extent == CONST

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape that the step sees: rows first, unless it is a parameter."""
        return self.type.shape if self.is_constant else (ROWS_AXIS, *self.type.shape)

    @property
    def ndim(self) -> int:
        """The number of axes that the step sees."""
        return len(self.shape)

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of the array it stands for."""
        return np.dtype(self.type.dtype)

    @property
    def T(self) -> "Traced":  # noqa: N802 - NumPy's name
        """A parameter with its axes reversed."""
        if not self.is_constant:
            raise refuse(
                "x.T would move the rows; use np.swapaxes on feature axes, or transpose the parameter"
            )
        return transposed(self, tuple(reversed(range(len(self.type.shape)))))

    def __repr__(self) -> str:
        return f"Traced({self.type})"

    # ---- what NumPy brings

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **options: Any) -> "Traced":
        if method != "__call__":
            raise refuse(f"np.{ufunc.__name__}.{method} is not supported in a step")
        if "out" in options:
            raise refuse("a step's values never change in place: write a = a + b for a += b")
        if options:
            raise refuse(f"np.{ufunc.__name__} takes no {', '.join(options)} in a step")
        rule = UFUNCS.get(ufunc)
        if rule is None:
            raise refuse(f"np.{ufunc.__name__} is not an operation of a step")
        return rule(*inputs) if callable(rule) else apply(rule, *inputs)

    def __array_function__(self, function: Callable[..., Any], types: Any, inputs: Any, options: Any) -> Any:
        from stepnet.numpy_functions import FUNCTIONS  # the rules are written in terms of this module

        rule = FUNCTIONS.get(function)
        if rule is None:
            name = f"{function.__module__}.{function.__name__}".replace("numpy", "np", 1)
            raise refuse(f"{name} is not an operation of a step")
        try:
            inspect.signature(rule).bind(*inputs, **options)
        except TypeError as error:
            raise refuse(f"np.{function.__name__} in a step: {error}") from None
        return rule(*inputs, **options)

    def __getitem__(self, index: Any) -> "Traced":
        from stepnet.indexing import indexed  # written in terms of this module

        return indexed(self, index)

    # ---- methods of arrays

    def astype(self, dtype: Any, copy: bool = True) -> "Traced":
        """The value as another dtype."""
        name = np.dtype(dtype).name
        if name not in DTYPES:
            raise refuse(f"dtype {name} is none of {', '.join(DTYPES)}")
        return self if name == self.type.dtype else apply("cast", self, dtype=name)

    def reshape(self, *shape: Any) -> "Traced":
        """The features laid out anew."""
        whole = len(shape) == 1 and isinstance(shape[0], tuple | list)
        return numpy.reshape(self, shape[0] if whole else shape)

    def transpose(self, *axes: Any) -> "Traced":
        """The feature axes in another order."""
        whole = len(axes) == 1 and not isinstance(axes[0], int)
        return numpy.transpose(self, (axes[0] if whole else axes) or None)

    def swapaxes(self, first: int, second: int) -> "Traced":
        """Two feature axes exchanged."""
        return numpy.swapaxes(self, first, second)

    def sum(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """The sum over feature axes."""
        return numpy.sum(self, axis=axis, keepdims=keepdims)

    def mean(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """The mean over feature axes."""
        return numpy.mean(self, axis=axis, keepdims=keepdims)

    def var(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """The variance over feature axes."""
        return numpy.var(self, axis=axis, keepdims=keepdims)

    def std(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """The standard deviation over feature axes."""
        return numpy.std(self, axis=axis, keepdims=keepdims)

    def max(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """The largest over feature axes."""
        return numpy.max(self, axis=axis, keepdims=keepdims)

    def min(self, axis: Any = None, keepdims: bool = False) -> "Traced":
        """The smallest over feature axes."""
        return numpy.min(self, axis=axis, keepdims=keepdims)

    def argmax(self, axis: Any = None) -> "Traced":
        """Where the largest is along a feature axis."""
        return numpy.argmax(self, axis=axis)

    def clip(self, low: Any = None, high: Any = None) -> "Traced":
        """The value kept between two bounds."""
        return numpy.clip(self, low, high)

    def dot(self, other: Any) -> "Traced":
        """The product with a parameter."""
        return matmul(self, other)

    def copy(self) -> "Traced":
        """The value itself: values never change."""
        return self

    # ---- what a step cannot do

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise refuse(
            "a step's value is not an array while it is traced; use NumPy's functions on it as it is"
        )

    def __bool__(self) -> bool:
        raise refuse("a step cannot branch on a value: every row may differ; use np.where")

    def __iter__(self) -> Iterator[Any]:
        raise refuse("a step cannot loop over a value; slice its features: x[:, 0], x[:, 1], ...")

    def __len__(self) -> int:
        raise refuse("len() of a step's value is its rows, which a step cannot know; use x.shape[-1]")

    def __float__(self) -> float:
        raise refuse("a step's value is not a number while it is traced")

    __int__ = __complex__ = __index__ = __float__  # pyright: ignore[reportAssignmentType]

    def __setitem__(self, index: Any, value: Any) -> None:
        raise refuse("a step's values never change; use np.where or np.concatenate to make a new one")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise refuse(f"array method .{name} is not an operation of a step")


# ---- applying one operation --------------------------------------------------------------------------------


def apply(operation: str, *operands: Any, **attributes: Any) -> Traced:
    """One operation on traced values, arrays and Python numbers (which are weak, as in NumPy)."""
    builder = builder_of(operands)
    numbers = [lifted(builder, value, operands) for value in operands]
    if OPERATIONS[operation].kind == "pointwise":
        align(builder, numbers)
    try:
        return Traced(builder, builder.add(operation, *numbers, source=user_line(), **attributes))
    except NetError as error:
        raise refuse(str(error)) from None


def builder_of(operands: Sequence[Any]) -> Builder:
    """The one net that the operands belong to."""
    builders = {id(value.builder): value.builder for value in operands if isinstance(value, Traced)}
    if len(builders) != 1:
        raise refuse("values of two different steps meet; hand the value in as an input, static or parameter")
    return next(iter(builders.values()))


def lifted(builder: Builder, value: Any, operands: Sequence[Any]) -> int:
    """The number of a value in the net; an array or number becomes a constant."""
    if isinstance(value, Traced):
        return value.number
    if isinstance(value, bool | int | float):
        dtypes = [operand.dtype for operand in operands if hasattr(operand, "dtype")]
        return builder.constant(np.array(value, np.result_type(*dtypes, value)))
    array = np.asarray(value)
    if array.dtype.name not in DTYPES:
        raise refuse(f"a constant of dtype {array.dtype} cannot enter a step; use one of {', '.join(DTYPES)}")
    return builder.constant(array)


def align(builder: Builder, numbers: list[int]) -> None:
    """Gives constants the feature rank they have beside rows; refuses what NumPy would lay against rows."""
    types = [builder.type_of(number) for number in numbers]
    ranks = [len(type_.shape) for type_ in types if type_.extent != CONST]
    if not ranks:
        return
    if min(ranks) != max(ranks) and max(ranks) > 0:
        shapes = " and ".join(type_.element for type_ in types if type_.extent != CONST)
        raise refuse(
            f"values with different numbers of feature axes meet ({shapes}): NumPy would lay features "
            "against rows; add an axis with x[:, None] where it belongs"
        )
    for place, type_ in enumerate(types):
        if type_.extent == CONST and len(type_.shape) > max(ranks):
            if type_.shape[0] != 1 or len(type_.shape) > max(ranks) + 1:
                raise refuse(
                    f"a parameter {type_.element} would lie against the rows of {max(ranks)} feature axes"
                )
            numbers[place] = builder.add(
                "reshape", numbers[place], rank=len(type_.shape), shape=type_.shape[1:]
            )


def transposed(x: Traced, order: tuple[int, ...]) -> Traced:
    """The feature axes in another order; as it is where nothing moves."""
    return x if order == tuple(range(len(order))) else apply("transpose", x, order=order)


def reshaped(x: Traced, shape: tuple[int, ...]) -> Traced:
    """The features as `shape`; as it is where nothing changes."""
    return x if shape == x.type.shape else apply("reshape", x, rank=len(x.type.shape), shape=shape)


# ---- ufuncs ------------------------------------------------------------------------------------------------


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
    if np.ndim(exponent) != 0:
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
        return apply("add", apply("multiply", x, 0), 1)
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
