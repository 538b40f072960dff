"""The functions that run a cell on the torch backend, made once for each kind of call.

one of Keras' cells   -->   its equations   ->
                                                RNN   -->   Runnable
any other cell        -->   its step, traced ->
"""

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, cast
from weakref import WeakKeyDictionary

import numpy as np

from stepnet.errors import StepError
from stepnet.keras.cells import NAMED, cells_in, is_named
from stepnet.keras.installed import installed
from stepnet.keras.recurrences import named_recurrence
from stepnet.keras.settings import settings_of_cell
from stepnet.keras.steps import FULL, Form, trace_cell
from stepnet.keras.way import Way
from stepnet.rnn.layers import LayerPrograms
from stepnet.rnn.programs import keep
from stepnet.rnn.recurrence import RNN
from stepnet.torch.bound import Runnable
from stepnet.trace.step import Spec
from stepnet.values.structure import transform

keras: Any = installed()
tree: Any = keras.tree


class Holder:
    """Where machine code with a cell's parameters is kept between calls without gradients."""


@dataclass(frozen=True)
class Traced:
    """The function that runs a cell, and the variables that it reads."""

    runnable: Runnable
    variables: tuple[Any, ...]
    holder: Holder = field(default_factory=Holder)


TRACES = WeakKeyDictionary[Any, OrderedDict[Any, Any]]()
"""The traces of each cell so far, and the reasons why there is none."""

SHARED = OrderedDict[Any, Any]()
"""The functions that run Keras' own cells, by settings, which determine them."""


def traced(cell: Any, way: Way, form: Form) -> Traced:
    """What runs a cell over sequences of which a step has this form, and the variables that it reads.

    Raises `StepError` for a cell that cannot be traced, with the operation and the line.
    """
    traces = TRACES.setdefault(cell, OrderedDict[Any, Any]())
    weights = tuple((variable.shape, variable.dtype) for variable in getattr(cell, "weights", ()))
    key = settings_of_cell(cell), way, form.key, weights
    if key not in traces:
        keep(traces, key, made(cell, way, form, key))
    known: Traced | str = traces[key]
    if isinstance(known, str):
        raise StepError(known)
    return known


def made(cell: Any, way: Way, form: Form, key: Any) -> Traced | str:
    """The function that runs a cell, or the reason why there is none."""
    if is_named(cell) and not tree.is_nested(form.x) and form.x.ndim != 2:
        return f"a step of {type(cell).__name__} takes [rows, features], not {list(form.x.shape)}"
    if is_named(cell) and is_plain(cell, form):
        if key not in SHARED:
            keep(SHARED, key, runnable(recurrence_of(cell, way, form)))
        return Traced(SHARED[key], tuple(cell.weights))
    try:
        rnn, variables = trace_cell(cell, form, way.training, way.options)
    except StepError as error:
        return str(error)  # which, unlike the error, holds nothing of the cell
    return Traced(runnable(rnn), variables)


def is_plain(cell: Any, form: Form) -> bool:
    """Whether a step of Keras' own cells is called as their equations have it: with one input and all states,
    in the dtype of the weights.
    """
    if tree.is_nested(form.x):
        return False
    tensors = form.x, *tree.flatten(form.states), *(variable.value for variable in cell.weights)
    states = sum(NAMED[type(part)].states for part in cells_in(cell))
    return len(tree.flatten(form.states)) == states and len({in_full_dtype(each) for each in tensors}) == 1


def in_full_dtype(tensor: Any) -> Any:
    """The dtype in which a step computes with a tensor."""
    return FULL.get(tensor.dtype, tensor.dtype)


def recurrence_of(cell: Any, way: Way, form: Form) -> RNN:
    """The recurrence of one of Keras' own cells, or of several that are stacked."""
    x, memory, masks = (
        tree.map_structure(spec_of, part) for part in (form.x, tuple(tree.flatten(form.states)), form.masks)
    )
    return named_recurrence(cell, way, x, memory, masks)


def spec_of(tensor: Any) -> Spec:
    """The spec of a tensor [rows, features...], in a dtype that steps compute in."""
    return Spec(tuple(tensor.shape[1:]), str(in_full_dtype(tensor)).removeprefix("torch."))


def runnable(rnn: RNN) -> Runnable:
    """Runs a recurrence."""
    spec = cast("Spec", rnn.inputs)
    nothing = np.zeros((0, 0, *spec.shape), spec.dtype)
    empty = transform(lambda spec: np.zeros((0, *spec.shape), spec.dtype), rnn.statics)
    return Runnable(LayerPrograms(rnn).read(nothing, None, empty, None, False).program)
