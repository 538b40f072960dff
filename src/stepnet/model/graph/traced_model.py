"""The net of a model, as traced now or known from a file.

A model whose net is known needs no tracer, which is imported for others.
"""

from collections.abc import Callable
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.trace.spec import are_alike, known_trace
from stepnet.compiler.values.fork_guard import imported_late
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
ModelFunction = Callable[..., Any]


@dataclass(frozen=True)
class TracedModel:
    """The net of a model.

    output: the structure of the outputs, with zeros for leaves.
    captured: the arrays that the model captured, which are the last inputs of the net.
    inputs, statics: the structures of its sequences and statics, with a `Spec` for each.
    """

    net: Net
    output: Any
    captured: tuple[Array, ...]
    inputs: Any
    statics: Any


def trace_model(model: ModelFunction, inputs: Any, statics: Any, params: Any) -> TracedModel:
    """Traces a model to its net. Raises `StepError` with the user's line.

    The inputs of the net are the sequences, the statics (values that each sequence has once), the parameters,
    and the arrays that the model captures.

    model: the user's function.
    inputs, statics: the structures of its sequences and statics, with a `Spec` (features and dtype) for each.
    params: its parameters.

    A model of a file that has its net already, as `known_net`, is not traced for the inputs and parameters
    of that.
    """
    known = known_trace(model, "known_net")
    if isinstance(known, TracedModel):
        own: Any = getattr(model, "params", None)
        if are_alike((known.inputs, known.statics, own), (inputs, statics, params)):
            return known
    trace: Callable[..., TracedModel] = imported_late("stepnet.model.graph", "traced_model", "trace")
    return trace(model, inputs, statics, params)
