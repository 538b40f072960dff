"""Delta rules: a matrix memory of keys and values; each step corrects the value that its key reads.

All cells take q and k [rows, heads, key], v [rows, heads, value] and beta [rows, heads], after the model's
normalisation and scaling. The memory is [rows, heads, key, value], the output [rows, heads, value].
"""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.cells.keyed import corrected, read

__all__ = ["delta_rule", "gated_delta_product", "gated_delta_rule", "kda"]


def delta_rule(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of linear attention's delta rule, which moves the value that its key reads towards its
    own value, for the sequences (rows) of a batch; returns (output o, next memory S).

    I. Schlag, K. Irie and J. Schmidhuber, "Linear transformers are secretly fast weight programmers", 2021
    (arXiv 2102.11174); S. Yang and others, "Parallelizing linear transformers with the delta rule over
    sequence length", 2024 (arXiv 2406.06484).

        S = S + k (beta (v - k S))        o = q S

    Args:
        x: q, k [rows, heads, key], v [rows, heads, value], beta [rows, heads].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> delta_rule({"q": one, "k": one, "v": 3 * one, "beta": one[0]}, np.full((1, 1, 1, 1), 2.0))
    (array([[[3.]]]), array([[[[3.]]]]))
    """
    q, k, v, beta, state = arrays("delta_rule", x, memory, params)
    state = corrected(state, k, v, beta)
    return read(state, q), state


def gated_delta_rule(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of the delta rule after a decay of the memory, one for each head, for the sequences
    (rows) of a batch; returns (output o, next memory S).

    S. Yang, J. Kautz and A. Hatamizadeh, "Gated delta networks: improving Mamba2 with delta rule", 2024
    (arXiv 2412.06464).

        S = exp(g) S        S = S + k (beta (v - k S))        o = q S

    Args:
        x: q, k [rows, heads, key], v [rows, heads, value], g (a logarithm, so negative) and beta
            [rows, heads].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> x = {"q": one, "k": one, "v": 3 * one, "g": np.log([[0.5]]), "beta": np.array([[0.5]])}
    >>> gated_delta_rule(x, np.full((1, 1, 1, 1), 2.0))
    (array([[[2.]]]), array([[[[2.]]]]))
    """
    q, k, v, g, beta, state = arrays("gated_delta_rule", x, memory, params)
    state = corrected(np.exp(g)[..., None, None] * state, k, v, beta)
    return read(state, q), state


def kda(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of Kimi delta attention, the delta rule after a decay of the memory for each feature of
    the key, for the sequences (rows) of a batch; returns (output o, next memory S).

    Kimi Team, "Kimi Linear: an expressive, efficient attention architecture", 2025 (arXiv 2510.26692).

        S = exp(g) S, row by row        S = S + k (beta (v - k S))        o = q S

    Args:
        x: q, k and g (a logarithm, so negative) [rows, heads, key], v [rows, heads, value], beta
            [rows, heads].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> x = {"q": one, "k": one, "v": 3 * one, "g": np.log([[[0.5]]]), "beta": np.array([[0.5]])}
    >>> kda(x, np.full((1, 1, 1, 1), 2.0))
    (array([[[2.]]]), array([[[[2.]]]]))
    """
    q, k, v, g, beta, state = arrays("kda", x, memory, params)
    state = corrected(np.exp(g)[..., None] * state, k, v, beta)
    return read(state, q), state


def gated_delta_product(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of the gated delta rule with several corrections, one after the other, for the
    sequences (rows) of a batch; returns (output o, next memory S).

    J. Siems and others, "DeltaProduct: improving state-tracking in linear RNNs via Householder products",
    2025 (arXiv 2502.10297).

        S = exp(g) S        S = S + k (beta (v - k S)) for each k, v and beta        o = q S

    Args:
        x: q [rows, heads, key], k [rows, products, heads, key], v [rows, products, heads, value], g (a
            logarithm, so negative) [rows, heads], beta [rows, products, heads].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> x = {"q": one, "k": np.ones((1, 2, 1, 1)), "v": np.array([[[[3.0]], [[5.0]]]])}
    >>> x |= {"g": np.log([[0.5]]), "beta": np.array([[[0.5], [0.25]]])}
    >>> gated_delta_product(x, np.full((1, 1, 1, 1), 2.0))
    (array([[[2.75]]]), array([[[[2.75]]]]))
    """
    q, k, v, g, beta, state = arrays("gated_delta_product", x, memory, params)
    state = np.exp(g)[..., None, None] * state
    for index in range(k.shape[1]):
        state = corrected(state, k[:, index], v[:, index], beta[:, index])
    return read(state, q), state
