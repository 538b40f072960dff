"""Gated cells whose gates do not depend on the memory, so that the gates of all steps can be computed at
once.
"""

from typing import Any

from stepnet.cells.forms import arrays
from stepnet.compiler.trace.functions import sigmoid, softplus

__all__ = ["min_gru", "min_lstm"]


def min_gru(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of the minimal GRU, h = (1 - z) h + z n, with z = sigmoid of the input z, for the
    sequences (rows) of a batch; returns (output, next memory), both h.

    L. Feng and others, "Were RNNs all we needed?", 2024 (arXiv 2410.01201).

    Args:
        x: z (before its sigmoid) and the candidate n [rows, channels].
        memory: h [rows, channels], which is also the output.
        params: None.

    >>> import numpy as np
    >>> min_gru({"z": np.zeros((1, 1)), "n": np.array([[3.0]])}, np.array([[1.0]]))
    (array([[2.]]), array([[2.]]))
    """
    z, n, h = arrays("min_gru", x, memory, params)
    h = h + sigmoid(z) * (n - h)
    return h, h


def min_lstm(x: Any, memory: Any, params: Any = None) -> tuple[Any, Any]:
    """Computes a step of the minimal LSTM, h = (f h + i n) / (f + i), with f and i the sigmoids of the inputs
    f and i, for the sequences (rows) of a batch; returns (output, next memory), both h.

    L. Feng and others, "Were RNNs all we needed?", 2024 (arXiv 2410.01201). i / (f + i) is computed from the
    logarithms of both, as in its log-space version, so that gates far below zero do not underflow.

    Args:
        x: f, i (before their sigmoids) and the candidate n [rows, channels].
        memory: h [rows, channels], which is also the output.
        params: None.

    >>> import numpy as np
    >>> zeros = np.zeros((1, 1))
    >>> min_lstm({"f": zeros, "i": zeros, "n": np.array([[3.0]])}, np.array([[1.0]]))
    (array([[2.]]), array([[2.]]))
    """
    f, i, n, h = arrays("min_lstm", x, memory, params)
    h = h + sigmoid(softplus(-f) - softplus(-i)) * (n - h)
    return h, h
