"""The function of a `Semantics` as a step, which runs on arrays and, traced, on every engine.

The parameters are {"W": {"r": [inputs, hidden], ...}, "R": ..., "b": ..., "d": ..., "p": ..., "P": ...,
"q": ...}, with an array per gate; b, d, p, P and q are optional. Equal equations become the same machine code
however they are written, so these steps are as fast as the named cells.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.step import Step
from stepnet.layout.semantics import Semantics

Parameters = Mapping[str, Any]
Function = Callable[[Any], Any]

ACTIVATIONS: dict[str, Function] = {
    "sigmoid": functions.sigmoid,
    "hard_sigmoid": functions.hard_sigmoid,
    "hard_sigmoid_fifth": partial(functions.hard_sigmoid, slope=0.2),
    "tanh": np.tanh,
    "relu": functions.relu,
    "linear": lambda a: a,
    "softsign": functions.softsign,
    "elu": functions.elu,
    "selu": functions.selu,
    "softplus": functions.softplus,
    "silu": functions.silu,
    "gelu": functions.gelu,
}


def step_of(semantics: Semantics) -> Step:
    """The step `step(x, memory, params) -> (output, memory)` that computes this function.

    The memory is h, or {"h": h, "c": c} for an LSTM. See `Semantics` for the equations.

    >>> step = step_of(Semantics("rnn"))
    >>> one = np.ones((1, 1))
    >>> step(one, one, {"W": {"n": one}, "R": {"n": one}})[0].round(3)
    array([[0.964]])
    """
    return Equations(semantics)


@dataclass(frozen=True)
class Equations:
    """The step of a function, called by the name of its cell."""

    semantics: Semantics

    @property
    def __name__(self) -> str:
        return self.semantics.cell

    def __call__(self, x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
        """The output and the next memory."""
        return STEPS[self.semantics.cell](self.semantics, x, memory, params)


def simple(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """h' = candidate(W x + b + R h + d)."""
    h = activated(semantics, "candidate", from_input(x, params, "n") + from_state(h, params, "n"))
    return h, h


def gru(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """The gated recurrent unit; see `Semantics`."""
    r, z = (gate(semantics, x, h, params, name) for name in "rz")
    h = updated(semantics, z, h, candidate(semantics, x, h, r, params))
    return h, h


def mgu(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """The minimal gated unit: one gate that resets and updates."""
    f = gate(semantics, x, h, params, "f")
    h = updated(semantics, f, h, candidate(semantics, x, h, f, params))
    return h, h


def lstm(semantics: Semantics, x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
    """The long short-term memory; see `Semantics`."""
    h, c = memory["h"], memory["c"]
    f = gate(semantics, x, h, params, "f", c)
    i = 1 - f if semantics.coupled else gate(semantics, x, h, params, "i", c)
    g = activated(semantics, "candidate", from_input(x, params, "g") + from_state(h, params, "g"))
    c = bounded(f * c + i * g, semantics.cell_clip)
    o = gate(semantics, x, h, params, "o", c)
    h = o * ACTIVATIONS[semantics.output_activation](c)
    if "P" in params:
        h = h @ params["P"]
        h = bounded(h + params["q"] if "q" in params else h, semantics.projection_clip)
    return h, {"h": h, "c": c}


STEPS: dict[str, Callable[[Semantics, Any, Any, Parameters], tuple[Any, Any]]] = {
    "rnn": simple,
    "gru": gru,
    "mgu": mgu,
    "lstm": lstm,
}


# ---- parts of the equations --------------------------------------------------------------------------------


def from_input(x: Any, params: Parameters, name: str) -> Any:
    """W x + b of a gate."""
    product = x @ params["W"][name]
    return product + params["b"][name] if name in params.get("b", ()) else product


def from_state(h: Any, params: Parameters, name: str) -> Any:
    """R h + d of a gate."""
    product = h @ params["R"][name]
    return product + params["d"][name] if name in params.get("d", ()) else product


def gate(semantics: Semantics, x: Any, h: Any, params: Parameters, name: str, c: Any = None) -> Any:
    """s(W x + b + R h + d) of a gate, with the forget bias and p c if there are any."""
    total = from_input(x, params, name) + from_state(h, params, name)
    if name == "f" and semantics.forget_bias:
        total = total + semantics.forget_bias
    if name in params.get("p", ()):
        total = total + params["p"][name] * c
    return activated(semantics, "gate", total)


def candidate(semantics: Semantics, x: Any, h: Any, r: Any, params: Parameters) -> Any:
    """The candidate of the memory, with the reset gate r before or after the recurrent product."""
    if semantics.reset == "after":
        recurrent = r * from_state(h, params, "n")
    else:
        recurrent = from_state(r * h, params, "n")
    return activated(semantics, "candidate", from_input(x, params, "n") + recurrent)


def updated(semantics: Semantics, z: Any, h: Any, n: Any) -> Any:
    """The next memory, from the gate z, the memory h and the candidate n."""
    return n + z * (h - n) if semantics.update == "keep" else h + z * (n - h)


def activated(semantics: Semantics, which: str, a: Any) -> Any:
    """The activation of a gate or candidate, with its input clipped if the semantics have a bound."""
    return ACTIVATIONS[getattr(semantics, f"{which}_activation")](bounded(a, semantics.clip))


def bounded(a: Any, bound: float) -> Any:
    """Values clipped to [-bound, bound]; unchanged for a bound of 0."""
    return np.clip(a, -bound, bound) if bound else a
