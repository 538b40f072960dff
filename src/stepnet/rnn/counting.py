"""Numbers of the steps of sequences, as values of a model."""

from typing import Any

import numpy as np

from stepnet.net.types import STEPS
from stepnet.rnn.recurrence import RNN
from stepnet.trace.traced import Traced, apply


def length_of(x: Traced) -> Any:
    """The number of steps of each sequence, int64. x: any value of each step."""
    one = Traced(x.builder, x.builder.constant(np.ones((), np.int64)))
    return apply("reduce", apply("expand", one, extent=STEPS), how="sum")


def index_of(x: Traced) -> Any:
    """The number of each step, from 0, int64. x: any value of each step."""

    def step(x: Any, memory: Any, params: Any, index: Any) -> tuple[Any, Any]:
        return index, memory

    return RNN(step, memory=())(x)[0]
