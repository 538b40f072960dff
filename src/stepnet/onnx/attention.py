"""The Attention operator of ONNX, since version 23 of its operators."""

from stepnet.errors import ModelError
from stepnet.importers import shaping
from stepnet.importers.attention import attended
from stepnet.importers.padding import check_no_padding
from stepnet.importers.placed import Placed
from stepnet.onnx.call import OnnxCall

USUAL = {"softcap": 0, "qk_matmul_output_mode": 0, "left_window_size": -1, "right_window_size": -1}
"""Attributes that are not supported, with the values that leave them out."""
OTHERS = {4: "past_key", 5: "past_value", 6: "nonpad_kv_seqlen"}
"""Inputs that are not supported, by their position."""


def attention(call: OnnxCall) -> Placed:
    """Computes the result of an ONNX Attention node, from queries, keys and values [batch, heads, time, size]
    or, with the heads joined in the last axis, [batch, time, heads * size]; the result has the same axes.

    Raises `ModelError` for inputs and attributes that are not supported, and in a model with padding.
    """
    check_no_padding(call.padded)
    stated = [name for name, usual in USUAL.items() if call.attributes.get(name, usual) != usual]
    stated += [name for place, name in OTHERS.items() if call.optional(place) is not None]
    if stated or call.outputs > 1:
        raise ModelError(f"it has {stated[0] if stated else 'several outputs'}, which is not supported")
    scale, causal = call.attributes.get("scale"), bool(call.attributes.get("is_causal", 0))
    operands = [call.operand(place) for place in range(3)]
    side_by_side = len(operands[0].axes) == 3
    if side_by_side:
        counts = [int(call.attributes.get(f"{of}_num_heads", 1)) for of in ("q", "kv", "kv")]
        operands = [split_heads(x, count) for x, count in zip(operands, counts, strict=True)]
    query, key, value = operands
    made = attended(query, key, value, call.optional(3), causal, scale)
    if not side_by_side:
        return made
    rows, heads, steps, size = made.sizes
    return shaping.reshape(shaping.transpose(made, [0, 2, 1, 3]), [rows, steps, heads * size])


def split_heads(x: Placed, heads: int) -> Placed:
    """Splits the features of a value into heads: [sequences, steps, heads * size] becomes [sequences, heads,
    steps, size].

    Raises `ModelError` if the number of features is no multiple of `heads`.
    """
    rows, steps, width = x.sizes
    x.feature(2)
    if heads < 1 or width % heads:
        raise ModelError(f"its {width} features are no multiple of {heads} heads")
    return shaping.transpose(shaping.reshape(x, [rows, steps, heads, width // heads]), [0, 2, 1, 3])
