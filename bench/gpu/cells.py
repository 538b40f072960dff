"""Recurrences with random parameters that are measured: named cells, and cells that no library knows."""

from typing import Any

import numpy as np

import stepnet as sn
from stepnet.cells.gated import cell

Array = np.ndarray
FEATURES = 12
KNOWN = ("gru", "lstm", "minimal_gated_unit", "simple_rnn")
"""Cells by which schedules are measured."""


def recurrence(name: str, width: int, dtype: str = "float32", known: bool = True) -> sn.RNN:
    """Returns a recurrence of a cell: one of `OWN`, or a named cell of stepnet.

    name: of the cell. width: the units of its memory.
    known: whether a call on the CPU makes the inputs of a named cell known.
    """
    chance = np.random.default_rng(0)
    if name in OWN:
        shapes, step, memories = OWN[name](width)
        params = {n: chance.normal(0, shape[0] ** -0.5, shape) for n, shape in shapes.items()}
        params = {n: array.astype("f4").astype(dtype) for n, array in params.items()}
        return sn.RNN(step, params, memory=memories, inputs=inputs_of(name, width))
    shapes = {n: a.shape for n, a in cell(name).parameters(inputs=FEATURES, hidden=width).items()}
    params = {n: chance.normal(0, 0.3, shape).astype("f4") for n, shape in shapes.items()}
    rnn = sn.cells.rnn(name, {n: array.astype(dtype) for n, array in params.items()})
    if known:
        rnn(np.zeros((1, 1, FEATURES), dtype))
    return rnn


def matrix_memory(width: int) -> tuple[dict[str, tuple[int, ...]], Any, Any]:
    """Returns a memory of keys and values, a matrix that decays: shapes of parameters, step and memory."""

    def step(x: Any, memory: Any, p: Any) -> Any:
        """One step."""
        q, k, v = (x @ p[name] for name in ("Q", "K", "V"))
        memory = 0.9 * memory + k[:, :, None] * v[:, None, :]
        return np.einsum("rk,rkv->rv", q, memory), memory

    shape = (FEATURES, width)
    return {"Q": shape, "K": shape, "V": shape}, step, (width, width)


def ending(width: int, dtype: str = "float32", projected: bool = False, reverse: bool = False) -> sn.RNN:
    """Returns a recurrence each of whose sequences ends when it has used up what it began with: a number in
    its memory "left", from which each step takes the mean square of the units.

    projected: whether outputs are a product of the units, which follows the loop; else they are the units.
    """
    chance = np.random.default_rng(0)
    shapes = {"W": (FEATURES, width), "R": (width, width), "V": (width, 3)}
    params = {n: chance.normal(0, shape[0] ** -0.5, shape).astype("f4") for n, shape in shapes.items()}

    def step(x: Any, memory: Any, p: Any) -> Any:
        """One step."""
        h = np.tanh(x @ p["W"] + memory["h"] @ p["R"])
        left = memory["left"] - (h * h).sum(axis=-1) / width
        return h @ p["V"] if projected else h, {"h": h, "left": left}

    return sn.RNN(
        step,
        {name: array.astype(dtype) for name, array in params.items()},
        memory={"h": width, "left": ()},
        inputs=FEATURES,
        reverse=reverse,
        until=lambda y, memory: memory["left"] < 0,
    )


def inputs_of(name: str, width: int) -> int:
    """Returns the features of the inputs of a cell."""
    return width if name == "decay" else FEATURES


def rg_lru(width: int) -> tuple[dict[str, tuple[int, ...]], Any, Any]:
    """Returns a gated decay, whose units are alone: the shapes of its parameters, its step and its memory."""

    def step(x: Any, h: Any, p: Any) -> Any:
        """One step, as in real-gated linear recurrent units."""
        a = sn.sigmoid(x @ p["Wa"] + p["ba"])
        h = a * h + np.sqrt(1 - a * a) * (sn.sigmoid(x @ p["Wi"]) * (x @ p["Wx"]))
        return h, h

    matrix = (FEATURES, width)
    return {"Wa": matrix, "ba": (width,), "Wi": matrix, "Wx": matrix}, step, width


def layer_normed(width: int) -> tuple[dict[str, tuple[int, ...]], Any, Any]:
    """Returns a GRU with both products normalised: shapes of parameters, step and memory."""

    def normalised(v: Any) -> Any:
        """Returns values of mean 0 and variance 1."""
        centred = v - v.mean(axis=-1, keepdims=True)
        return centred / np.sqrt((centred * centred).mean(axis=-1, keepdims=True) + 1e-5)

    def step(x: Any, h: Any, p: Any) -> Any:
        """One step."""
        a, b = normalised(x @ p["W"]), normalised(h @ p["R"])
        r = sn.sigmoid(a[:, :width] + b[:, :width])
        z = sn.sigmoid(a[:, width : 2 * width] + b[:, width : 2 * width])
        h = z * h + (1 - z) * np.tanh(a[:, 2 * width :] + r * b[:, 2 * width :])
        return h, h

    return {"W": (FEATURES, 3 * width), "R": (width, 3 * width)}, step, width


def slstm(width: int) -> tuple[dict[str, tuple[int, ...]], Any, Any]:
    """Returns an LSTM with exponential gates: shapes of parameters, step and memories."""

    def step(x: Any, memory: Any, p: Any) -> Any:
        """One step."""
        h, c, n, m = memory
        g = x @ p["W"] + h @ p["R"]
        i, f, z, o = (g[:, k * width : (k + 1) * width] for k in range(4))
        m_next = np.maximum(f + m, i)
        i, f = np.exp(i - m_next), np.exp(f + m - m_next)
        c, n = f * c + i * np.tanh(z), f * n + i
        h = sn.sigmoid(o) * c / np.maximum(n, 1e-6)
        return h, [h, c, n, m_next]

    return {"W": (FEATURES, 4 * width), "R": (width, 4 * width)}, step, [width] * 4


def decay(width: int) -> tuple[dict[str, tuple[int, ...]], Any, Any]:
    """Returns a decay without products: shapes of parameters, step and memory."""

    def step(x: Any, h: Any, p: Any) -> Any:
        """One step."""
        h = sn.sigmoid(p["a"]) * h + x
        return np.tanh(h), h

    return {"a": (width,)}, step, width


OWN = {
    "rg_lru": rg_lru,
    "layer_normed": layer_normed,
    "slstm": slstm,
    "decay": decay,
    "matrix_memory": matrix_memory,
}
"""Cells that no library has: each gives shapes of parameters, a step and memories for some units."""
