"""The time mixing of RWKV 4, 6 and 7, between its projections and its output gate."""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.cells.keyed import read, written

__all__ = ["rwkv4", "rwkv6", "rwkv7"]

# NumPy's stubs do not know that np.where maps traced values to traced values.
where: Any = np.where


def rwkv4(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of RWKV-4, a mean of all values weighted by the exponentials of their keys and of a
    decay per channel, for the sequences (rows) of a batch; returns (output o, next memory).

    B. Peng and others, "RWKV: reinventing RNNs for the Transformer era", 2023 (arXiv 2305.13048).

        o = (num + exp(u + k) v) / (den + exp(u + k))
        num = exp(w) num + exp(k) v        den = exp(w) den + exp(k)

    num and den are stored divided by exp(max), where max is the largest exponent so far, so that nothing
    overflows. If den is 0 there is no exponent yet; so a memory of zeros starts a sequence.

    Args:
        x: k, v [rows, channels].
        memory: num, den, max [rows, channels].
        params: w (the logarithm of the decay, negative) and u [channels].

    >>> zero = np.zeros((1, 1))
    >>> params = {"w": np.log([0.5]), "u": np.log([2.0])}
    >>> rwkv4({"k": zero, "v": zero + 3}, {"num": zero + 5, "den": zero + 1, "max": zero}, params)
    (array([[3.66666667]]), {'num': array([[5.5]]), 'den': array([[1.5]]), 'max': array([[0.]])})
    """
    k, v, num, den, most, w, u = arrays("rwkv4", x, memory, params)
    output = add_weighted(most, u + k, num, den, v)
    after = add_weighted(most + w, k, num, den, v)
    return output[0] / output[1], {"num": after[0], "den": after[1], "max": after[2]}


def add_weighted(previous: Any, exponent: Any, num: Any, den: Any, v: Any) -> tuple[Any, Any, Any]:
    """Adds exp(exponent) v to num, and exp(exponent) to den: the weighted sum and the weights of a mean. num
    and den are stored divided by exp(previous), so that nothing overflows; returns both divided by
    exp(largest), and largest, the larger of both exponents.
    """
    previous = where(den == 0, exponent, previous)
    largest = np.maximum(previous, exponent)
    old, new = np.exp(previous - largest), np.exp(exponent - largest)
    return old * num + new * v, old * den + new, largest


def rwkv6(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of RWKV-6, a matrix memory of keys and values with a decay per feature and a bonus u
    for the current step, for the sequences (rows) of a batch; returns (output o, next memory S).

    B. Peng and others, "Eagle and Finch: RWKV with matrix-valued states and dynamic recurrence", 2024 (arXiv
    2404.05892).

        o = r (S + u k v)        S = exp(w) S + k v

    Args:
        x: r, k and w (a logarithm, so negative) [rows, heads, key], v [rows, heads, value].
        memory: S [rows, heads, key, value].
        params: u [heads, key].

    >>> one = np.ones((1, 1, 1))
    >>> x = {"r": one, "k": one, "v": 3 * one, "w": np.log([[[0.5]]])}
    >>> rwkv6(x, 4 * one[None], {"u": np.full((1, 1), 2.0)})
    (array([[[10.]]]), array([[[[5.]]]]))
    """
    r, k, v, w, state, u = arrays("rwkv6", x, memory, params)
    return read(written(state, u * k, v), r), written(np.exp(w)[..., None] * state, k, v)


def rwkv7(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of RWKV-7, a delta rule with separate keys for removal and for writing, for the
    sequences (rows) of a batch; returns (output o, next memory S).

    B. Peng and others, "RWKV-7 Goose with expressive dynamic state evolution", 2025 (arXiv 2503.14456), where
    a is the negated normalised removal key, and b this key times the rate of learning.

        S = exp(w) S + b (a S) + k v        o = r S

    Args:
        x: r, k, a, b and w (a logarithm, so negative) [rows, heads, key], v [rows, heads, value].
        memory: S [rows, heads, key, value].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> x = {"r": one, "k": one, "v": 3 * one, "w": np.log([[[0.5]]]), "a": -one, "b": 0.25 * one}
    >>> rwkv7(x, 4 * one[None])
    (array([[[4.]]]), array([[[[4.]]]]))
    """
    r, k, v, w, a, b, state = arrays("rwkv7", x, memory, params)
    state = written(written(np.exp(w)[..., None] * state, b, read(state, a)), k, v)
    return read(state, r), state
