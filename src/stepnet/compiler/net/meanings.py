"""The meanings of operations, as functions of NumPy arrays [..., features...] with any leading axes."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np

from stepnet.compiler.net.encodings import ENCODINGS, by_vector
from stepnet.compiler.net.types import Literal
from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.errors import NetError

Array = np.ndarray
OUTSIDE = "an integer is outside the rows of the parameter that it indexes"
"""The message for an index outside of its table, on all engines; a call adds the number and the place."""


def sigmoid(x: Array) -> Array:
    """Computes 1 / (1 + exp(-x)), without overflow."""
    small = np.exp(-np.abs(x))
    return np.where(x >= 0, np.ones_like(small), small) / (1 + small)


def erf(x: Array) -> Array:
    """Computes the error function, elementwise; in float64 for integers and bools."""
    values = np.array([math.erf(float(value)) for value in x.ravel()], np.float64)
    return values.reshape(x.shape).astype(x.dtype if kind_of_dtype(x.dtype) == "float" else np.float64)


def power(x: Array, *, exponent: float) -> Array:
    """Raises x to a constant power."""
    return np.power(x, exponent)


def cast(x: Array, *, dtype: str) -> Array:
    """Converts x to another dtype."""
    return x.astype(dtype)


def slice_features(x: Array, *, slices: tuple[tuple[int, int, int], ...]) -> Array:
    """Slices x by (start, stop, step) along each feature axis; a stop of -1 means before index 0."""
    index = tuple(slice(start, None if stop < 0 else stop, step) for start, stop, step in slices)
    return x[(..., *index)] if index else x


def reshape(x: Array, *, rank: int, shape: tuple[int, ...]) -> Array:
    """Reshapes the last `rank` axes of x to `shape`."""
    return x.reshape(x.shape[: x.ndim - rank] + shape)


def transpose(x: Array, *, order: tuple[int, ...]) -> Array:
    """Permutes the last axes of x, its feature axes, to this order."""
    lead = x.ndim - len(order)
    return x.transpose(*range(lead), *(lead + axis for axis in order))


def broadcast(x: Array, *, rank: int, shape: tuple[int, ...]) -> Array:
    """Broadcasts the last `rank` axes of x, its features, to `shape`."""
    lead = x.shape[: x.ndim - rank]
    return np.broadcast_to(
        x.reshape(lead + (1,) * (len(shape) - rank) + x.shape[x.ndim - rank :]), lead + shape
    )


def take(x: Array, *, axis: int, indices: tuple[int, ...]) -> Array:
    """Takes the elements of x at constant `indices` along one feature axis, counted from the end."""
    return np.take(x, np.array(indices, np.int64), axis=axis)


def concatenate(*arrays: Array, axis: int) -> Array:
    """Concatenates arrays along one feature axis, counted from the end."""
    return np.concatenate(arrays, axis=axis)


def over_axes(function: Callable[..., Array]) -> Callable[..., Array]:
    """Makes the meaning of a reduction over feature axes, counted from the end. function: NumPy's."""

    def reduced(x: Array, *, axes: tuple[int, ...]) -> Array:
        """Reduces the feature axes `axes` of x."""
        return function(x, axis=axes)

    return reduced


def argmax(x: Array, *, axes: tuple[int, ...]) -> Array:
    """Computes the index of the maximum along a feature axis, the only one in `axes`; the first of equals."""
    return np.argmax(x, axis=axes[0])


def matmul(left: Array, right: Array, *, weights: str | None = None) -> Array:
    """Computes the product [..., k] @ [k, n], one vector at a time.

    One vector at a time, the bits do not depend on their number, as they do in libraries' matrix products.

    weights: the encoding of both sides (`stepnet.compiler.net.encodings`); None for none.
    """
    if weights is not None:
        return ENCODINGS[weights].product(left, right)
    return by_vector(left, right)


def products(*operands: Array, lefts: int, weights: str | None = None) -> tuple[Array, ...]:
    """Computes sums of products of vectors with matrices, one for every `lefts` right sides.

    operands: `lefts` left sides, then for each sum one parameter per left side.
    weights: the encoding to which both sides are rounded (`stepnet.compiler.net.encodings`), such as "int8";
        None for none.
    """
    left_operands, rights = operands[:lefts], operands[lefts:]
    product = partial(matmul, weights=weights)
    starts = range(0, len(rights), lefts)
    return tuple(
        sum(
            map(product, left_operands[1:], rights[at + 1 : at + lefts]),
            product(left_operands[0], rights[at]),
        )
        for at in starts
    )


def gather(table: Array, index: Array) -> Array:
    """Takes the rows of a parameter at integer indices; negative indices count from the end."""
    return table[index]


def scatter(index: Array, values: Array, *, rows: int) -> Array:
    """Computes the sum of all values at each index, [rows, ...]: the adjoint of `gather`."""
    total = np.zeros((rows, *values.shape[index.ndim :]), values.dtype)
    np.add.at(total, index, values)
    return total


def vectors(x: Array) -> Array:
    """Flattens an array to [count, size], where size is that of the last axis, which may be 0."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])


def constant(*, value: Literal) -> Array:
    """Returns the array of a `constant` node's literal."""
    return value.value


REDUCTIONS: dict[str, Callable[[Array], Array]] = {
    "sum": lambda x: x.sum(axis=0),
    "mean": lambda x: x.mean(axis=0),
    "max": lambda x: x.max(axis=0),
    "first": lambda x: x[0],
    "last": lambda x: x[-1],
}


def run_by_interpreter(*arrays: Array, **attributes: object) -> Array:
    """Raises `NetError`. It stands in the table of operations, in place of a NumPy function, for operations
    that need the lengths of sequences, which the interpreter computes itself.
    """
    raise NetError(
        "an operation that crosses extents has no NumPy meaning of its own; the interpreter runs it"
    )
