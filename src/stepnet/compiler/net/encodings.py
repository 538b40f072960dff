"""Low-precision products: how both sides are encoded, and the product of the encoded sides.

    bfloat16   both sides rounded to bfloat16
    stored     W rounded to bfloat16, x in its dtype      weights that are bfloat16 already: nothing is lost
    int8       x[k] = p[k] a    W[k, n] = q[k, n] b[n]      p and q integers from -127 to 127
               x @ W = (sum of p[k] q[k, n]) a b[n]         the sum is exact
    stored_int8                 W[k, n] = q[k, n] b[n]      x in its dtype
               x @ W = (sum of x[k] q[k, n]) b[n]

There is a scale b[n] per column (a unit of a gate), and a scale a per vector x. The scale a is computed at
run time from x alone: the result depends neither on calibration samples nor on other rows of the batch.
Everything but the sum is computed in the dtype of the values, so that engines can give the same bits.

The precision of a recurrence is an attribute of its node that engines read:

    %4 = recur x h0 W R precision=int8/31.75+128      q = 31.75 x + 128, in 0 to 255

The engine onednn runs a known cell in this dtype, with this scale for inputs and memory. The other engines
encode only the sides of the recurrence's products. All other values keep their dtype, and no scale is needed.
"""

from collections.abc import Callable

import numpy as np

from stepnet.compiler.values.bfloat16 import BFLOAT16
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
LARGEST = 127
"""The largest magnitude of an int8 code."""
SMALLEST = 2.0**-100
"""A lower bound on the largest magnitude of a vector, so that 127 / largest does not overflow."""
MOST_TERMS = 2**17
"""The largest number of int8 products whose sum fits 32 bits."""


@dataclass(frozen=True)
class Encoding:
    """Encoding of weights in few bits, and the product of encoded sides.

    bytes: the bytes of one encoded weight.
    is_scaled: whether the codes come with scales, per column of the weights and per vector of the left side.
    product: encodes both sides, [..., k] and [k, n], and computes their product.
    is_left_encoded: whether the left side is encoded too.
    """

    bytes: int
    is_scaled: bool
    product: Callable[[Array, Array], Array]
    is_left_encoded: bool = True


def by_vector(left: Array, right: Array) -> Array:
    """Multiplies each vector [k] of the left side with [k, n]; bits do not depend on the other vectors."""
    return np.matmul(left[..., None, :], right)[..., 0, :]


def rounded(values: Array) -> Array:
    """Rounds values to bfloat16, and returns them in their original dtype.

    >>> rounded(np.array([1.0, 1.001, 1.006]))
    array([1.       , 1.       , 1.0078125])
    """
    return values.astype(BFLOAT16).astype(values.dtype)


def whole_numbers(values: Array, axis: int) -> tuple[Array, Array]:
    """Encodes vectors along `axis` as integers from -127 to 127 times a scale; returns integers and scales.

    The largest magnitude of a vector becomes 127. The scales keep the axis, with size 1.
    Where a vector contains NaN or infinity its scale is NaN and its integers are 0.

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
    """Multiplies both sides rounded to bfloat16: [..., k] @ [k, n]."""
    return by_vector(rounded(left), rounded(right))


def product_with_rounded(left: Array, right: Array) -> Array:
    """Multiplies vectors by a matrix that is rounded to bfloat16: [..., k] @ [k, n]."""
    return by_vector(left, rounded(right))


def product_with_whole_numbers(left: Array, right: Array) -> Array:
    """Multiplies vectors by a matrix rounded to int8, with a scale for each column: [..., k] @ [k, n]."""
    q, b = whole_numbers(right, 0)
    return by_vector(left, q) * b[0]


def product_of_whole_numbers(left: Array, right: Array) -> Array:
    """Multiplies vectors by a matrix, [..., k] @ [k, n], after rounding both to int8, with a scale for each
    vector and each column. The integer products are summed exactly, in float64.
    """
    (p, a), (q, b) = whole_numbers(left, -1), whole_numbers(right, 0)
    sums = by_vector(p.astype(np.float64), q.astype(np.float64))
    return sums.astype(left.dtype) * a * b[0]


ENCODINGS = {
    "bfloat16": Encoding(2, False, product_of_rounded),
    "int8": Encoding(1, True, product_of_whole_numbers),
    "stored": Encoding(2, False, product_with_rounded, is_left_encoded=False),
    "stored_int8": Encoding(1, True, product_with_whole_numbers, is_left_encoded=False),
}
PRECISIONS = ("bfloat16", "int8")
"""The encodings of both sides: precisions of a recurrence that `stepnet.quantize` chooses from."""
HALF = "float16"
"""The precision of recurrences in float32 in a model whose matrices and tables have numbers of float16, which
devices store in two bytes.
"""
OF_WEIGHTS = {"bfloat16": "stored", "int8": "stored_int8"}
"""The encodings of weights alone, by the dtype of the weights: precisions of linear layers."""


@dataclass(frozen=True)
class Precision:
    """The precision that calibration on samples chose for a recurrence.

    dtype: "float32", "bfloat16" or "int8"; an encoding of the weights alone, "stored" or "stored_int8"; or
        `HALF`.
    recurrence: the index of the recurrence in its model, in the order of tracing.
    scale, shift: the int8 quantization of inputs and memory for the engine onednn; scale is None if samples
        were not measured for it. The scales of the weights are computed from the weights.
    exact: names of parameters that products read as they are, in any precision.

    >>> print(Precision("int8", 0, 31.75, 128.0), Precision("int8"), Precision("bfloat16"))
    int8/31.75+128 int8 bfloat16
    >>> print(Precision("stored_int8", exact=("R",)))
    stored_int8-R
    """

    dtype: str
    recurrence: int = 0
    scale: float | None = None
    shift: float = 0.0
    exact: tuple[str, ...] = ()

    @property
    def is_low(self) -> bool:
        """Tells whether a recurrence of this precision computes products in fewer bits than float32."""
        return self.dtype in ENCODINGS

    def __str__(self) -> str:
        """Writes the precision, such as bfloat16 or int8/31.75+128 (scale and shift of its inputs), and after
        it, each with a minus, the parameters that are exact.
        """
        scaled = "" if self.scale is None else f"/{self.scale:.4g}+{self.shift:g}"
        return "-".join([self.dtype + scaled, *self.exact])
