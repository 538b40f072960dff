"""Cells whose memory is a model that each step trains on its input."""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.cells.keyed import read, written

__all__ = ["ttt_linear"]

EPSILON = 1e-6


def ttt_linear(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of TTT-Linear for the sequences (rows) of a batch; returns (output o, next memory). A
    linear model is trained by one step of gradient descent, and then evaluated.

    Y. Sun and others, "Learning to (learn at test time): RNNs with expressive hidden states", 2024 (arXiv
    2407.04620), with mini-batches of one step.

        loss = |norm(k W + b) + k - v|^2 / 2        W, b = W, b - eta d loss / d (W, b)
        o = norm(q W + b) + q W + b

    norm is a layer normalisation over the features of a head (epsilon 1e-6), scaled and shifted.

    Args:
        x: q, k and v [rows, heads, key], and the rate eta [rows, heads].
        memory: W [rows, heads, key, key], b [rows, heads, key].
        params: scale and shift [heads, key].

    >>> q = np.array([[[1.0, 0.0]]])
    >>> memory = {"W": np.array([[[[1.0, 3.0], [0.0, 0.0]]]]), "b": np.zeros((1, 1, 2))}
    >>> params = {"scale": np.ones((1, 2)), "shift": np.zeros((1, 2))}
    >>> o, _ = ttt_linear({"q": q, "k": q, "v": q, "eta": np.zeros((1, 1))}, memory, params)
    >>> o.round(4)
    array([[[0., 4.]]])
    """
    q, k, v, eta, weight, bias, scale, shift = arrays("ttt_linear", x, memory, params)
    normal, spread = normalised(read(weight, k) + bias)
    by_output = scale * (scale * normal + shift + k - v)
    by_normal = by_output - by_output.mean(-1, keepdims=True)
    change = (by_normal - normal * (by_output * normal).mean(-1, keepdims=True)) / spread
    weight, bias = written(weight, k, -eta[..., None] * change), bias - eta[..., None] * change
    output = read(weight, q) + bias
    return output + scale * normalised(output)[0] + shift, {"W": weight, "b": bias}


def normalised(x: Any) -> tuple[Any, Any]:
    """Normalises x to mean 0, variance 1 over its last axis; returns it and the standard deviation."""
    away = x - x.mean(-1, keepdims=True)
    spread = np.sqrt((away * away).mean(-1, keepdims=True) + EPSILON)
    return away / spread, spread
