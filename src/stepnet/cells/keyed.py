"""A memory of keys and values, [rows, heads, key, value]: what reads it, writes to it and corrects it."""

from typing import Any

__all__ = ["corrected", "read", "written"]


def read(state: Any, q: Any) -> Any:
    """What a query or a key reads: the sum over its features, [rows, heads, value]."""
    return (q[..., None] * state).sum(-2)


def written(state: Any, k: Any, v: Any) -> Any:
    """The memory with a value added at a key."""
    return state + k[..., None] * v[..., None, :]


def corrected(state: Any, k: Any, v: Any, beta: Any) -> Any:
    """The memory after a part beta of the way from what a key reads to its value."""
    return written(state, k, beta[..., None] * (v - read(state, k)))
