"""A memory of keys and values, [rows, heads, key, value]: what reads it, writes to it and corrects it.

It is read by einsum, whose sums over the features of a key run side by side: a gated delta rule with 4 heads
of 64 x 64 takes half the time that it takes with (q[..., None] * state).sum(-2).
"""

from typing import Any

import numpy as np

__all__ = ["corrected", "read", "written"]


def read(state: Any, q: Any) -> Any:
    """What a query or a key reads: the sum over its features, [rows, heads, value]."""
    return np.einsum("rhk,rhkv->rhv", q, state)


def written(state: Any, k: Any, v: Any) -> Any:
    """The memory with a value added at a key."""
    return state + k[..., None] * v[..., None, :]


def corrected(state: Any, k: Any, v: Any, beta: Any) -> Any:
    """The memory after a part beta of the way from what a key reads to its value."""
    return written(state, k, beta[..., None] * (v - read(state, k)))
