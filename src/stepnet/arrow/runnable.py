"""A model as a function from sequences to outputs, and the bytes that a call of it takes.

RNN, Stack, Bidirectional, Graph   --Runnable.of-->   Ragged -> outputs
Runnable + Spec of a step          --Compiled.of-->   the kinds of the outputs, bytes by level
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from stepnet.engines import Order, checked_engine
from stepnet.errors import InputError
from stepnet.graph.graph import Graph
from stepnet.plan.schedule import Schedule
from stepnet.ragged import Ragged
from stepnet.ragged.offsets import ends_of
from stepnet.rnn.blank import no_sequences
from stepnet.rnn.compose import Layer, ends_early, recurrences
from stepnet.rnn.declared import with_dtypes
from stepnet.rnn.program import Asked
from stepnet.rnn.recurrence import RNN
from stepnet.trace.step import Spec
from stepnet.values.arguments import choice, shown
from stepnet.values.structure import leaves, named_leaves, skeleton, transform

Array = np.ndarray
OUTPUTS = ("last", "outputs")
"""The results of a model: the last output of each sequence, or the outputs of all its steps."""


@dataclass(frozen=True)
class Runnable:
    """A model that runs over one kind of sequences, and gives outputs.

    spec: the features and dtype of a step; None for a model that was made without inputs=. run: computes the
    outputs in the model's structure: a `Ragged` for outputs of each step, an array for outputs of each
    sequence. schedules: the schedules of its parts for such sequences. values: its parameters. The schedules
    and the values identify the model.
    """

    spec: Spec | None
    run: Callable[[Ragged], Any]
    schedules: Callable[[Ragged], list[Schedule]] = lambda _: []
    values: Callable[[], list[Array]] = list[Array]

    @classmethod
    def of(cls, model: Any, output: str = "outputs", engine: Asked = "auto") -> "Runnable":
        """What runs a recurrence, layers or a graph. A `Runnable` is one already.

        Raises `InputError` for what is no model, and for models of several inputs and of statics.
        """
        asked = choice(output, "output is 'last' or 'outputs'", OUTPUTS)
        if isinstance(model, Runnable):
            return model
        if isinstance(model, Graph):
            return of_graph(model, asked == "last", checked_engine(engine))
        if isinstance(model, Layer):
            return of_layer(model, asked == "last", checked_engine(engine))
        raise InputError(
            "model is a recurrence, a Stack, a Bidirectional, a Graph, or the path of a file, not "
            f"{shown(model)}"
        )


def of_layer(layer: Layer, last: bool, engine: Order) -> Runnable:
    """What runs a layer. last: whether outputs are the last of each sequence."""
    parts = recurrences(layer, "the model")
    params = [array for part in parts for array in leaves(part.params)]
    check_no_statics(next((part.statics for part in parts if part.statics is not None), None))

    def schedules(nothing: Ragged) -> list[Schedule]:
        if not isinstance(layer, RNN) and ends_early(layer):
            return [part.program.schedule_for(engine) for part in parts]
        source = layer if isinstance(layer, RNN) else layer.run
        return [source.read(nothing, None, None, None, last).running.schedule_for(engine)]

    spec = single(parts[0].inputs, params)
    return Runnable(spec, lambda x: layer(x, last_only=last, engine=engine)[0], schedules, lambda: params)


def of_graph(graph: Graph, last: bool, engine: Order) -> Runnable:
    """What runs a graph. last: whether outputs at each step are given for the last step alone."""
    check_no_statics(graph.statics)

    def run(sequences: Ragged) -> Any:
        outputs = graph(sequences, engine=engine)
        return transform(last_of, outputs) if last else outputs

    def schedules(nothing: Ragged) -> list[Schedule]:
        return [graph.read(nothing).running.schedule_for(engine)]

    params = leaves(graph.params)
    return Runnable(single(graph.inputs, params), run, schedules, lambda: params)


def last_of(output: Any) -> Any:
    """The output at the last step of each sequence, zeros for an empty one; others as they are."""
    if not isinstance(output, Ragged):
        return output
    if output.levels > 1:
        raise InputError(
            "the last output is not defined where each step has a sequence of outputs: ask for 'outputs', "
            "not 'last'"
        )
    return ends_of(output.values, output.offsets[0], first=False)


def single(inputs: Any, params: list[Any]) -> Spec | None:
    """The `Spec` of a model's only input; None where it is not known."""
    if inputs is None:
        return None
    if not isinstance(inputs, Spec):
        raise InputError(
            f"the model takes a structure of inputs, {skeleton(inputs)}, and a column is a single one: "
            "make a Graph of it that takes the features apart"
        )
    return with_dtypes(inputs, params)


def check_no_statics(statics: Any) -> None:
    """Raises `InputError` for a model with statics."""
    if statics is not None and leaves(statics):
        names = ", ".join(name for name, _ in named_leaves(statics) if name)
        which = f" ({names})" if names else ""
        raise InputError(
            f"the model takes statics beside its sequences{which}, and here there is a single column: make "
            "a Graph of it that has them as constants"
        )


@dataclass(frozen=True)
class Compiled:
    """A model that is compiled for steps of a `Spec`.

    blank: its outputs for no sequences. level_bytes: what a call holds at most for each sequence, each step,
    and each entry of further levels, its inputs not counted.
    """

    spec: Spec
    run: Callable[[Ragged], Any]
    blank: Any
    level_bytes: tuple[int, ...]

    @classmethod
    def of(cls, runnable: Runnable, spec: Spec) -> "Compiled":
        """The model compiled for such steps."""
        nothing = no_sequences(spec)
        blank = runnable.run(nothing)
        held = [0] * (2 + spec.levels)
        for each in leaves(blank):
            values, levels = (each.values, each.levels) if isinstance(each, Ragged) else (each, 0)
            held[levels] += prod(values.shape[1:]) * values.itemsize
        for schedule in runnable.schedules(nothing):
            for level, size in between_parts(schedule):
                held[level] += size
        return cls(spec, runnable.run, blank, tuple(held))


def between_parts(schedule: Schedule) -> list[tuple[int, int]]:
    """The level and the bytes of an entry of each value that one part of a schedule leaves to others.

    A single plan leaves none: what it computes ahead of its loop lies in blocks of a fixed size.
    """
    if schedule.whole is not None:
        return []
    net = schedule.net
    left = {number for part in schedule.parts for number in part.results if number >= 0} - {*net.results}
    types = [net.type_of(number) for number in left]
    return [
        (len(type_.extent) - 1, type_.size * np.dtype(type_.dtype).itemsize)
        for type_ in types
        if type_.extent
    ]
