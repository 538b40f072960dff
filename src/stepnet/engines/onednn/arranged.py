"""The arrays of a recognised cell in oneDNN's layout (ldigo).

    W [x, (r|z|n) h]   ->   weights_layer [1, 1, x, (z, r, n), h]     the update gate first
    b + d              ->   bias [1, 1, (z, r, n), h]

In oneDNN, z = 1 keeps the memory. In cells where z = 1 overwrites it, the weights of z change their sign,
because 1 - s(a) = s(-a).
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepnet.engines.onednn.interface import ACTIVATIONS
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.layout.semantics import GATES, Semantics

Array = np.ndarray

SHARED = {"mgu": {"z": "f", "r": "f"}}
"""For each cell, oneDNN's gates that share one gate of the cell: a minimal gated unit is a GRU with z = r."""

NONE = {"clip": 0.0, "cell_clip": 0.0, "projection_clip": 0.0}
"""Features that oneDNN's cells lack, with the values that turn them off."""


def refusal(semantics: Semantics) -> str | None:
    """The reason why oneDNN has no cell with these semantics; None if it has one."""
    cell = semantics.cell
    if any(getattr(semantics, name) != none for name, none in NONE.items()):
        return "oneDNN's cells do not clip"
    if cell == "rnn":
        known = semantics.candidate_activation in ACTIVATIONS
        return None if known else f"oneDNN has no activation {semantics.candidate_activation}"
    wanted = {"gate_activation": "sigmoid", "candidate_activation": "tanh", "output_activation": "tanh"}
    for name, value in wanted.items():
        if getattr(semantics, name) != value:
            return f"its {name} is {getattr(semantics, name)}, and oneDNN's {cell} has {value}"
    return None


def recurrence_of(
    semantics: Semantics, inputs: int, hidden: int, names: tuple[str, ...], projected: int, reverse: bool
) -> Recurrence:
    """oneDNN's recurrence for a cell. names: the names of its arrays. projected: the size of h after a
    projection.
    """
    gated = {"before": "gru", "after": "lbr_gru"}[semantics.reset]
    cell = gated if semantics.cell in ("gru", "mgu") else semantics.cell
    return Recurrence(
        cell,
        inputs,
        hidden,
        projected if "P" in names else 0,
        semantics.candidate_activation if cell == "rnn" else "tanh",
        "p" in names,
        direction="right2left" if reverse else "left2right",
    )


@dataclass(frozen=True)
class Term:
    """A term of a gate in an array of oneDNN: the cell's array name[..., gate, :], times sign."""

    name: str
    gate: int
    sign: float


Rows = tuple[tuple[Term, ...], ...]
"""For each gate of an array of oneDNN, its terms: the gate is their sum."""
WHOLE = {"weights_peephole": "p", "weights_projection": "P"}
"""Arrays that have the same layout in oneDNN and in the cell."""


def rows_of(recurrence: Recurrence, semantics: Semantics) -> dict[str, Rows]:
    """The terms of oneDNN's weights and bias, gate by gate."""
    shared, ours = SHARED.get(semantics.cell, {}), GATES[semantics.cell]
    order = [ours.index(shared.get(gate, gate)) for gate in recurrence.row.gates]
    signs = [1.0] * len(order)
    if recurrence.row.reset and semantics.update == "write":
        signs[recurrence.row.gates.index("z")] = -1.0
    pairs = list(zip(order, signs, strict=True))

    def rows(*names: str) -> Rows:
        return tuple(tuple(Term(name, *pair) for name in names) for pair in pairs)

    bias = rows("b", "d")
    if recurrence.row.biases > len(pairs):  # the candidate's bias inside the reset is a further gate
        bias = (*bias[:-1], rows("b")[-1], rows("d")[-1])
    return {"weights_layer": rows("W"), "weights_iter": rows("R"), "bias": bias}


def arranged(recurrence: Recurrence, semantics: Semantics, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """oneDNN's arrays by name, made of those of a cell: W, R, b, d, p and P, as far as it has them."""
    gates = len(GATES[semantics.cell])
    by_gate = {
        name: split_gates(array, gates) for name, array in arrays.items() if name not in WHOLE.values()
    }
    made = {slot: arrays[name][None, None] for slot, name in WHOLE.items() if name in arrays}
    for slot, rows in rows_of(recurrence, semantics).items():
        made[slot] = np.zeros(recurrence.shape(slot, 0, 0), np.float32)
        for place, terms in enumerate(rows):
            for term in terms:
                if term.name in by_gate:
                    made[slot][0, 0, ..., place, :] += term.sign * by_gate[term.name][..., term.gate, :]
    if semantics.forget_bias:
        made["bias"][0, 0, recurrence.row.gates.index("f")] += semantics.forget_bias
    return {name: made[name] for name in recurrence.weights}


def split_gates(array: Array, gates: int) -> Array:
    """[..., gates * hidden] as [..., gates, hidden]."""
    return array.reshape(*array.shape[:-1], gates, array.shape[-1] // gates)
