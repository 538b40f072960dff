"""Numbers of the steps of sequences, and sums up to each step, as values of a model."""

from typing import Any

import numpy as np

from stepnet.compiler.net.types import STEPS
from stepnet.compiler.trace.step import Spec
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.model.recurrence import RNN


def length_of(x: Traced) -> Any:
    """The number of steps of each sequence, int64. x: any value of each step."""
    one = Traced(x.builder, x.builder.constant(np.ones((), np.int64)))
    return apply("reduce", apply("expand", one, extent=STEPS), how="sum")


def index_of(x: Traced) -> Any:
    """The number of each step, from 0, int64. x: any value of each step."""

    def step(x: Any, memory: Any, params: Any, index: Any) -> tuple[Any, Any]:
        return index, memory

    return RNN(step, memory=())(x)[0]


def running_total(x: Traced, reverse: bool = False, exclusive: bool = False) -> Any:
    """The sum of each step and all before it, or all behind it. exclusive: without the step's own number."""

    def step(x: Any, total: Any, params: Any) -> tuple[Any, Any]:
        return (total if exclusive else total + x), total + x

    return RNN(step, memory=Spec(x.type.shape, x.type.dtype), reverse=reverse)(x)[0]
