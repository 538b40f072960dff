"""Scaled dot-product attention as one operator of a format: products, their softmax, and means of values."""

from math import sqrt
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting
from stepnet.importers.axes import features_of, is_feature, is_time, text_of
from stepnet.importers.pairs import scores
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.importers.shaping import swapped


def attended(
    query: Placed,
    key: Placed,
    value: Placed,
    mask: Placed | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> Placed:
    """Computes attention of queries [..., queries, size] to keys [..., keys, size] and values.

    Queries and keys may be steps or features. The heads are the third axis from the end; if there are fewer
    heads of keys and values, each serves equally many heads of queries.

    mask: bools, False for keys that are left out, or numbers that are added to the products. causal: whether
    a query attends only to the keys up to its own index. scale: the factor of the products; None for 1 /
    sqrt(size).

    Raises `ModelError` for other axes.
    """
    rank = len(query.axes)
    if rank < 3 or {len(key.axes), len(value.axes)} != {rank} or not is_feature(query.axes[-1]):
        axes = ", ".join(text_of(x.axes) for x in (query, key, value))
        raise ModelError(f"its operands {axes} are no queries, keys and values")
    factor = 1 / sqrt(query.sizes[-1]) if scale is None else scale
    query = pointwise.elementwise("multiply", query, constant(np.asarray(factor, pointwise.dtype_of(query))))
    key, value = (of_heads(x, query) for x in (key, value))
    at_pairs = is_time(query.axes[-2]) and is_time(key.axes[-2])
    if causal and not at_pairs:
        raise ModelError("it is causal, and its queries or its keys are no steps")
    turned = swapped(key)
    products = scores(query, turned, causal) if at_pairs else matmul(query, turned, padded=False)
    weights = reductions.softmax(products, rank - 1) if mask is None else masked(products, mask)
    return matmul(weights, value, padded=False)


def of_heads(x: Placed, query: Placed) -> Placed:
    """Returns keys or values with as many heads as the queries have in their third axis from the end: fewer
    heads are repeated, each for as many neighbouring heads of queries. Raises `ModelError` if the numbers do
    not divide.
    """
    own, wanted = x.axes[-3], query.axes[-3]
    if own == wanted or not is_feature(own) or not is_feature(wanted):
        return x
    (count,), (heads,) = features_of((own,)), features_of((wanted,))
    if heads % count:
        raise ModelError(f"its {heads} heads of queries are no multiple of {count} heads of keys")
    shared = np.repeat(np.arange(count), heads // count)
    return selecting.gather(x, constant(shared), len(x.axes) - 3)


def masked(products: Placed, mask: Placed) -> Placed:
    """Computes the softmax over the keys of products of queries and keys under a mask. mask: bools, False for
    keys that are left out, or numbers that are added to the products. A query without keys gets zeros.
    """
    dtype = pointwise.dtype_of(products)
    low: Any = constant(np.asarray(-np.inf, dtype))
    if pointwise.dtype_of(mask).kind == "b":
        products = pointwise.where(mask, products, low)
    else:
        products = pointwise.elementwise("add", products, mask)
    last = len(products.axes) - 1
    nothing = pointwise.elementwise("equal", reductions.reduce(products, [last], "max", True), low)
    weights = reductions.softmax(products, last)
    return pointwise.where(nothing, constant(np.zeros((), dtype)), weights)
