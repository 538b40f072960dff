"""Reads, writes and corrections of a matrix memory of keys and values, [rows, heads, key, value].

A read is an einsum, which sums over the features of the key for all values at once. A gated delta rule with 4
heads of 64 x 64 takes half the time of (q[..., None] * state).sum(-2).
"""

from typing import Any

import numpy as np

__all__ = ["corrected", "read", "written"]


def read(state: Any, q: Any) -> Any:
    """Reads the values [rows, heads, value] that a query or key q [rows, heads, key] addresses in the matrix
    memory `state` [rows, heads, key, value]: the sum of q times state over the key's features.
    """
    return np.einsum("rhk,rhkv->rhv", q, state)


def written(state: Any, k: Any, v: Any) -> Any:
    """Returns the matrix memory `state` [rows, heads, key, value] with the value v [rows, heads, value] added
    at the key k [rows, heads, key]: their outer product.
    """
    return state + k[..., None] * v[..., None, :]


def corrected(state: Any, k: Any, v: Any, beta: Any) -> Any:
    """Returns the matrix memory `state` [rows, heads, key, value] after its value at key k has moved by the
    fraction beta [rows, heads] towards v: the delta rule.
    """
    return written(state, k, beta[..., None] * (v - read(state, k)))
