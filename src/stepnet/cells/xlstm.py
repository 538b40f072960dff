"""The cells of the xLSTM: exponential gates, kept from overflow by the largest exponent so far.

M. Beck and others, "xLSTM: extended long short-term memory", 2024 (arXiv 2405.04517).
"""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.cells.keyed import read, written
from stepnet.compiler.trace.functions import sigmoid, softplus

__all__ = ["mlstm", "slstm"]

LARGEST = 80
"""The largest exponent for which float32 holds both the exponential and its inverse."""

# NumPy's stubs do not know that np.where maps traced values to traced values.
where: Any = np.where


def mlstm(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of the mLSTM, a matrix memory of keys and values with exponential gates, normalised by
    the sum of its keys, for the sequences (rows) of a batch; returns (output o, next memory).

    M. Beck and others, 2024 (arXiv 2405.04517), equations 19 to 27.

        C = sigmoid(f) C + exp(i) k v        n = sigmoid(f) n + exp(i) k
        o = q C / max(|q n|, 1)

    C and n are stored divided by exp(m), where m is the largest exponent so far.

    Args:
        x: q (scaled) and k [rows, heads, key], v [rows, heads, value], i and f (before exp and sigmoid)
            [rows, heads].
        memory: C [rows, heads, key, value], n [rows, heads, key], m [rows, heads].
        params: None.

    >>> one = np.ones((1, 1, 1))
    >>> x = {"q": one, "k": one, "v": 3 * one, "i": 0 * one[0], "f": 100 * one[0]}
    >>> output, after = mlstm(x, {"C": 4 * one[None], "n": one, "m": 0 * one[0]})
    >>> output.tolist(), after["C"].tolist(), after["n"].tolist(), after["m"].tolist()
    ([[[3.5]]], [[[[7.0]]]], [[[2.0]]], [[0.0]])
    """
    output, denominator, after = output_fraction(x, memory, params)
    return output / denominator[..., None], after


def output_fraction(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any, Any]:
    """Computes a step of the mLSTM without the division in its output; returns (numerator q C, denominator
    max(|q n|, 1), next memory), where numerator and denominator are both divided by exp(m).

    x: q (scaled), k, v, and i and f (before exp and sigmoid), by name. memory: the matrix C, the sum n of the
    keys and the largest exponent m, by name; C and n are divided by exp(m). params: None.
    """
    q, k, v, i, f, cell, norm, before = arrays("mlstm", x, memory, params)
    forget, new, largest = gates(i, before - softplus(-f))
    cell = written(forget[..., None, None] * cell, new[..., None] * k, v)
    norm = forget[..., None] * norm + new[..., None] * k
    denominator = np.maximum(np.abs((q * norm).sum(-1)), np.exp(-np.clip(largest, -LARGEST, LARGEST)))
    return read(cell, q), denominator, {"C": cell, "n": norm, "m": largest}


def gates(i: Any, forget: Any) -> tuple[Any, Any, Any]:
    """Computes a forget factor exp(forget) and an input factor exp(i), both divided by exp(m) against
    overflow, where m is the larger exponent; returns (forget factor, input factor, m).
    """
    largest = np.maximum(forget, i)
    return np.exp(forget - largest), np.exp(i - largest), largest


def slstm(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the sLSTM, an LSTM with exponential gates and a normaliser n, which is recurrent
    within each head, for the sequences (rows) of a batch; returns (output h, next memory).

    M. Beck and others, 2024 (arXiv 2405.04517), equations 8 to 18.

        c = sigmoid(f) c + exp(i) tanh(z)        n = sigmoid(f) n + exp(i)        h = sigmoid(o) c / n

    c and n are stored divided by exp(m), where m is the largest exponent so far; if n is 0 there is none yet.
    h R is added to each of i, f, z and o, with the R of that gate.

    Args:
        x: i, f, z and o (the projected inputs, with biases) [rows, heads, features].
        memory: h, c, n and m [rows, heads, features].
        params: Ri, Rf, Rz and Ro [heads, features, features].

    >>> one, zeros = np.ones((1, 1, 1)), np.zeros((1, 1, 1))
    >>> x = {"i": zeros, "f": 100 * one, "z": 100 * one, "o": 100 * one}
    >>> memory = {"h": zeros, "c": 2 * one, "n": one, "m": zeros}
    >>> output, after = slstm(x, memory, {name: zeros for name in ("Ri", "Rf", "Rz", "Ro")})
    >>> output.tolist(), after["c"].tolist(), after["n"].tolist()
    ([[[1.5]]], [[[3.0]]], [[[2.0]]])
    """
    i, f, z, o, h, c, n, m, Ri, Rf, Rz, Ro = arrays("slstm", x, memory, params)
    i, f, z, o = (gate + np.einsum("rhp,hpq->rhq", h, R) for gate, R in ((i, Ri), (f, Rf), (z, Rz), (o, Ro)))
    forget, new, m = gates(i, where(n == 0, i, m - softplus(-f)))
    c = forget * c + new * np.tanh(z)
    n = forget * n + new
    h = sigmoid(o) * (c / n)
    return h, {"h": h, "c": c, "n": n, "m": m}
