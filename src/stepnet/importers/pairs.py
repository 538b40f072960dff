"""Pairs of steps in models that are read from files: the products of attention, and values at pairs.

    q [N, heads, T, f] @ k' [N, heads, f, T]        [N, heads, T, keys]     products at pairs
    weights [N, heads, T, keys] @ v [N, heads, T, f]    [N, heads, T, f]    sums over the keys of each query

The axis of the keys has a name of its own, so that a value may have steps twice; see also `broadcasting.py`.
"""

from stepnet.compiler.trace.traced import apply
from stepnet.errors import ModelError
from stepnet.importers.axes import extent_of, features_of, is_feature, is_time, keys_axis, keys_of, text_of
from stepnet.importers.placed import Placed, stated_by
from stepnet.importers.values import reshaped, to_extent


def scores(a: Placed, b: Placed, causal: bool = False) -> Placed:
    """Multiplies queries [..., T, features] by keys [..., features, T], where T are steps: returns a number
    for each pair of a query and a key, [..., T, keys].

    causal: whether a query is paired only with the keys up to its own index.

    Raises `ModelError` for other axes.
    """
    lead, m, k, n = a.axes[:-2], a.axes[-2], a.axes[-1], b.axes[-1]
    fits = is_time(m) and is_time(n) and is_feature(k) and b.axes[-2] == k and lead == b.axes[:-2]
    if not fits or any(map(is_time, lead)):
        raise ModelError(
            f"a product of {text_of(a.axes)} and {text_of(b.axes)} is not supported: at pairs of steps, both "
            "have the same sequences and features"
        )
    if a.is_constant or b.is_constant:
        raise ModelError("the queries or the keys of attention are constants")
    heads, size = features_of(lead), features_of((k,))
    query, key = (to_extent(reshaped(x.value, (*heads, *size)), extent_of(x.axes)) for x in (a, b))
    value = apply("scores", query, key, causal=causal)
    return Placed(value, (*lead, m, keys_axis(n, causal)), stated_by((a, b)))


def mixed(weights: Placed, values: Placed) -> Placed:
    """Computes the weighted sums of attention: weights at pairs of steps (query, key) [..., T, keys] times a
    value per key [..., T, features], summed over the keys of each query.

    Raises `ModelError` for other axes.
    """
    lead, m, k, n = weights.axes[:-2], weights.axes[-2], weights.axes[-1], values.axes[-1]
    if values.axes[-2] != keys_of(k) or values.axes[:-2] != lead or not is_feature(n) or not is_time(m):
        raise ModelError(
            f"a product of {text_of(weights.axes)} and {text_of(values.axes)} is not supported: weights at "
            "pairs of steps are multiplied by values at the keys"
        )
    if weights.is_constant or values.is_constant:
        raise ModelError("the weights or the values of attention are constants")
    heads, size = features_of(lead), features_of((n,))
    own = to_extent(reshaped(weights.value, heads), extent_of(weights.axes))
    others = to_extent(reshaped(values.value, (*heads, *size)), extent_of(values.axes))
    value = apply("mix", own, others, over="keys")
    return Placed(value, (*lead, m, n), stated_by((weights, values)))
