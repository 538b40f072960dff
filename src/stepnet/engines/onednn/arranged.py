"""The arrays of a recognised cell in oneDNN's own arrangement.

    W [x, (r|z|n) h]   ->   weights_layer [1, 1, x, (z, r, n), h]     the update gate first
    b + d              ->   bias [1, 1, (z, r, n), h]

Where z writes the memory, its weights change their sign: 1 - s(a) = s(-a), and oneDNN's keeps it.
"""

from collections.abc import Mapping

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


def arranged(recurrence: Recurrence, semantics: Semantics, arrays: Mapping[str, Array]) -> dict[str, Array]:
    """The arrays W, R, b, d, p and P of a cell, as far as it has them, by oneDNN's names."""
    shared = SHARED.get(semantics.cell, {})
    ours = GATES[semantics.cell]
    order = [ours.index(shared.get(gate, gate)) for gate in recurrence.row.gates]
    signs = np.ones((len(order), 1), np.float32)
    if recurrence.row.reset and semantics.update == "write":
        signs[recurrence.row.gates.index("z")] = -1

    def gates(name: str, *before: int) -> Array:
        """An array with its gates in oneDNN's order, [..., gates, hidden]; zeros where there is none."""
        shape = (*before, len(ours), recurrence.hidden)
        array = arrays.get(name)
        whole = np.zeros(shape, np.float32) if array is None else np.reshape(array, shape)
        return whole[..., order, :] * signs

    bias, inside = gates("b"), gates("d")
    if semantics.forget_bias:
        bias[recurrence.row.gates.index("f")] += semantics.forget_bias
    if recurrence.cell == "lbr_gru":
        bias = np.concatenate([bias[:2] + inside[:2], bias[2:], inside[2:]])
    else:
        bias = bias + inside
    further = {"weights_peephole": "p", "weights_projection": "P"}
    made = {
        "weights_layer": gates("W", recurrence.inputs),
        "weights_iter": gates("R", recurrence.output),
        "bias": bias,
        **{name: arrays[ours] for name, ours in further.items() if ours in arrays},
    }
    return {name: made[name][None, None] for name in recurrence.weights}
