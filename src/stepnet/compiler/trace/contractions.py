"""Products summed over labelled axes: the common form of `@`, np.einsum and np.tensordot in a step.

    values of the rows      ->  multiply, then sum      q[h, k], m[h, k, n]  ->  sum over k of q m
    a value and a parameter ->  matmul, head by head    x[h, k] @ P[h]       ->  x[0] @ P[0], x[1] @ P[1], ...

A letter labels an axis of features. Additions are those of a `sum` or a `matmul`, so no batch changes their
order.
"""

import math
from collections.abc import Sequence
from string import ascii_letters
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced, apply, reshaped, transposed
from stepnet.compiler.values.records import dataclass

# NumPy returns a traced value for a traced value, which its stubs do not know.
numpy: Any = np

MOST_BLOCKS = 64
"""A contraction with a parameter becomes at most this many products of vectors with matrices; one that needs
more becomes a multiplication and a sum."""

FEW_RESULTS = 8
"""With at least this many results, sums run in parallel, one per vector lane; with fewer, one by one."""


@dataclass(frozen=True)
class Labelled:
    """Value of a step, with a different letter for each of its feature axes."""

    value: Traced
    letters: str

    @property
    def sizes(self) -> dict[str, int]:
        """The size of each feature axis of the value, by the letter of the axis."""
        return dict(zip(self.letters, self.value.type.shape, strict=True))

    def with_axes(self, letters: str) -> Traced:
        """Returns the value with feature axes in the order of letters, of size 1 for a missing letter."""
        present = [letter for letter in letters if letter in self.letters]
        value = transposed(self.value, tuple(self.letters.index(letter) for letter in present))
        return reshaped(value, tuple(self.sizes.get(letter, 1) for letter in letters))

    def summed(self, result_letters: str) -> "Labelled":
        """Sums over the axes of all letters that are not in `result_letters`; keeps the dtype."""
        summed_letters = "".join(letter for letter in self.letters if letter not in result_letters)
        remaining = "".join(letter for letter in self.letters if letter in result_letters)
        return Labelled(
            sum_of(self.value, tuple(self.letters.index(letter) for letter in summed_letters)), remaining
        )


def sum_of(x: Traced, axes: tuple[int, ...]) -> Traced:
    """Sums over feature axes in the dtype of x (NumPy's sum widens small integers); x for no axes."""
    rank = len(x.type.shape)
    return apply("sum", x, axes=tuple(axis - rank for axis in axes)).astype(x.dtype) if axes else x


def common_sizes(operands: Sequence[Labelled]) -> dict[str, int]:
    """Returns the size of each letter's axis in an einsum; a size of 1 gives way to another."""
    sizes: dict[str, int] = {}
    for letter, size in (pair for operand in operands for pair in operand.sizes.items()):
        sizes[letter] = size if sizes.get(letter, 1) == 1 else sizes[letter]
    return sizes


def without_ones(operand: Labelled, sizes: dict[str, int], others: str = "") -> Labelled:
    """Drops an operand's axes of size 1 where `sizes` has a larger one, and those of letters in `others`."""
    kept = (n for n in operand.letters if operand.sizes[n] == sizes[n] and n not in others)
    letters = "".join(kept)
    return Labelled(reshaped(operand.value, tuple(sizes[letter] for letter in letters)), letters)


def contracted(a: Labelled, b: Labelled, result_letters: str) -> Labelled:
    """Multiplies two values with labelled axes, and sums over all letters except those in `result_letters`.
    Products with parameters become matrix products, if a few of these suffice. Otherwise the factors are
    multiplied elementwise and summed: along the first axes if there are at least `FEW_RESULTS` results, so
    that results are summed in parallel.
    """
    a, b = a.summed(result_letters + b.letters), b.summed(result_letters + a.letters)
    if a.value.is_constant != b.value.is_constant:
        x, parameter = (b, a) if a.value.is_constant else (a, b)
        if is_product(x, parameter, result_letters):
            return multiplied_by_parameter(x, parameter, result_letters)
    over = "".join(letter for letter in a.letters if letter in b.letters and letter not in result_letters)
    result = "".join(dict.fromkeys(letter for letter in a.letters + b.letters if letter in result_letters))
    sizes = a.sizes | b.sizes
    first = math.prod(sizes[letter] for letter in result) >= FEW_RESULTS
    order = over + result if first else result + over
    product = apply("multiply", a.with_axes(order), b.with_axes(order))
    start = 0 if first else len(result)
    return Labelled(sum_of(product, tuple(range(start, start + len(over)))), result)


def is_product(x: Labelled, parameter: Labelled, result_letters: str) -> bool:
    """Tells whether a product with a parameter is computed as products of vectors with matrices: if axes are
    summed, at most `MOST_BLOCKS` products are needed, and matrices have several columns or one is enough.

    result_letters: the letters that are not summed over.
    """
    sizes = x.sizes | parameter.sizes
    over = [letter for letter in x.letters if letter not in result_letters]
    blocks = math.prod(sizes[letter] for letter in x.letters if letter in result_letters)
    width = math.prod(sizes[letter] for letter in parameter.letters if letter not in x.letters)
    return bool(over) and 1 <= blocks <= MOST_BLOCKS and (width > 1 or blocks == 1)


def multiplied_by_parameter(x: Labelled, parameter: Labelled, result_letters: str) -> Labelled:
    """Multiplies a value by a parameter, with one matmul for each index of the axes that both have and the
    result too, such as attention heads.

    result_letters: the letters that are not summed over.
    """
    both = "".join(letter for letter in x.letters if letter in parameter.letters and letter in result_letters)
    over = "".join(letter for letter in x.letters if letter not in result_letters)
    own = "".join(letter for letter in x.letters if letter not in both + over)
    new = "".join(letter for letter in parameter.letters if letter not in both + over)
    sizes = x.sizes | parameter.sizes
    heads, inner, width = (math.prod(sizes[letter] for letter in labels) for labels in (both, over, new))
    remaining = reshaped(x.with_axes(both + own + over), (heads, *(sizes[letter] for letter in own), inner))
    right = reshaped(parameter.with_axes(both + over + new), (heads, inner, width))
    pieces = [apply("matmul", remaining[:, head], right[head]) for head in range(heads)]
    product = numpy.stack(pieces, axis=1) if both else pieces[0]
    letters = both + own + new
    return Labelled(reshaped(product, tuple(sizes[letter] for letter in letters)), letters)


def matrix_product(a: Traced, b: Traced) -> Traced:
    """Multiplies matrices [..., m, k] and [..., k, n] of each row as np.matmul does, by labelled axes. The
    axis of rows is not among them.
    """
    ranks = [len(a.type.shape), len(b.type.shape)]
    batch = ascii_letters[: max(ranks) - 2]
    m, k, n = ascii_letters[-3:]
    labelled = [
        Labelled(value, batch[len(batch) + 2 - rank :] + own)
        for value, rank, own in zip((a, b), ranks, (m + k, k + n), strict=True)
    ]
    sizes = common_sizes(labelled)
    ones = "".join(letter for letter in m + k + n if sizes[letter] == 1)
    first, second = (without_ones(operand, sizes, ones) for operand in labelled)
    return contracted(first, second, batch + m + n).with_axes(batch + m + n)
