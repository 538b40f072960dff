"""Linear recurrences with a diagonal matrix: each state has its own decay, real or complex.

A complex number is a pair of arrays, its real part and its imaginary part.
"""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.compiler.trace.functions import sigmoid, softplus

__all__ = ["lru", "rg_lru", "s5"]

SMALLEST = 2.0**-126
"""The smallest normal number of float32: the square root has a derivative there, but not at zero."""

Pair = tuple[Any, Any]


def lru(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the linear recurrent unit, with complex states within the unit circle and normalised
    inputs, for the sequences (rows) of a batch; returns (output y, next memory).

    A. Orvieto and others, "Resurrecting recurrent neural networks for long sequences", 2023 (arXiv
    2303.06349).

        h = exp(-exp(nu) + j exp(theta)) h + exp(gamma) B x        y = Re(C h) + D x

    Args:
        x: [rows, inputs].
        memory: re and im [rows, states], the parts of h.
        params: nu, theta and gamma [states], all logarithms; B_re and B_im [inputs, states]; C_re and C_im
            [states, inputs]; D [inputs] or none.

    >>> one = np.ones((1, 1))
    >>> params = {"nu": np.log(np.log([2.0])), "theta": np.log([np.pi / 2]), "gamma": np.zeros(1)}
    >>> params |= {"B_re": one, "B_im": 0 * one, "C_re": one, "C_im": 0 * one}
    >>> y, h = lru(3 * one, {"re": one, "im": one}, params)
    >>> y.round(6).tolist(), h["re"].round(6).tolist(), h["im"].round(6).tolist()
    ([[2.5]], [[2.5]], [[0.5]])
    """
    u, re, im, nu, theta, gamma, B_re, B_im, C_re, C_im, D = arrays("lru", x, memory, params)
    decay = polar(-np.exp(nu), np.exp(theta))
    scale = np.exp(gamma)
    kept = product(decay, (re, im))
    h = kept[0] + u @ (B_re * scale), kept[1] + u @ (B_im * scale)
    return real_output(h, (C_re, C_im), D, u), {"re": h[0], "im": h[1]}


def s5(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the S5 layer, a continuous linear system of complex states whose input is held
    constant between steps (ZOH), for the sequences (rows) of a batch; returns (output y, next memory).

    J. T. H. Smith, A. Warrington and S. W. Linderman, "Simplified state space layers for sequence modeling",
    2022 (arXiv 2208.04933). Where one state of each conjugate pair is left out, C is twice the paper's.

        h = exp(A dt) h + (exp(A dt) - 1) / A B x        y = Re(C h) + D x

    Args:
        x: [rows, inputs].
        memory: re and im [rows, states], the parts of h.
        params: A_re (negative), A_im and step (the logarithm of dt) [states]; B_re and B_im
            [inputs, states]; C_re and C_im [states, inputs]; D [inputs] or none.

    >>> one = np.ones((1, 1))
    >>> params = {"A_re": np.log([0.5]), "A_im": np.zeros(1), "step": np.zeros(1)}
    >>> params |= {"B_re": np.log([[2.0]]), "B_im": 0 * one, "C_re": one, "C_im": 0 * one}
    >>> y, h = s5(3 * one, {"re": one, "im": one}, params)
    >>> y.round(6).tolist(), h["re"].round(6).tolist(), h["im"].round(6).tolist()
    ([[2.0]], [[2.0]], [[0.5]])
    """
    u, re, im, A_re, A_im, step, B_re, B_im, C_re, C_im, D = arrays("s5", x, memory, params)
    dt = np.exp(step)
    decay = polar(A_re * dt, A_im * dt)
    size = A_re * A_re + A_im * A_im
    scale = product((decay[0] - 1, decay[1]), (A_re / size, -A_im / size))
    B = product(scale, (B_re, B_im))
    kept = product(decay, (re, im))
    h = kept[0] + u @ B[0], kept[1] + u @ B[1]
    return real_output(h, (C_re, C_im), D, u), {"re": h[0], "im": h[1]}


def rg_lru(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the real-gated linear recurrent unit of Griffin and RecurrentGemma, for the
    sequences (rows) of a batch; returns (output, next memory), both h.

    S. De and others, "Griffin: mixing gated linear recurrences with local attention for efficient language
    models", 2024 (arXiv 2402.19427).

        a = exp(-8 softplus(lambda) sigmoid(r))        h = a h + sqrt(1 - a^2) sigmoid(i) x

    Args:
        x: x, r and i (before their sigmoids) [rows, channels].
        memory: h [rows, channels], which is also the output.
        params: lambda [channels].

    >>> x = {"x": np.array([[10.0]]), "r": np.array([[100.0]]), "i": np.array([[100.0]])}
    >>> lambda_ = np.log(np.expm1(-np.log([0.6]) / 8))
    >>> rg_lru(x, np.array([[5.0]]), {"lambda": lambda_})[0].round(6)
    array([[11.]])
    """
    u, r, i, h, rate = arrays("rg_lru", x, memory, params)
    exponent = -8 * softplus(rate) * sigmoid(r)
    scale = np.sqrt(np.maximum(-np.expm1(2 * exponent), SMALLEST))
    h = np.exp(exponent) * h + scale * (sigmoid(i) * u)
    return h, h


def polar(exponent: Any, angle: Any) -> Pair:
    """Computes exp(exponent + j angle) of real arrays; returns its real and its imaginary part."""
    size = np.exp(exponent)
    return size * np.cos(angle), size * np.sin(angle)


def product(a: Pair, b: Pair) -> Pair:
    """Multiplies two complex arrays, each a pair of its real and its imaginary part."""
    return a[0] * b[0] - a[1] * b[1], a[0] * b[1] + a[1] * b[0]


def real_output(h: Pair, C: Pair, D: Any, u: Any) -> Any:
    """Computes the output Re(C h) + D u of complex states h and inputs u; Re(C h) if D is None."""
    y = h[0] @ C[0] - h[1] @ C[1]
    return y if D is None else y + D * u
