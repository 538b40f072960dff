"""Weights in fewer bits: how the two sides of a product are encoded, and what the product then is.

    bfloat16   both sides rounded to bfloat16
    int8       x[k] = p[k] a    W[k, n] = q[k, n] b[n]      p and q whole numbers from -127 to 127
               x @ W = (sum of p[k] q[k, n]) a b[n]         the sum is exact

The scale b[n] belongs to one column, a unit of a gate. The scale a belongs to one vector x and is found anew
for each: so the result depends neither on samples nor on what else is in the batch. Everything but the sum is
computed in the dtype of the values, so engines can have the same bits.
"""

from collections.abc import Callable
from dataclasses import dataclass

import ml_dtypes
import numpy as np

Array = np.ndarray
LARGEST = 127
"""The largest whole number of int8."""
SMALLEST = 2.0**-100
"""What the largest number of a vector counts as at least, so that no scale overflows."""
MOST_TERMS = 2**17
"""The number of terms up to which a sum of products of int8 fits 32 bits."""


@dataclass(frozen=True)
class Encoding:
    """One way to encode weights.

    bytes: of one weight. is_scaled: whether there are scales besides. product: the product [..., k] @ [k, n]
    of sides that are not encoded yet.
    """

    bytes: int
    is_scaled: bool
    product: Callable[[Array, Array], Array]


def by_vector(left: Array, right: Array) -> Array:
    """The product of each vector [k] of the left with [k, n], one vector at a time."""
    return np.matmul(left[..., None, :], right)[..., 0, :]


def rounded(values: Array) -> Array:
    """The values rounded to bfloat16, in the dtype that they have.

    >>> rounded(np.array([1.0, 1.001, 1.006]))
    array([1.       , 1.       , 1.0078125])
    """
    return values.astype(ml_dtypes.bfloat16).astype(values.dtype)


def whole_numbers(values: Array, axis: int) -> tuple[Array, Array]:
    """Whole numbers from -127 to 127 and the scales with which they stand for the values, one along an axis.

    A scale is NaN where there is NaN or infinity among its values, and the whole numbers are then 0.

    >>> whole_numbers(np.array([[0.5, -1.27], [0.0, 0.0]]), axis=1)[0]
    array([[  50., -127.],
           [   0.,    0.]])
    """
    dtype = values.dtype.type
    largest = np.maximum(np.abs(values).max(axis=axis, keepdims=True, initial=0), dtype(SMALLEST))
    is_finite = np.isfinite(largest)
    numbers: Array = np.where(is_finite, np.rint(values * (dtype(LARGEST) / largest)), 0)
    scales: Array = np.where(is_finite, largest, np.nan) / dtype(LARGEST)
    return numbers, scales


def product_of_rounded(left: Array, right: Array) -> Array:
    """The product of both sides rounded to bfloat16."""
    return by_vector(rounded(left), rounded(right))


def product_of_whole_numbers(left: Array, right: Array) -> Array:
    """The product by way of whole numbers, which float64 sums exactly."""
    (p, a), (q, b) = whole_numbers(left, -1), whole_numbers(right, 0)
    sums = by_vector(p.astype(np.float64), q.astype(np.float64))
    return sums.astype(left.dtype) * a * b[0]


ENCODINGS = {
    "bfloat16": Encoding(2, False, product_of_rounded),
    "int8": Encoding(1, True, product_of_whole_numbers),
}
