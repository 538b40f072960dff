"""Keras' attention layers: each query is a weighted mean of values.

    a query per sequence, values per step       a softmax over the steps of each sequence
    a query per step, values per sequence       a softmax over features
    both per step                               a softmax over the keys of each query, at pairs of steps

Sources: keras/src/layers/attention/ of 3.15.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.axes import keys_axis, text_of, time_of
from stepnet.importers.broadcasting import at_keys
from stepnet.importers.pairs import scores as scores_at_pairs
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.einsum import einsum_dense
from stepnet.layout.files.keras.nodes import rows

LOW = 1e9
"""The number that Keras subtracts from the scores of masked values."""
PARTS: Mapping[str, tuple[str, ...]] = {
    "query": ("query", "query_dense", "_query_dense"),
    "key": ("key", "key_dense", "_key_dense"),
    "value": ("value", "value_dense", "_value_dense"),
    "output": ("attention_output", "output_dense", "_output_dense"),
}
"""The names of the parts of MultiHeadAttention in .h5 and .keras files, and those of GroupQueryAttention."""
CAUSAL = "use_causal_mask"
"""The argument of a call by which a query attends only to the values up to its own index."""


def attention(call: KerasCall) -> Placed:
    """Computes the result of Keras' Attention: the mean of the values by the softmax of scores. A score is a
    product of query and key, or a sum over the tanh of query + key (the setting "concat").
    """
    call.only("score_mode", "dot", "concat")
    query, key, value = operands_of(call)
    names = ["scale"] * call.setting("use_scale", False)
    concat = call.setting("score_mode", "dot") == "concat"
    found = call.arrays(dict.fromkeys([*names, *["concat_score_weight"] * concat], ()))
    scale = constant(found[0]) if names else None
    if not concat:
        scores = products(call, query, key)
        return weighted(call, scores if scale is None else times(scores, scale), value)
    both = sums(call, query, key)
    grown = pointwise.elementwise("tanh", both if scale is None else times(both, scale))
    scores = reductions.reduce(grown, [-1], "sum", False)
    return weighted(call, times(scores, constant(found[-1])), value)


def additive_attention(call: KerasCall) -> Placed:
    """Computes the result of Keras' AdditiveAttention: the mean of the values by the softmax of scores. A
    score is the sum over the features of scale tanh(query + key); without the setting "use_scale", scale is
    1.
    """
    query, key, value = operands_of(call)
    grown = pointwise.elementwise("tanh", sums(call, query, key))
    if call.setting("use_scale", True):
        grown = times(grown, constant(call.arrays({"scale": (query.sizes[-1],)})[0]))
    return weighted(call, reductions.reduce(grown, [-1], "sum", False), value)


def multi_head_attention(call: KerasCall) -> Placed:
    """Computes Keras' MultiHeadAttention: for each head, the mean of the values weighted by the softmax of
    the products of queries and keys.
    """
    call.only("attention_axes", [1], None)
    heads, width = call.wholes("num_heads", 1)[0], call.wholes("key_dim", 1)[0]
    own = call.wholes("value_dim", 1, width)[0]
    return of_heads(call, (heads, heads), (width, own), rows(call.config.get("output_shape")))


def grouped_query_attention(call: KerasCall) -> Placed:
    """Computes the result of Keras' GroupQueryAttention, in which several heads of queries share one head of
    keys and values. Raises `ModelError` unless the heads of queries are a multiple of the others.
    """
    heads, own = call.wholes("num_query_heads", 1)[0], call.wholes("num_key_value_heads", 1)[0]
    if own < 1 or heads % own:
        raise ModelError(f"its {heads} heads of queries are no multiple of {own} heads of keys")
    width = call.wholes("head_dim", 1)[0]
    return of_heads(call, (heads, own), (width, width), [])


def of_heads(call: KerasCall, heads: tuple[int, int], widths: tuple[int, int], output: list[Any]) -> Placed:
    """Computes attention of several heads: products of query, key and value with matrices (projections),
    attention in each head, and the product of the joined results with a matrix.

    heads: the numbers of heads of queries, and of keys and values. widths: the sizes of a head of queries and
    keys, and of values. output: the shape of the result; empty for that of the query.
    """
    call.only("sliding_window", None)
    call.only("use_gate", False)
    query, key, value = operands_of(call)
    of_output = output or [query.sizes[-1]]
    if len(of_output) != 1:
        raise ModelError(f"its output_shape is {of_output}: only one size is supported")
    (count, own), (width, other) = heads, widths
    q, k, v = (
        shaping.transpose(projected(call, role, x, "abc,cde->abde", [None, *shape]), [0, 2, 1, 3])
        for role, x, shape in (
            ("query", query, (count, width)),
            ("key", key, (own, width)),
            ("value", value, (own, other)),
        )
    )
    if own != count:
        shared = constant(np.repeat(np.arange(own), count // own))
        k, v = (selecting.gather(x, shared, 1) for x in (k, v))
    q = times(q, constant(np.asarray(1 / sqrt(width), pointwise.dtype_of(q))))
    made = matmul(masked_softmax(call, products(call, q, k)), v, padded=False)
    if call.mask is not None:
        # Keras masks all keys of a query that is masked itself, so that all have the same weight.
        kept = shaping.unsqueeze(call.mask, [1, 3])
        made = pointwise.where(kept, made, reductions.reduce(v, [2], "mean", True))
    made = shaping.transpose(made, [0, 2, 1, 3])
    return projected(call, "output", made, "abcd,cde->abe", [None, *of_output])


def products(call: KerasCall, query: Placed, key: Placed) -> Placed:
    """Returns the products of queries and keys, [..., queries, keys]; causal: keys up to the query's."""
    if CAUSAL in call.keys:
        return scores_at_pairs(query, shaping.swapped(key), causal=True)
    return matmul(query, shaping.swapped(key), padded=False)


def projected(call: KerasCall, role: str, x: Placed, equation: str, shape: list[Any]) -> Placed:
    """Computes the product of x with the arrays of a projection in MultiHeadAttention, such as that of the
    queries. role: the projection, by which `PARTS` has the names of its arrays. equation, shape: of the
    product, as EinsumDense has them.
    """
    arrays = {
        name.partition("/")[2]: array
        for name, array in call.stored.items()
        if name.partition("/")[0] in PARTS[role]
    }
    bias = equation.rpartition("->")[2][2:] if call.setting("use_bias", True) else None
    config = {"equation": equation, "output_shape": shape, "bias_axes": bias}
    return einsum_dense(replace(call, config=config, operands=(x,), stored=arrays))


def operands_of(call: KerasCall) -> tuple[Placed, Placed, Placed]:
    """Returns query, key and value of an attention layer, each [sequences, steps or a feature, features].

    Raises `ModelError` for other operands and arguments.
    """
    others = [key for key in call.keys if key != CAUSAL]
    if others:
        raise ModelError(f"it is called with {others[0]}, which is not supported")
    if not 2 <= len(call.operands) <= 3:
        raise ModelError(f"it is called on {len(call.operands)} tensors, where two or three are expected")
    query, value, *rest = call.operands
    key = rest[0] if rest else value
    for x in (query, value, key):
        if x.letters not in ("NT_", "N__"):
            raise ModelError(f"it is called on {text_of(x.axes)}")
    if CAUSAL in call.keys and not (time_of(query.axes) and time_of(value.axes)):
        raise ModelError(f"it is called with {CAUSAL}, and its query or its value has no steps")
    if key.axes[:2] != value.axes[:2]:
        raise ModelError(f"its keys are {text_of(key.axes)}, and its values {text_of(value.axes)}")
    return query, key, value


def times(x: Placed, factor: Placed) -> Placed:
    """Multiplies elementwise."""
    return pointwise.elementwise("multiply", x, factor)


def sums(call: KerasCall, query: Placed, key: Placed) -> Placed:
    """Returns the sums of each query and each key, [sequences, queries, keys, features]; in a call with a
    causal mask only with the keys up to the query's own step.
    """
    left, right = shaping.unsqueeze(query, [2]), shaping.unsqueeze(key, [1])
    steps, own = time_of(query.axes), time_of(key.axes)
    if steps and own:
        right = at_keys(right, 2, keys_axis(own, CAUSAL in call.keys), steps)
    return pointwise.elementwise("add", left, right)


def masked_softmax(call: KerasCall, scores: Placed) -> Placed:
    """Returns the softmax of scores [sequences, ..., queries, keys] over the keys that are True in the masks
    of keys and values.
    """
    for mask in call.masks[1:]:
        if mask is not None:
            wide = shaping.unsqueeze(mask, range(1, len(scores.axes) - 1))
            low = constant(np.asarray(LOW, pointwise.dtype_of(scores)))
            scores = pointwise.where(wide, scores, pointwise.elementwise("subtract", scores, low))
    return reductions.softmax(scores, len(scores.axes) - 1)


def weighted(call: KerasCall, scores: Placed, value: Placed) -> Placed:
    """Returns the mean of the values for each query, weighted by the softmax of the scores [sequences,
    queries, keys] over the keys; zeros for a query where the mask of queries is False.
    """
    made = matmul(masked_softmax(replace(call, masks=call.masks[:2]), scores), value, padded=False)
    if call.mask is None:
        return made
    zero = constant(np.zeros((), pointwise.dtype_of(made)))
    return pointwise.where(shaping.unsqueeze(call.mask, [2]), made, zero)
