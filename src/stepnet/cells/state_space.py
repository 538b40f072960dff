"""Selective state spaces: the decay, the writing and the reading of the memory depend on the input."""

from typing import Any

import numpy as np

from stepnet.cells.forms import arrays
from stepnet.errors import InputError

__all__ = ["mamba", "mamba2"]


def mamba(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the selective state space of Mamba (S6), with a decay for each state of each
    channel, for the sequences (rows) of a batch; returns (output y, next memory h).

    A. Gu and T. Dao, "Mamba: linear-time sequence modeling with selective state spaces", 2023
    (arXiv 2312.00752).

        h = exp(dt A) h + (dt x) B        y = h C + D x

    Args:
        x: x and dt (positive, after the softplus) [rows, channels], B and C [rows, states].
        memory: h [rows, channels, states].
        params: A [channels, states] (negative), and D [channels] or none.

    >>> x = {"x": [[3.0]], "dt": [[1.0]], "B": [[2.0]], "C": [[10.0]]}
    >>> x = {name: np.array(value) for name, value in x.items()}
    >>> mamba(x, np.full((1, 1, 1), 4.0), {"A": np.log([[0.5]]), "D": np.ones(1)})
    (array([[83.]]), array([[[8.]]]))
    """
    u, dt, B, C, h, A, D = arrays("mamba", x, memory, params)
    h = np.exp(dt[..., None] * A) * h + (dt * u)[..., None] * B[:, None, :]
    y = (h * C[:, None, :]).sum(-1)
    return (y if D is None else y + D * u), h


def mamba2(x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
    """Computes a step of the state space of Mamba-2 (SSD), with one decay for each head, where groups of
    heads share B and C, for the sequences (rows) of a batch; returns (output y, next memory h).

    T. Dao and A. Gu, "Transformers are SSMs", 2024 (arXiv 2405.21060).

        h = exp(dt A) h + (dt x) B        y = h C + D x

    Args:
        x: x [rows, heads, features], dt (positive, after the softplus) [rows, heads], B and C
            [rows, groups, states]; heads are a multiple of groups, and neighbouring heads share a group.
        memory: h [rows, heads, features, states].
        params: A [heads] (negative), and D [heads] or none.

    >>> x = {"x": [[[3.0]]], "dt": [[1.0]], "B": [[[2.0]]], "C": [[[10.0]]]}
    >>> x = {name: np.array(value) for name, value in x.items()}
    >>> mamba2(x, np.full((1, 1, 1, 1), 4.0), {"A": np.log([0.5]), "D": np.ones(1)})
    (array([[[83.]]]), array([[[[8.]]]]))
    """
    u, dt, shared_B, shared_C, h, A, D = arrays("mamba2", x, memory, params)
    B, C = per_head(shared_B, u.shape[1]), per_head(shared_C, u.shape[1])
    h = np.exp(dt * A)[..., None, None] * h + (dt[..., None] * u)[..., None] * B[:, :, None, :]
    y = (h * C[:, :, None, :]).sum(-1)
    return (y if D is None else y + D[:, None] * u), h


def per_head(shared: Any, heads: int) -> Any:
    """Repeats an array that groups of neighbouring heads share, [rows, groups, states], for each head: [rows,
    heads, states]. Raises `InputError` unless heads are a multiple of groups.
    """
    groups = shared.shape[1]
    if not groups or heads % groups:
        raise InputError(f"mamba2 has {heads} heads, which must be a multiple of its {groups} groups")
    return shared[:, np.arange(heads) // (heads // groups)]
