"""Recurrences whose loops run by kernels of each kind."""

from typing import Any

import numpy as np

Array = np.ndarray


def draw(*shape: int, seed: int = 0) -> Array:
    """Random numbers."""
    return np.random.default_rng(seed).normal(0, 0.3, shape).astype("f4")


def simple(x: Any, h: Any, p: Any) -> Any:
    """A step of a simple recurrence."""
    h = np.tanh(x + h @ p)
    return h, h


def apart(x: Any, h: Any, p: Any) -> Any:
    """A step whose units need nothing of each other."""
    h = p * h + x
    return h, h


def normed(x: Any, h: Any, p: Any) -> Any:
    """A step that takes a maximum, and is in float64, as nothing on tensor cores is."""
    h = np.tanh(x + h @ p) - np.max(h, axis=-1, keepdims=True)
    return h, h


def matrix(x: Any, s: Any, p: Any) -> Any:
    """A step whose memory is a matrix."""
    s = 0.9 * s + x["k"][..., None] * x["v"][..., None, :]
    return np.einsum("rhk,rhkv->rhv", x["q"], s), s


KINDS: dict[str, tuple[Any, Any, Any, Any, str]] = {
    "plain units": (simple, draw(16, 16), 16, draw(2, 3, 16), "loop, plain"),
    "tensor cores": (simple, draw(256, 256) / 8, 256, draw(2, 3, 256), "loop, tagged"),
    "a block": (normed, draw(16, 16).astype("f8"), 16, draw(2, 3, 16).astype("f8"), "loop of"),
    "units": (apart, draw(32), 32, draw(2, 3, 32), "loop"),
    "chunks": (
        matrix,
        None,
        (1, 16, 16),
        {name: draw(2, 5, 1, 16, seed=place) for place, name in enumerate("kqv")},
        "loop",
    ),
}
"""Kinds of loops: a step that reads inputs where they lie, parameters, the memory, inputs, the loop."""
