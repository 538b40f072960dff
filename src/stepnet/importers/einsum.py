"""Computes einsum: products of values whose axes have letters, summed over the letters that the result lacks.

btd,hd->bth     [sequences, steps, d] and a parameter [h, d]     a product of matrices
bth,btd->bhd    two values per step                              a sum over the steps of each sequence
"""

import re
import string
from collections.abc import Iterable, Sequence
from math import prod

from stepnet.errors import ModelError
from stepnet.importers import pointwise
from stepnet.importers.axes import ONE, features_of, is_feature
from stepnet.importers.placed import Placed
from stepnet.importers.products import Matrices, is_parameter, product
from stepnet.importers.reductions import reduce
from stepnet.importers.shaping import transpose

TERM = r"[A-Za-z]*([.]{3})?[A-Za-z]*"
EQUATION = re.compile(rf"{TERM}(,{TERM})*(->{TERM})?")
UPPER = string.ascii_uppercase


def einsum(equation: str, values: Sequence[Placed], matrices: Matrices, padded: bool = False) -> Placed:
    """Computes the einsum of values, whose axes may be sequences, steps and features, from the first to the
    last.

    equation: letters of the axes, such as "btd,hd->bth"; without an arrow the result has the letters that
        occur once, in their order.
    matrices: multiplies two values by their features alone, as for `product`. padded: whether the model has
        padding; in a sum over the steps its numbers must be 0.

    Raises `ModelError` for an equation that does not fit, and for letters that a value has twice.
    """
    terms, result = letters_of(equation, [len(value.axes) for value in values])
    x, own = values[0], terms[0]
    for place, (value, other) in enumerate(zip(values[1:], terms[1:], strict=True), 2):
        later = {*result}.union(*terms[place:])
        x, own, inner = multiplied(x, own, value, other, later, matrices)
        x, own = summed(x, own, inner, padded)
    x, own = summed(x, own, [letter for letter in own if letter not in result], padded)
    return transpose(x, [own.index(letter) for letter in result])


def letters_of(equation: str, ranks: Sequence[int]) -> tuple[list[str], str]:
    """Returns the letters of the axes of each operand and of the result, with letters for an ellipsis too;
    raises `ModelError` for an equation that does not fit operands of these numbers of axes.

    >>> letters_of("...x,xy->...y", [3, 2])
    (['ABx', 'xy'], 'ABy')
    """
    text = equation.replace(" ", "")
    left, arrow, result = text.partition("->")
    terms = left.split(",")
    if not EQUATION.fullmatch(text) or len(terms) != len(ranks):
        raise ModelError(f"its equation {equation[:100]!r} is not one of {len(ranks)} operands")
    if not arrow:
        single = [letter for letter in sorted({*left} - {*",."}) if left.count(letter) == 1]
        result = "".join(["..." * ("..." in left), *single])
    further = [rank - len(term.replace("...", "")) for term, rank in zip(terms, ranks, strict=True)]
    own = [letter for letter in UPPER if letter not in text][: max(0, *further)]
    terms = [
        term.replace("...", "".join(own[len(own) - count :]) if count > 0 else "")
        for term, count in zip(terms, further, strict=True)
    ]
    result = result.replace("...", "".join(own))
    once = all(len({*letters}) == len(letters) for letters in (*terms, result))
    if not once or [*map(len, terms)] != ranks or not {*result} <= {*"".join(terms)}:
        raise ModelError(
            f"its equation {equation[:100]!r} does not fit operands of {', '.join(map(str, ranks))} axes, or "
            "names an axis twice"
        )
    return terms, result


def multiplied(
    x: Placed, own: str, value: Placed, other: str, later: set[str], matrices: Matrices
) -> tuple[Placed, str, list[str]]:
    """Multiplies two values of an einsum; returns the product, the letters of its axes, and the letters over
    which it is still to be summed.

    own, other: the letters of their axes. later: the letters that the result or later values have: over the
        others that both have, the product is summed at once. matrices: multiplies two values by their
        features alone.
    """
    if is_parameter(x) and not is_parameter(value):
        x, own, value, other = value, other, x, own
    inner = [letter for letter in own if letter in other and letter not in later]
    columns = [letter for letter in other if letter not in own]
    rows = [letter for letter in own if letter not in inner]
    of_features = all(is_feature(x.axes[own.index(letter)]) for letter in inner)
    if is_parameter(value) and inner and of_features and len(inner) + len(columns) == len(other):
        left, right = ordered(x, own, rows + inner), ordered(value, other, inner + columns)
        matrix = joined_last(left, len(inner)), joined_last(joined_first(right, len(inner)), len(columns))
        made = product(*matrix, matrices)
        return made.shaped((*made.axes[: len(rows)], *right.axes[len(inner) :])), "".join(rows + columns), []
    letters = [*own, *columns]
    x = x.shaped((*x.axes, *[ONE] * len(columns)))
    right = ordered(value, other, [letter for letter in letters if letter in other])
    axes = iter(right.axes)
    right = right.shaped(tuple(next(axes) if letter in other else ONE for letter in letters))
    return pointwise.elementwise("multiply", x, right), "".join(letters), inner


def ordered(x: Placed, letters: str, order: Iterable[str]) -> Placed:
    """Brings the axes of a value, whose letters are given, into another order of these letters."""
    return transpose(x, [letters.index(letter) for letter in order])


def summed(x: Placed, letters: str, over: Sequence[str], padded: bool) -> tuple[Placed, str]:
    """Sums a value over the axes of some of its letters (`over`), in an einsum; returns it with the letters
    that remain. padded: whether the model has padding after sequences' ends, which must then be known to be
    0.
    """
    if not over:
        return x, letters
    total = reduce(x, [letters.index(letter) for letter in over], "sum", keep=False, padded=padded)
    return total, "".join(letter for letter in letters if letter not in over)


def joined_first(x: Placed, count: int) -> Placed:
    """Joins the first axes of a value of features to one; a new one of size one for none."""
    return x.shaped(((prod(features_of(x.axes[:count])),), *x.axes[count:]))


def joined_last(x: Placed, count: int) -> Placed:
    """Joins the last axes of a value, which are features, to one; a new one of size one for none."""
    first = len(x.axes) - count
    return x.shaped((*x.axes[:first], (prod(features_of(x.axes[first:])),)))
