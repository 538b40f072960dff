"""The cells as equations, for runtimes that take equations: one text for stepnet's arrays and for torch's.

Each is (a, memory, p, f) -> (output, memory): a [rows, gates hidden] are the products over inputs with their
bias, x @ W + b; p the parameters; f.sigmoid and f.tanh the functions of the runtime.
"""

from collections.abc import Callable
from typing import Any

Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]


def gru(a: Any, h: Any, p: Any, f: Any) -> tuple[Any, Any]:
    """A GRU that resets after the product, as in PyTorch and cuDNN; gates r, z, n."""
    H = h.shape[-1]
    u = h @ p["R"] + p["d"]
    r = f.sigmoid(a[:, :H] + u[:, :H])
    z = f.sigmoid(a[:, H : 2 * H] + u[:, H : 2 * H])
    n = f.tanh(a[:, 2 * H :] + r * u[:, 2 * H :])
    h = n + z * (h - n)
    return h, h


def lstm(a: Any, memory: Any, p: Any, f: Any) -> tuple[Any, Any]:
    """An LSTM without peepholes; gates i, f, g, o."""
    h, c = memory["h"], memory["c"]
    H = h.shape[-1]
    u = a + h @ p["R"]
    i, forget, o = f.sigmoid(u[:, :H]), f.sigmoid(u[:, H : 2 * H]), f.sigmoid(u[:, 3 * H :])
    c = forget * c + i * f.tanh(u[:, 2 * H : 3 * H])
    h = o * f.tanh(c)
    return h, {"h": h, "c": c}


def minimal(a: Any, h: Any, p: Any, f: Any) -> tuple[Any, Any]:
    """The minimal gated unit (Zhou and others, 2016): its second product waits for its first; gates f, n."""
    H = h.shape[-1]
    forget = f.sigmoid(a[:, :H] + h @ p["R"][:, :H])
    n = f.tanh(a[:, H:] + (forget * h) @ p["R"][:, H:])
    h = h + forget * (n - h)
    return h, h


def custom(a: Any, h: Any, p: Any, f: Any) -> tuple[Any, Any]:
    """A cell that no library has: one gate, which sees each unit's own memory (v), keeps and resets."""
    H = h.shape[-1]
    u = h @ p["R"]
    keep = f.sigmoid(a[:, :H] + u[:, :H] + p["v"] * h)
    n = f.tanh(a[:, H:] + keep * u[:, H:])
    h = n + keep * (h - n)
    return h, h


EQUATIONS: dict[str, Step] = {"gru": gru, "lstm": lstm, "minimal": minimal, "custom": custom}
