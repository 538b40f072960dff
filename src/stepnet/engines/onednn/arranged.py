"""The arrays of a recognised cell in oneDNN's own arrangement.

    W [x, (r|z|n) h]   ->   weights_layer [1, 1, x, (z, r, n), h]     the update gate first
    b + d              ->   bias [1, 1, (z, r, n), h]

Where z writes the memory, its weights change their sign: 1 - s(a) = s(-a), and oneDNN's keeps it.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from stepnet.engines.onednn.interface import ACTIVATIONS
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.layout.semantics import GATES, Semantics

Array = np.ndarray

SHARED = {"mgu": {"z": "f", "r": "f"}}
"""Gates that are one and the same in a cell: the minimal gated unit is a GRU whose gates are equal."""

NONE = {"clip": 0.0, "cell_clip": 0.0, "projection_clip": 0.0}
"""What oneDNN's cells do not have."""


def refusal(semantics: Semantics) -> str | None:
    """Why oneDNN has no such cell; None where it has."""
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
    """oneDNN's recurrence for a cell. names: of its arrays. projected: the size of h after a projection."""
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
    """A gate of an array of the cell, in a gate of one of oneDNN's: name[..., gate, :] times sign."""

    name: str
    gate: int
    sign: float


Rows = tuple[tuple[Term, ...], ...]
"""For each gate of an array of oneDNN's the terms that it is the sum of."""
WHOLE = {"weights_peephole": "p", "weights_projection": "P"}
"""Arrays that oneDNN has as the cell does."""


def rows_of(recurrence: Recurrence, semantics: Semantics) -> dict[str, Rows]:
    """What the weights and the bias of oneDNN's are made of, gate by gate."""
    shared, ours = SHARED.get(semantics.cell, {}), GATES[semantics.cell]
    order = [ours.index(shared.get(gate, gate)) for gate in recurrence.row.gates]
    signs = [1.0] * len(order)
    if recurrence.row.reset and semantics.update == "write":
        signs[recurrence.row.gates.index("z")] = -1.0
    pairs = list(zip(order, signs, strict=True))

    def rows(*names: str) -> Rows:
        return tuple(tuple(Term(name, *pair) for name in names) for pair in pairs)

    bias = rows("b", "d")
    if recurrence.row.biases > len(pairs):  # the candidate's bias inside of the reset is apart
        bias = (*bias[:-1], rows("b")[-1], rows("d")[-1])
    return {"weights_layer": rows("W"), "weights_iter": rows("R"), "bias": bias}


def arranged(recurrence: Recurrence, semantics: Semantics, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays W, R, b, d, p and P of a cell, as far as it has them, by oneDNN's names."""
    gates = len(GATES[semantics.cell])
    by_gate = {
        name: gates_apart(array, gates) for name, array in arrays.items() if name not in WHOLE.values()
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


def arrays_gradient(
    recurrence: Recurrence,
    semantics: Semantics,
    shapes: Mapping[str, tuple[int, ...]],
    gradients: Mapping[str, Array],
) -> dict[str, Array]:
    """The gradients of a cell's arrays, of these shapes, for those of oneDNN's: `arranged`, transposed."""
    gates = len(GATES[semantics.cell])
    made = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
    for slot, rows in rows_of(recurrence, semantics).items():
        for place, terms in enumerate(rows):
            for term in terms:
                if term.name in made:
                    total = gates_apart(made[term.name], gates)
                    total[..., term.gate, :] += term.sign * gradients[slot][0, 0, ..., place, :]
    return made | {name: gradients[slot][0, 0] for slot, name in WHOLE.items() if name in shapes}


def gates_apart(array: Array, gates: int) -> Array:
    """[..., gates * hidden] as [..., gates, hidden]."""
    return array.reshape(*array.shape[:-1], gates, array.shape[-1] // gates)
