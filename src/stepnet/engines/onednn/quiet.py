"""Padding that does not change memories: one more input feature, 1 on padding, that opens or closes gates.

    x          x  0          W          W
    x     ->   x  0          .    ->    i: -big  f: +big      on padding  c' = 1 c + 0 g = c
    .          0  1                                           and the gradient of c passes through it

oneDNN gives c, and takes its gradient, at the last step of a primitive alone. With this it is there for
sequences of different lengths. A simple recurrence with relu, which may grow without bound, is 0 on padding:
zero times infinity would be no gradient of a weight. Sigmoids of such a number are 0 and 1 exactly, with
slopes of 0. All other cells are bounded, and what they do on padding is multiplied by gradients of 0.
"""

from dataclasses import replace

import numpy as np

from stepnet.engines.onednn.cache import MEGABYTE, Cache
from stepnet.engines.onednn.recurrence import Recurrence
from stepnet.engines.onednn.weights import Weights

Array = np.ndarray

BIG = 2.0**100
"""Larger than all else that a gate is given, and so far from the largest number that sums stay finite."""
SIGNS = {"lstm": {"i": -1, "f": 1}, "rnn": {"n": -1}}
"""For the cells that need it, what the feature does to each gate."""


def is_needed(recurrence: Recurrence) -> bool:
    """Whether padding would change what a recurrence gives, or the gradients of its weights."""
    return recurrence.row.has_cell or (recurrence.cell == "rnn" and recurrence.activation == "relu")


def quiet(recurrence: Recurrence, weights: Weights) -> tuple[Recurrence, Weights]:
    """The recurrence and its weights with the additional feature, which is the last input."""
    signs = SIGNS[recurrence.cell]

    def widened() -> Weights:
        row = np.zeros((1, 1, 1, len(recurrence.row.gates), recurrence.hidden), np.float32)
        for gate, sign in signs.items():
            row[..., recurrence.row.gates.index(gate), :] = sign * BIG
        layer = np.concatenate([weights.arrays["weights_layer"], row], axis=2)
        return Weights({**weights.arrays, "weights_layer": layer})

    return replace(recurrence, inputs=recurrence.inputs + 1), WIDENED.get(weights.serial, widened)


WIDENED: Cache[Weights] = Cache(
    64, 64 * MEGABYTE, lambda made: sum(array.nbytes for array in made.arrays.values())
)
