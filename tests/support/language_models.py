"""Models over a few symbols whose steps are of every kind, by what they have beside products."""

from typing import Any

import numpy as np

import stepnet as sn

Array = np.ndarray
SYMBOLS, HIDDEN = 7, 5
IDS = sn.Spec((), np.int64)
STARTS = [[0], [3, 1], [1, 1, 2, 6], [5], [2, 2]]


def weights(seed: int = 0, dtype: Any = "float32", **shapes: tuple[int, ...]) -> dict[str, Array]:
    """Random numbers, large enough that symbols differ."""
    random = np.random.default_rng(seed)
    return {name: (1.5 * random.normal(size=shape)).astype(dtype) for name, shape in shapes.items()}


EMBEDDED = {"E": (SYMBOLS, 3), "W": (3, HIDDEN), "R": (HIDDEN, HIDDEN), "V": (HIDDEN, SYMBOLS)}
VECTORS = {"W": (SYMBOLS, HIDDEN), "R": (HIDDEN, HIDDEN), "V": (HIDDEN, SYMBOLS)}


def of_vectors(x: Any, h: Any, p: Any) -> Any:
    h = np.tanh(x @ p["W"] + h @ p["R"])
    return h @ p["V"], h


def embedded(x: Any, h: Any, p: Any) -> Any:
    return of_vectors(p["E"][x], h, p)


def placed(x: Any, h: Any, p: Any, index: Any) -> Any:
    """With a position for each step, as many as there may be, and none behind them."""
    h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + p["P"][index])
    return h @ p["V"], h


def with_bias(x: Any, h: Any, p: Any, statics: Any) -> Any:
    h = np.tanh(p["E"][x] @ p["W"] + h @ p["R"] + statics @ p["R"] + 2 * statics)
    return h @ p["V"] + statics @ p["V"], h


def counted(x: Any, memory: Any, p: Any) -> Any:
    """With integers and bools among the memories."""
    h = np.tanh(p["E"][x] @ p["W"] + memory["h"] @ p["R"])
    seen = memory["seen"] | (x == 3)
    count = memory["count"] + np.where(seen, 1, 2).astype(np.int32)
    scores = h @ p["V"] + np.where((count % 3 == 0)[:, None], p["V"][0], 0.0)
    return scores, {"h": h, "count": count, "seen": seen}


COUNTED = {"h": HIDDEN, "count": sn.Spec((), "int32"), "seen": sn.Spec((), "bool")}
BIAS = weights(9, bias=(len(STARTS), HIDDEN))["bias"]


def lstm(inputs: int, seed: int = 0) -> sn.RNN:
    params = sn.cells.CELLS["lstm"].parameters(inputs, HIDDEN, seed=seed)
    return sn.cells.rnn("lstm", {name: 3 * array for name, array in params.items()})


def scored(x: Any, h: Any, p: Any) -> Any:
    """A layer of scores on top of others."""
    return (x + h) @ p["V"] + p["b"], x


SCORED = weights(4, V=(HIDDEN, SYMBOLS), b=(SYMBOLS,))
TABLE = weights(5, E=(SYMBOLS, 3))["E"]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "ids": (sn.RNN(embedded, weights(1, **EMBEDDED), memory=HIDDEN, inputs=IDS), {}),
    "float64": (sn.RNN(embedded, weights(2, "float64", **EMBEDDED), memory=HIDDEN, inputs=IDS), {}),
    "float16": (sn.RNN(embedded, weights(2, "float16", **EMBEDDED), memory=HIDDEN, inputs=IDS), {}),
    "one-hot": (sn.RNN(of_vectors, weights(3, **VECTORS), memory=HIDDEN, inputs=SYMBOLS), {}),
    "table": (sn.RNN(of_vectors, weights(1, **EMBEDDED), memory=HIDDEN), {"feed": TABLE}),
    "positions": (sn.RNN(placed, weights(1, **EMBEDDED, P=(16, HIDDEN)), memory=HIDDEN, inputs=IDS), {}),
    "statics": (
        sn.RNN(with_bias, weights(6, **EMBEDDED), memory=HIDDEN, inputs=IDS, statics=HIDDEN),
        {"statics": BIAS, "initial": BIAS[::-1]},
    ),
    "integers": (sn.RNN(counted, weights(7, **EMBEDDED), memory=COUNTED, inputs=IDS), {}),
    "whole numbers for scores": (
        sn.RNN(lambda x, h, p: (p[x] * (h + 1)[:, None] % 11, h + x), np.arange(49).reshape(7, 7) ** 2 % 13,
               memory=sn.Spec((), "int64"), inputs=IDS),
        {},
    ),
    "stack": (
        sn.Stack([sn.cells.rnn("gru", sn.cells.CELLS["gru"].parameters(3, HIDDEN)), lstm(HIDDEN, 1),
                  sn.RNN(scored, SCORED, memory=HIDDEN)]),
        {"feed": TABLE},
    ),
}  # fmt: skip


def ragged(starts: list[list[int]]) -> sn.Ragged:
    return sn.Ragged.from_list([np.array(start, np.int64) for start in starts])
