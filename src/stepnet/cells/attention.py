"""Linear attention: a decaying matrix memory to which each step adds the outer product of a key and a value.

All cells take q and k [rows, heads, key] and v [rows, heads, value], after the model's scaling and feature
maps. The memory S is [rows, heads, key, value], the output q S [rows, heads, value], with S after the step.
The cells differ in the decay:

    linear_attention    none
    retnet              per head, a parameter
    simple_gla          per head and step
    gla                 per feature of the key and step
    hgrn2               as gla, with k = 1 - decay
"""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.cells.keyed import read, written

__all__ = ["gla", "hgrn2", "linear_attention", "retnet", "simple_gla"]


def linear_attention(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of linear attention without a normaliser, S = S + k v, o = q S, for the sequences
    (rows) of a batch; returns (output o, next memory S).

    A. Katharopoulos and others, "Transformers are RNNs", 2020 (arXiv 2006.16236).

    Args:
        x: q, k [rows, heads, key], v [rows, heads, value].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> linear_attention({"q": 2 * one, "k": one, "v": 3 * one}, 4 * one[None])
    (array([[[14.]]]), array([[[[7.]]]]))
    """
    q, k, v, state = arrays("linear_attention", x, memory, params)
    state = written(state, k, v)
    return read(state, q), state


def retnet(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of retention, or lightning attention, S = exp(g) S + k v, o = q S, with a fixed decay
    per head, for the sequences (rows) of a batch; returns (output o, next memory S).

    Y. Sun and others, "Retentive network: a successor to Transformer for large language models", 2023 (arXiv
    2307.08621); Z. Qin and others, "Lightning Attention-2", 2024 (arXiv 2401.04658).

    Args:
        x: q, k [rows, heads, key], v [rows, heads, value].
        memory: S [rows, heads, key, value].
        params: g [heads], a logarithm: of RetNet log(1 - 2 ** (-5 - head)).

    >>> one = np.ones((1, 1, 1))
    >>> retnet({"q": 2 * one, "k": one, "v": 3 * one}, 4 * one[None], {"g": np.log([0.5])})
    (array([[[10.]]]), array([[[[5.]]]]))
    """
    q, k, v, state, g = arrays("retnet", x, memory, params)
    state = written(np.exp(g)[:, None, None] * state, k, v)
    return read(state, q), state


def simple_gla(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of linear attention with one decay for each head and step, S = exp(g) S + k v, o = q S,
    for the sequences (rows) of a batch; returns (output o, next memory S).

    The recurrence of Mamba-2 in the terms of attention, of gated RetNet and of the mLSTM without its
    normaliser. S. Yang and others, "Gated linear attention transformers", 2023 (arXiv 2312.06635).

    Args:
        x: q, k [rows, heads, key], v [rows, heads, value], g (a logarithm, so negative) [rows, heads].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> simple_gla({"q": 2 * one, "k": one, "v": 3 * one, "g": np.log([[0.5]])}, 4 * one[None])
    (array([[[10.]]]), array([[[[5.]]]]))
    """
    q, k, v, g, state = arrays("simple_gla", x, memory, params)
    state = written(np.exp(g)[..., None, None] * state, k, v)
    return read(state, q), state


def gla(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of gated linear attention, S = exp(g) S + k v, o = q S, with a decay for each feature
    of the key, for the sequences (rows) of a batch; returns (output o, next memory S).

    S. Yang and others, "Gated linear attention transformers with hardware-efficient training", 2023 (arXiv
    2312.06635).

    Args:
        x: q, k and g (a logarithm, so negative) [rows, heads, key], v [rows, heads, value].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> gla({"q": 2 * one, "k": one, "v": 3 * one, "g": np.log([[[0.5]]])}, 4 * one[None])
    (array([[[10.]]]), array([[[[5.]]]]))
    """
    q, k, v, g, state = arrays("gla", x, memory, params)
    state = written(np.exp(g)[..., None] * state, k, v)
    return read(state, q), state


def hgrn2(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of the HGRN2, whose forget gate f is the decay, and 1 - f the key: S = f S + (1 - f) v,
    output o = q S, for the sequences (rows) of a batch; returns (output o, next memory S).

    Z. Qin and others, "HGRN2: gated linear RNNs with state expansion", 2024 (arXiv 2404.07904).

    Args:
        x: q and g (the logarithm of f) [rows, heads, key], v [rows, heads, value].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> hgrn2({"q": 2 * one, "v": 3 * one, "g": np.log([[[0.75]]])}, 4 * one[None])
    (array([[[7.5]]]), array([[[[3.75]]]]))
    """
    q, v, g, state = arrays("hgrn2", x, memory, params)
    forget = np.exp(g)
    state = written(forget[..., None] * state, 1 - forget, v)
    return read(state, q), state
