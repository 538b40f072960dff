"""The function of a `Semantics` as a step, which runs on arrays and, traced, on every engine.

The parameters are {"W": {"r": [inputs, hidden], ...}, "R": ..., "b": ..., "d": ..., "p": ..., "P": ..., "q":
...}, with an array per gate; b, d, p, P and q are optional. Equal equations become the same machine code
however they are written, so these steps are as fast as the named cells.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.spec import Step
from stepnet.compiler.values.records import dataclass
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
    """Returns the step function `step(x, memory, params) -> (output, memory)` that a cell of these semantics
    computes, to run weights of any layout (order of a framework's gates and axes). The memory is h, or {"h":
    h, "c": c} for an LSTM.

    >>> step = step_of(Semantics("rnn"))
    >>> one = np.ones((1, 1))
    >>> step(one, one, {"W": {"n": one}, "R": {"n": one}})[0].round(3)
    array([[0.964]])
    """
    return Equations(semantics)


@dataclass(frozen=True)
class Equations:
    """Step function of a recurrence, by equations with the activations and order that `semantics` state."""

    semantics: Semantics

    @property
    def __name__(self) -> str:
        """The name of the cell, which is shown as the name of the step."""
        return self.semantics.cell

    def __call__(self, x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
        """Computes a step of the cell from an input and the memory; returns (output, next memory). params:
        arrays by parameter, then by gate, such as params["W"]["r"].
        """
        return STEPS[self.semantics.cell](self.semantics, x, memory, params)


def simple(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a simple recurrence, h' = s(W x + b + R h + d), where s is the candidate activation.
    Returns (h', h'). params: arrays by parameter, each a dict with the only gate "n". semantics: the settings
    of the cell, such as its activation.
    """
    h = activated(semantics, "candidate", from_input(x, params, "n") + from_state(h, params, "n"))
    return h, h


def gru(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a gated recurrent unit (GRU) from the input x and the memory h, with the gates r
    (reset) and z (update), as `semantics` describes it. Returns (h', h'). params: arrays by parameter, then
    by gate.
    """
    r, z = (gate(semantics, x, h, params, name) for name in "rz")
    h = updated(semantics, z, h, candidate(semantics, x, h, r, params))
    return h, h


def mgu(semantics: Semantics, x: Any, h: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a minimal gated unit from the input x and the memory h; its gate f resets and
    updates. Returns (h', h'). params: arrays by parameter, then by gate. semantics: the settings of the cell,
    such as its activations.
    """
    f = gate(semantics, x, h, params, "f")
    h = updated(semantics, f, h, candidate(semantics, x, h, f, params))
    return h, h


def lstm(semantics: Semantics, x: Any, memory: Any, params: Parameters) -> tuple[Any, Any]:
    """Computes a step of a long short-term memory (LSTM), as `semantics` describes it: gates f (forget), i
    (input) and o (output), candidate g, and a projection of h if there are weights P (with a bias q). Returns
    (h, {"h": h, "c": c}). params: arrays by parameter, then by gate.
    """
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
    """Computes the input's part of gate `name`, W x + b, from params[parameter][gate]; b may be missing."""
    product = x @ params["W"][name]
    return product + params["b"][name] if name in params.get("b", ()) else product


def from_state(h: Any, params: Parameters, name: str) -> Any:
    """Computes the state's part of gate `name`, R h + d, from params[parameter][gate]; d may be missing."""
    product = h @ params["R"][name]
    return product + params["d"][name] if name in params.get("d", ()) else product


def gate(semantics: Semantics, x: Any, h: Any, params: Parameters, name: str, c: Any = None) -> Any:
    """Computes a gate: s(W x + b + R h + d), where s is the gate activation; inside s, the forget bias (of
    gate f only) and the peephole p c are added if there are any.

    name: the gate's letter. c: the cell of an LSTM, for peepholes. params: arrays by parameter, then gate.
    semantics: the settings of the cell, such as its activations.
    """
    total = from_input(x, params, name) + from_state(h, params, name)
    if name == "f" and semantics.forget_bias:
        total = total + semantics.forget_bias
    if name in params.get("p", ()):
        total = total + params["p"][name] * c
    return activated(semantics, "gate", total)


def candidate(semantics: Semantics, x: Any, h: Any, r: Any, params: Parameters) -> Any:
    """Computes the candidate n of a GRU or MGU, the new content of the memory: s(W x + b + r (R h + d)) if
    the reset gate r acts after the recurrent product, s(W x + b + R (r h) + d) if before it.

    semantics: the settings of the cell, among them `reset`, which says whether before or after. params:
    arrays by parameter, then by gate.
    """
    if semantics.reset == "after":
        recurrent = r * from_state(h, params, "n")
    else:
        recurrent = from_state(r * h, params, "n")
    return activated(semantics, "candidate", from_input(x, params, "n") + recurrent)


def updated(semantics: Semantics, z: Any, h: Any, n: Any) -> Any:
    """Computes the next memory h' of a GRU or MGU from the memory h, the candidate n and the update gate z,
    which is the share of h if `semantics.update` is "keep", and the share of n if it is "write".
    """
    return n + z * (h - n) if semantics.update == "keep" else h + z * (n - h)


def activated(semantics: Semantics, which: str, a: Any) -> Any:
    """Applies the activation of a "gate" or "candidate" (`which`) to a, clipped first if there is a bound."""
    return ACTIVATIONS[getattr(semantics, f"{which}_activation")](bounded(a, semantics.clip))


def bounded(a: Any, bound: float) -> Any:
    """Clips values to [-bound, bound]; returns them unchanged for a bound of 0."""
    return np.clip(a, -bound, bound) if bound else a
