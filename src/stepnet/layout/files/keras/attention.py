"""Keras' attention layers: each query is a weighted mean of values.

    a query per sequence, values per step       a softmax over the steps of each sequence
    a query per step, values per sequence       a softmax over features
    both per step                               refused: it pairs each step with each other one

Sources: keras/src/layers/attention/ of 3.15.
"""

from collections.abc import Mapping
from dataclasses import replace
from math import sqrt
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, shaping
from stepnet.importers.axes import text_of, time_of
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.layout.files.keras.call import KerasCall
from stepnet.layout.files.keras.einsum import einsum_dense
from stepnet.layout.files.keras.nodes import rows

LOW = 1e9
"""The number that Keras subtracts from the scores of masked values."""
PARTS: Mapping[str, tuple[str, str]] = {
    "query": ("query", "query_dense"),
    "key": ("key", "key_dense"),
    "value": ("value", "value_dense"),
    "output": ("attention_output", "output_dense"),
}
"""The names of the parts of MultiHeadAttention in .h5 and in .keras files."""


def attention(call: KerasCall) -> Placed:
    """Computes the result of Attention: products of queries and keys, or sums of their tanh."""
    call.only("score_mode", "dot", "concat")
    query, key, value = operands_of(call)
    names = ["scale"] * call.setting("use_scale", False)
    concat = call.setting("score_mode", "dot") == "concat"
    found = call.arrays(dict.fromkeys([*names, *["concat_score_weight"] * concat], ()))
    scale = constant(found[0]) if names else None
    if not concat:
        scores = matmul(query, shaping.swapped(key), padded=False)
        return weighted(call, scores if scale is None else times(scores, scale), value)
    both = sums(query, key)
    grown = pointwise.elementwise("tanh", both if scale is None else times(both, scale))
    scores = reductions.reduce(grown, [-1], "sum", False)
    return weighted(call, times(scores, constant(found[-1])), value)


def additive_attention(call: KerasCall) -> Placed:
    """Computes the result of AdditiveAttention: scores are sums of the tanh of query and key, scaled."""
    query, key, value = operands_of(call)
    grown = pointwise.elementwise("tanh", sums(query, key))
    if call.setting("use_scale", True):
        grown = times(grown, constant(call.arrays({"scale": (query.sizes[-1],)})[0]))
    return weighted(call, reductions.reduce(grown, [-1], "sum", False), value)


def multi_head_attention(call: KerasCall) -> Placed:
    """Computes the result of MultiHeadAttention: products of queries and keys, for each of several heads."""
    call.only("attention_axes", [1], None)
    call.only("sliding_window", None)
    call.only("use_gate", False)
    query, key, value = operands_of(call)
    heads, width = call.wholes("num_heads", 1)[0], call.wholes("key_dim", 1)[0]
    own = call.wholes("value_dim", 1, width)[0]
    of_output = rows(call.config.get("output_shape")) or [query.sizes[-1]]
    if len(of_output) != 1:
        raise ModelError(f"its output_shape is {of_output}: only one size is supported")
    q, k, v = (
        shaping.transpose(projected(call, role, x, "abc,cde->abde", [None, heads, size]), [0, 2, 1, 3])
        for role, x, size in (("query", query, width), ("key", key, width), ("value", value, own))
    )
    q = times(q, constant(np.asarray(1 / sqrt(width), pointwise.dtype_of(q))))
    scores = matmul(q, shaping.swapped(k), padded=False)
    heads_of = masked_softmax(call, scores)
    made = shaping.transpose(matmul(heads_of, v, padded=False), [0, 2, 1, 3])
    return projected(call, "output", made, "abcd,cde->abe", [None, *of_output])


def projected(call: KerasCall, role: str, x: Placed, equation: str, shape: list[Any]) -> Placed:
    """Computes a product with the arrays of a part of MultiHeadAttention. role: the part, as in `PARTS`."""
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

    Raises `ModelError` for other operands, and where both query and value have steps.
    """
    if call.keys:
        raise ModelError(f"it is called with {call.keys[0]}, which is not supported")
    if not 2 <= len(call.operands) <= 3:
        raise ModelError(f"it is called on {len(call.operands)} tensors, where two or three are expected")
    query, value, *rest = call.operands
    key = rest[0] if rest else value
    for x in (query, value, key):
        if x.letters not in ("NT_", "N__"):
            raise ModelError(f"it is called on {text_of(x.axes)}")
    if time_of(query.axes) and time_of(value.axes):
        raise ModelError(
            "its query and its value both have steps: it pairs each step of a sequence with each other one, "
            "which no value of a model does"
        )
    if key.axes[:2] != value.axes[:2]:
        raise ModelError(f"its keys are {text_of(key.axes)}, and its values {text_of(value.axes)}")
    return query, key, value


def times(x: Placed, factor: Placed) -> Placed:
    """Multiplies elementwise."""
    return pointwise.elementwise("multiply", x, factor)


def sums(query: Placed, key: Placed) -> Placed:
    """Returns the sums of each query and each key, [sequences, queries, keys, features]."""
    return pointwise.elementwise("add", shaping.unsqueeze(query, [2]), shaping.unsqueeze(key, [1]))


def masked_softmax(call: KerasCall, scores: Placed) -> Placed:
    """Returns the softmax of scores [sequences, ..., queries, keys] over the keys that masks leave."""
    for mask in call.masks[1:]:
        if mask is not None:
            wide = shaping.unsqueeze(mask, range(1, len(scores.axes) - 1))
            low = constant(np.asarray(LOW, pointwise.dtype_of(scores)))
            scores = pointwise.where(wide, scores, pointwise.elementwise("subtract", scores, low))
    return reductions.softmax(scores, len(scores.axes) - 1)


def weighted(call: KerasCall, scores: Placed, value: Placed) -> Placed:
    """Returns the mean of the values by the softmax of scores; zeros for a query that its mask leaves out."""
    made = matmul(masked_softmax(replace(call, masks=call.masks[:2]), scores), value, padded=False)
    if call.mask is None:
        return made
    zero = constant(np.zeros((), pointwise.dtype_of(made)))
    return pointwise.where(shaping.unsqueeze(call.mask, [2]), made, zero)
