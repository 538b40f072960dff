"""The prototype that stepnet's engine grew from: machine code for one cell."""

from importlib import import_module
from typing import Any

import numpy as np

from .worker import Array, Prepared, Refused, Work


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """Returns no version: the prototype is a file that does not change."""
    return {}


def prepare(work: Work) -> Prepared:
    """Makes the prototype's GRU for the case, time before batch: returns the timed call and conversion."""
    if work.cell != "gru" or not work.is_one or work.ragged or work.dtype != "float32" or work.hidden % 16:
        raise Refused("the prototype is a dense float32 GRU whose width 16 divides")
    module = import_module(f"{__package__}.llvm_gru_prototype")  # generates its code when it is imported

    H, p = work.hidden, work.weights
    b = p["b"].copy()
    b[: 2 * H] += p["d"][: 2 * H]
    W, R, b = (
        np.concatenate([*np.split(array, 3, -1)[1::-1], array[..., 2 * H :]], -1)
        for array in (p["W"], p["R"], b)
    )
    gru = module.GRU(W, R, b, p["d"][2 * H :].copy(), work.threads)
    inputs = work.padded(time_major=True)

    def outputs(result: Array) -> Array:
        """Converts a result of the timed call to outputs, sequences end to end."""
        return work.end_to_end(result, time_major=True)

    return Prepared(lambda: gru(inputs), outputs)
