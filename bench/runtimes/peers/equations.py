"""The cells as equations, for runtimes that take equations: one text for stepnet's arrays, NumPy's, torch's
and JAX's.

A step is (a, memory, p, f) -> (output, memory). `a` is what a cell's `ahead` makes of the inputs of any
number of steps, before the recurrence runs; p the parameters; f the functions of the runtime (`Functions`).
A memory is an array [rows, features], or a dict of arrays where the cell has several.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Step = Callable[[Any, Any, Any, Any], tuple[Any, Any]]
Shape = tuple[int, ...]
Shapes = dict[str, Shape]
HEADS = 4  # the number of an mLSTM
EPSILON = 1e-5  # added to the variance in a layer normalization


class Functions(NamedTuple):
    """The functions of a runtime that the equations need. normalized: (values - mean) / sqrt(variance +
    EPSILON) over the last axis.
    """

    sigmoid: Any
    tanh: Any
    exp: Any
    log: Any
    abs: Any
    maximum: Any
    einsum: Any
    normalized: Any


def functions_like_numpy(module: Any, sigmoid: Any) -> Functions:
    """Returns the functions for the equations from a module that has NumPy's names; sigmoid: its sigmoid."""

    def normalized(x: Any) -> Any:
        """Normalizes the last axis to mean 0 and variance 1."""
        away = x - x.mean(axis=-1, keepdims=True)
        return away / module.sqrt((away * away).mean(axis=-1, keepdims=True) + EPSILON)

    return Functions(
        sigmoid,
        module.tanh,
        module.exp,
        module.log,
        module.abs,
        module.maximum,
        module.einsum,
        normalized,
    )


def products(x: Any, p: Any, f: Functions) -> Any:
    """Computes the products over inputs with their bias, x W + b, for all steps ahead of the recurrence."""
    return x @ p["W"] + p["b"]


def gru(a: Any, h: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of a GRU that resets after the product: output and h; a: products over inputs."""
    H = h.shape[-1]
    u = h @ p["R"] + p["d"]
    r = f.sigmoid(a[:, :H] + u[:, :H])
    z = f.sigmoid(a[:, H : 2 * H] + u[:, H : 2 * H])
    n = f.tanh(a[:, 2 * H :] + r * u[:, 2 * H :])
    h = n + z * (h - n)
    return h, h


def gru_before(a: Any, h: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of a GRU that resets before the product: output and h; a: products over inputs."""
    H = h.shape[-1]
    u = h @ p["R"][:, : 2 * H]
    r = f.sigmoid(a[:, :H] + u[:, :H])
    z = f.sigmoid(a[:, H : 2 * H] + u[:, H:])
    n = f.tanh(a[:, 2 * H :] + (r * h) @ p["R"][:, 2 * H :])
    h = n + z * (h - n)
    return h, h


def lstm(a: Any, memory: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of an LSTM without peepholes: output and memory; a: products over inputs."""
    h, c = memory["h"], memory["c"]
    H = h.shape[-1]
    u = a + h @ p["R"]
    i, forget, o = f.sigmoid(u[:, :H]), f.sigmoid(u[:, H : 2 * H]), f.sigmoid(u[:, 3 * H :])
    c = forget * c + i * f.tanh(u[:, 2 * H : 3 * H])
    h = o * f.tanh(c)
    return h, {"h": h, "c": c}


def normalized_products(x: Any, p: Any, f: Functions) -> Any:
    """Computes the products over inputs for all steps, normalized over each row's features, with bias."""
    return f.normalized(x @ p["W"]) * p["gW"] + p["b"]


def layernorm_lstm(a: Any, memory: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of an LSTM with layer normalization of both products and of c (Ba, Kiros and Hinton,
    2016): output and memory; gates i, f, g, o. a: the normalized products over inputs.
    """
    h, c = memory["h"], memory["c"]
    H = h.shape[-1]
    u = a + f.normalized(h @ p["R"]) * p["gR"]
    i, forget, o = f.sigmoid(u[:, :H]), f.sigmoid(u[:, H : 2 * H]), f.sigmoid(u[:, 3 * H :])
    c = forget * c + i * f.tanh(u[:, 2 * H : 3 * H])
    h = o * f.tanh(f.normalized(c) * p["gc"] + p["bc"])
    return h, {"h": h, "c": c}


def minimal(a: Any, h: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of the minimal gated unit (Zhou and others, 2016); a: products over inputs."""
    H = h.shape[-1]
    forget = f.sigmoid(a[:, :H] + h @ p["R"][:, :H])
    n = f.tanh(a[:, H:] + (forget * h) @ p["R"][:, H:])
    h = h + forget * (n - h)
    return h, h


def custom(a: Any, h: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of a cell that no library has: one gate, which sees each unit's own memory (v), keeps
    and resets. a: the products over inputs. Returns the output and the memory.
    """
    H = h.shape[-1]
    u = h @ p["R"]
    keep = f.sigmoid(a[:, :H] + u[:, :H] + p["v"] * h)
    n = f.tanh(a[:, H:] + keep * u[:, H:])
    h = n + keep * (h - n)
    return h, h


def projections(x: Any, p: Any, f: Functions) -> Any:
    """Computes an mLSTM's queries, keys, values and gates for all steps: they depend on inputs alone."""
    q, k, v = (f.einsum("bi,ihd->bhd", x, p[name]) for name in "qkv")
    gates = x @ p["W"] + p["b"]
    heads = p["q"].shape[1]
    o = f.sigmoid(f.einsum("bi,ihd->bhd", x, p["o"]))
    return {"q": q, "k": k, "v": v, "i": gates[:, :heads], "f": f.log(f.sigmoid(gates[:, heads:])), "o": o}


def mlstm(a: Any, memory: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of the mLSTM (Beck and others, 2024, equations 19 to 27, stabilized), whose memory is a
    matrix for each head. a: the projections of the inputs. Returns the output and the memory.
    """
    m = f.maximum(a["f"] + memory["m"], a["i"])
    forget, write = f.exp(a["f"] + memory["m"] - m), f.exp(a["i"] - m)
    k = a["k"] * write[:, :, None]
    C = forget[:, :, None, None] * memory["C"] + f.einsum("bhk,bhn->bhkn", k, a["v"])
    n = forget[:, :, None] * memory["n"] + k
    read = f.maximum(f.abs(f.einsum("bhk,bhk->bh", n, a["q"])), f.exp(-m))
    h = a["o"] * f.einsum("bhk,bhkn->bhn", a["q"], C) / read[:, :, None]
    return h, {"C": C, "n": n, "m": m}


def diagonal(a: Any, h: Any, p: Any, f: Functions) -> tuple[Any, Any]:
    """Computes a step of a diagonal state-space cell: each unit keeps the share p["a"] of its state,
    plus a.
    """
    h = p["a"] * h + a
    return h, h


@dataclass(frozen=True)
class Cell:
    """A cell: its step, what is computed ahead of it, and the shapes of weights and memories by name, from
    the inputs I and the units H. A cell of one memory named h takes and gives the array itself.
    """

    step: Step
    weights: Callable[[int, int], Shapes]
    memory: Callable[[int], Shapes] = lambda H: {"h": (H,)}
    ahead: Callable[[Any, Any, Functions], Any] = products

    def begin(self, H: int, zeros: Callable[[Shape], Any]) -> Any:
        """Makes the cell's memory before the first step; zeros: makes an array of a shape."""
        made = {name: zeros(shape) for name, shape in self.memory(H).items()}
        return made["h"] if len(made) == 1 else made


def gated(gates: int, **more: int) -> Callable[[int, int], Shapes]:
    """Returns a function of inputs and units to the shapes of W, R, b of so many gates, and more vectors."""
    return lambda n, H: {
        "W": (n, gates * H),
        "R": (H, gates * H),
        "b": (gates * H,),
        **{name: (size * H,) for name, size in more.items()},
    }


def of_heads(inputs: int, hidden: int) -> Shapes:
    """Returns the shapes of the weights of an mLSTM."""
    each = (inputs, HEADS, hidden // HEADS)
    return {"W": (inputs, 2 * HEADS), "b": (2 * HEADS,), "q": each, "k": each, "v": each, "o": each}


def memory_of_heads(H: int) -> Shapes:
    """Returns the shapes of an mLSTM's memories: a matrix, a normalizer and a stabilizer for each head."""
    d = H // HEADS
    return {"C": (HEADS, d, d), "n": (HEADS, d), "m": (HEADS,)}


def two(H: int) -> Shapes:
    """Returns the shapes of the memories of an LSTM, h and c."""
    return {"h": (H,), "c": (H,)}


CELLS: dict[str, Cell] = {
    "gru": Cell(gru, gated(3, d=3)),
    "lstm": Cell(lstm, gated(4), two),
    "custom": Cell(custom, gated(2, v=1)),
    "minimal": Cell(minimal, gated(2)),
    "gru_before": Cell(gru_before, gated(3)),
    "layernorm_lstm": Cell(layernorm_lstm, gated(4, gW=4, gR=4, gc=1, bc=1), two, ahead=normalized_products),
    "mlstm": Cell(mlstm, of_heads, memory_of_heads, projections),
    "diagonal": Cell(diagonal, lambda n, H: {"W": (n, H), "b": (H,), "a": (H,)}),
}
