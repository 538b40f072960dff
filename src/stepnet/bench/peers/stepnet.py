"""stepnet itself: the equations as a step, run over a Ragged, or over [batch, time, features] where it is dense."""

from typing import Any

import numpy as np

import stepnet as sn
from stepnet.version import __version__

from .equations import EQUATIONS
from .worker import Array, Prepared, Work


class Functions:
    """The functions that the equations need, for arrays and traced values."""

    sigmoid = staticmethod(sn.sigmoid)
    tanh = staticmethod(np.tanh)


def start(threads: int, options: dict[str, Any]) -> dict[str, str]:
    """The version."""
    return {"stepnet": __version__}


def prepare(work: Work) -> Prepared:
    """The recurrence, traced and compiled."""
    equations, H = EQUATIONS[work.cell], work.hidden

    def step(x: Any, memory: Any, p: Any) -> tuple[Any, Any]:
        return equations(x @ p["W"] + p["b"], memory, p, Functions)

    rnn = sn.RNN(step, work.weights, memory={"h": H, "c": H} if work.cell == "lstm" else H)
    offsets = np.concatenate([[0], np.cumsum(work.arrays["lengths"])])
    ragged = sn.Ragged(work.arrays["values"], (offsets,))
    inputs = ragged if work.ragged else work.padded(time_major=False)
    engine = work.options.get("engine", "auto")

    def outputs(result: tuple[Any, Any]) -> Array:
        found = result[0]
        return found.values if work.ragged else work.end_to_end(found, time_major=False)

    return Prepared(lambda: rnn(inputs, engine=engine), outputs)
