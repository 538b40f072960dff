"""Step functions of Paddle's operators gru and lstm, whose inputs are projected already."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.importers.pointwise import OPERATORS

NAMES = {"sigmoid": "sigmoid", "tanh": "tanh", "relu": "relu", "identity": "linear"}
"""Paddle's names of activations, with their names among the elementwise operators of `importers`."""
ACTIVATIONS: Mapping[str, Callable[[Any], Any]] = {
    name: OPERATORS[operator].function for name, operator in NAMES.items()
}


@dataclass(frozen=True)
class GruStep:
    """Step function of Paddle's gru.

    gate_activation, activation: the names of the activations of the gates and of the candidate.
    keeps: Paddle's origin_mode: whether the update gate keeps the old memory.
    """

    gate_activation: str
    activation: str
    keeps: bool

    @property
    def __name__(self) -> str:
        """Name of the step, which messages about the recurrence show."""
        return "gru"

    def __call__(self, x: Any, h: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of a GRU; returns (output, memory after the step), which are equal.

        x: [rows, 3 hidden], the projected inputs of the gates u|r|c. h: the memory [rows, hidden]. params:
        the weights R (u|r) and R_c, and the bias b.
        """
        size, gates, candidate = (
            h.shape[-1],
            ACTIVATIONS[self.gate_activation],
            ACTIVATIONS[self.activation],
        )
        x = x + params["b"]
        inside = gates(x[:, : 2 * size] + h @ params["R"])
        u, r = inside[:, :size], inside[:, size:]
        c = candidate(x[:, 2 * size :] + (r * h) @ params["R_c"])
        h = u * h + (1 - u) * c if self.keeps else (1 - u) * h + u * c
        return h, h


@dataclass(frozen=True)
class LstmStep:
    """Step function of Paddle's lstm, whose output is the whole memory, h and c.

    gate_activation, candidate_activation: the names of the activations of the gates and of the candidate.
    cell_activation: the name of the activation of c before the output gate.
    """

    gate_activation: str
    candidate_activation: str
    cell_activation: str

    @property
    def __name__(self) -> str:
        """Name of the step, which messages about the recurrence show."""
        return "lstm"

    def __call__(self, x: Any, memory: Any, params: Any) -> tuple[Any, Any]:
        """Computes a step of an LSTM; returns (output, memory after the step), which are the same dict of h
        and c.

        x: [rows, 4 hidden], the projected inputs of the candidate c and the gates i, f and o, one after the
        other. memory: the dict of h and c before the step. params: the weights R, the bias b, and perhaps the
        peepholes p.
        """
        h, c = memory["h"], memory["c"]
        gates = ACTIVATIONS[self.gate_activation]
        candidate, i, f, o = np.split(x + params["b"] + h @ params["R"], 4, axis=-1)
        p_i, p_f, p_o = params.get("p", (0, 0, 0))
        i, f = gates(i + p_i * c), gates(f + p_f * c)
        c = f * c + i * ACTIVATIONS[self.candidate_activation](candidate)
        h = gates(o + p_o * c) * ACTIVATIONS[self.cell_activation](c)
        after = {"h": h, "c": c}
        return after, after
