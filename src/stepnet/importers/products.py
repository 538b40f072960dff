"""Computes products of matrices.

A product with a constant is over features. A product over the axis of steps is a sum over each sequence.
"""

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError
from stepnet.importers.axes import (
    Axes,
    features_of,
    is_feature,
    is_keys,
    is_steps,
    is_time,
    symbols_in,
    text_of,
)
from stepnet.importers.padding import check_idle, is_all, padding_values
from stepnet.importers.pairs import mixed, scores
from stepnet.importers.placed import Placed, constant, stated_by
from stepnet.importers.shaping import swapped, transpose
from stepnet.importers.sizes import SEQUENCES
from stepnet.importers.values import as_dtype, at_one_extent, check_room, reshaped, shape_of
from stepnet.model.nested import reduce as reduced_steps

Matrices = Callable[[Any, Any], Any]
"""The product of matrices of features, [..., m, k] and [..., k, n], of each row or of a parameter."""


def is_parameter(x: Placed) -> bool:
    """Tells whether a value is an array or a parameter of the net, all axes of which are features."""
    return not symbols_in(x.axes) and (not isinstance(x.value, Traced) or x.value.is_constant)


def product(a: Placed, b: Placed, matrices: Matrices) -> Placed:
    """Multiplies matrices: over the last axis of `a` and the second-last of `b`, whichever axes these are.

    Products are over features (as of a layer, or of queries and keys) or over the steps of each sequence (as
    of the weights and values of attention). Two constants give a constant. Raises `ModelError` for other
    axes.

    matrices: multiplies two values by their features alone. Each file format passes its own, as the order in
    which products are added differs.
    """
    if a.is_array and b.is_array:
        check_room([*a.features[:-1], *b.features[:-2], *b.features[-1:]])
        return constant(a.array @ b.array)
    if len(b.axes) == 2 and is_parameter(b) and not is_parameter(a):
        a.feature(len(a.axes) - 1)
        return a.with_value(matrices(a.value, b.value), a.axes[:-1] + b.axes[1:])
    if len(a.axes) < 2 or len(b.axes) < 2:
        raise product_error(a, b)
    if is_parameter(a) and not is_parameter(b):
        lead = len(b.axes) - 2
        return transpose(product(swapped(b), swapped(a), matrices), [*range(lead), lead + 1, lead])
    lead, m, k, n = a.axes[:-2], a.axes[-2], a.axes[-1], b.axes[-1]
    if is_keys(k):
        return mixed(a, b)
    if all(any(map(is_steps, axis)) for axis in (m, n)):
        return scores(a, b)
    if b.axes[-2] != k or SEQUENCES in symbols_in((k,)) or not (is_feature(k) or is_time(k)):
        raise product_error(a, b)
    if lead != b.axes[:-2]:
        raise ModelError(
            f"matrices {text_of(a.axes)} and {text_of(b.axes)} are multiplied, whose sequences and "
            "steps are joined in different orders"
        )
    axes, heads = (*lead, m, n), features_of(lead)
    rows, columns, inner = (features_of((axis,)) for axis in (m, n, k))
    weights: Traced | None = None
    if is_time(k):
        left, right = at_one_extent(
            [reshaped(a.value, (*heads, prod(rows), 1)), reshaped(b.value, (*heads, 1, prod(columns)))]
        )
        value = as_dtype(reduced_steps(left * right, "sum"), np.dtype(a.value.dtype))
    elif is_parameter(b) or (not heads and (weights := repeated_matrix(b.value)) is not None):
        own = (prod(rows),) if heads else rows  # a matrix for each head is multiplied by one of rows
        value = matrices(reshaped(a.value, (*heads, *own, *inner)), b.value if weights is None else weights)
    else:
        left = reshaped(a.value, (*heads, prod(rows), *inner))
        value = matrices(left, reshaped(b.value, (*heads, *inner, prod(columns))))
    return Placed(reshaped(value, features_of(axes)), axes, stated_by((a, b)))


def product_error(a: Placed, b: Placed) -> ModelError:
    """Makes the error for a matrix product of two values whose axes do not fit, with both in the message."""
    return ModelError(
        f"a product of {text_of(a.axes)} and {text_of(b.axes)} is not supported: it is over features or over "
        "steps, and not over one with the other"
    )


def multiplied(left: Any, right: Any) -> Any:
    """Multiplies matrices of features, [..., m, k] and [..., k, n]: `right` is a constant, or a computed
    matrix per row.

    A row is one sequence or step. A product with a computed matrix is an elementwise product that is summed
    over the middle axis.
    """
    if not isinstance(right, Traced):
        return left @ right
    *heads, rows, inner = shape_of(left)
    ones = (1,) * (rows != 1)
    x = reshaped(left, (*heads, *([rows] * len(ones)), inner, 1))
    y = reshaped(right, (*heads, *ones, *right.type.shape[-2:]))
    x, y = at_one_extent([x, y])
    return reshaped(np.sum(x * y, axis=-2), (*heads, rows, right.type.shape[-1]))


def repeated_matrix(x: Any) -> Traced | None:
    """Returns the parameter that a value x repeats for all rows (sequences); None for other values."""
    node = x.builder.nodes[x.number]
    if node.operation != "expand" or "how" in node.attributes:
        return None
    matrix = Traced(x.builder, node.inputs[0])
    return matrix if matrix.is_constant and len(matrix.type.shape) == 2 else None


def is_over_steps(a: Axes, b: Axes) -> bool:
    """Tells whether a product of matrices sums over steps of a sequence, or keys of a query."""
    if len(a) < 2 or len(b) < 2:
        return False
    return is_keys(a[-1]) or (is_time(a[-1]) and a[-1] == b[-2])


def matmul(a: Placed, b: Placed, padded: bool) -> Placed:
    """Computes the product of matrices, over features or over the steps of each sequence. padded: whether the
    model has padding; for a sum over steps, `ModelError` unless the values of one operand there are 0.
    """
    known = any(is_all(padding_values(value), 0) for value in (a, b))
    if padded and is_over_steps(a.axes, b.axes) and not known:
        check_idle(a, "sum", padded)
    return product(a, b, multiplied)
