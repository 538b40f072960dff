"""Values of a model that count steps: lengths, step indices and running totals."""

from typing import Any

import numpy as np

from stepnet.compiler.net.types import ROWS, STEPS
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.model.recurrence import RNN


def length_of(x: Traced) -> Any:
    """Returns the steps of each sequence, int64, as a value of x's model; x per step counts its own steps."""
    one = Traced(x.builder, x.builder.constant(np.ones((), np.int64)))
    extent = STEPS if len(x.type.extent) < len(STEPS) else x.type.extent
    return apply("reduce", apply("expand", one, extent=extent), how="sum")


def at_axis(x: Traced, axis: str) -> Traced:
    """Returns a value of the model that has one entry per step along an axis of steps, to count these. x: any
    value of the model, which is returned if it has. axis: such as "steps".
    """
    if x.type.extent == (*ROWS, axis):
        return x
    zero = Traced(x.builder, x.builder.constant(np.zeros((), np.int64)))
    return apply("expand", zero, extent=(*ROWS, axis))


def index_of(x: Traced) -> Any:
    """Returns the index of each step in its sequence, from 0, int64, as a value of the model that has x."""

    def step(x: Any, memory: Any, params: Any, index: Any) -> tuple[Any, Any]:
        """Returns the index as the output; the memory has no use."""
        return index, memory

    return RNN(step, memory=())(x)[0]


def running_total(x: Traced, reverse: bool = False, exclusive: bool = False) -> Any:
    """Returns the sum of `x` over each step and all steps before it, as a value of the model.

    reverse: whether to sum over each step and all later steps.
    exclusive: whether to leave out the step itself.
    """

    def step(x: Any, total: Any, params: Any) -> tuple[Any, Any]:
        """Returns the running total with this input (without it if `exclusive`), and the next total."""
        return (total if exclusive else total + x), total + x

    return RNN(step, memory=Spec(x.type.shape, x.type.dtype), reverse=reverse)(x)[0]
