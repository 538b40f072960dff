"""The function of a `Semantics` as a step, which runs on arrays and, traced, on every engine.

The parameters are {"W": {"r": [inputs, hidden], ...}, "R": ..., "b": ..., "d": ..., "p": ..., "P": ..., "q":
...}, with an array per gate; b, d, p, P and q are optional. Equal equations become the same machine code
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
    """Returns the step `step(x, memory, params) -> (output, memory)` that computes this function of weights.

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
        """The name of the cell, which is shown as the name of the step."""
        return self.semantics.cell

    def __call__(self, x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
        """Computes a step of the cell; returns (output, memory). params: arrays by parameter, then gate."""
        return STEPS[self.semantics.cell](self.semantics, x, memory, params)


def simple(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a simple recurrence, h' = candidate(W x + b + R h + d); returns (output, memory)."""
    h = activated(semantics, "candidate", from_input(x, params, "n") + from_state(h, params, "n"))
    return h, h


def gru(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a gated recurrent unit, as `semantics` describes it; returns (output, memory)."""
    r, z = (gate(semantics, x, h, params, name) for name in "rz")
    h = updated(semantics, z, h, candidate(semantics, x, h, r, params))
    return h, h


def mgu(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a minimal gated unit: one gate resets and updates. Returns (output, memory)."""
    f = gate(semantics, x, h, params, "f")
    h = updated(semantics, f, h, candidate(semantics, x, h, f, params))
    return h, h


def lstm(semantics: Semantics, x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a long short-term memory, as `semantics` describes it; returns (output, memory)."""
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
    """Computes W x + b of a gate, whose letter is `name`; b is optional."""
    product = x @ params["W"][name]
    return product + params["b"][name] if name in params.get("b", ()) else product


def from_state(h: Any, params: Parameters, name: str) -> Any:
    """Computes R h + d of a gate, whose letter is `name`; d is optional."""
    product = h @ params["R"][name]
    return product + params["d"][name] if name in params.get("d", ()) else product


def gate(semantics: Semantics, x: Any, h: Any, params: Parameters, name: str, c: Any = None) -> Any:
    """Computes a gate: s(W x + b + R h + d), plus the forget bias and the peephole p c inside s if there are
    any.

    name: the gate's letter. c: the cell of an LSTM, which only peepholes read.
    """
    total = from_input(x, params, name) + from_state(h, params, name)
    if name == "f" and semantics.forget_bias:
        total = total + semantics.forget_bias
    if name in params.get("p", ()):
        total = total + params["p"][name] * c
    return activated(semantics, "gate", total)


def candidate(semantics: Semantics, x: Any, h: Any, r: Any, params: Parameters) -> Any:
    """Computes the new content of the memory, with the reset gate r before or after the recurrent product."""
    if semantics.reset == "after":
        recurrent = r * from_state(h, params, "n")
    else:
        recurrent = from_state(r * h, params, "n")
    return activated(semantics, "candidate", from_input(x, params, "n") + recurrent)


def updated(semantics: Semantics, z: Any, h: Any, n: Any) -> Any:
    """Computes the next memory, a mix of the memory h and the candidate n by the update gate z."""
    return n + z * (h - n) if semantics.update == "keep" else h + z * (n - h)


def activated(semantics: Semantics, which: str, a: Any) -> Any:
    """Applies the activation of "gate" or "candidate", as `which` says, to a, clipped if there is a bound."""
    return ACTIVATIONS[getattr(semantics, f"{which}_activation")](bounded(a, semantics.clip))


def bounded(a: Any, bound: float) -> Any:
    """Clips values to [-bound, bound]; returns them unchanged for a bound of 0."""
    return np.clip(a, -bound, bound) if bound else a
