"""A model as a function from sequences to outputs, and the bytes that a call of it takes.

RNN, Stack, Bidirectional, Graph   --Runnable.of-->   Ragged -> outputs
Runnable + Spec of a step     --CompiledModel.of-->   the kinds of the outputs, bytes by level
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, prod
from typing import Any

import numpy as np

from stepnet.compiler.net.windows import most_per_step
from stepnet.compiler.plan.schedule import Schedule
from stepnet.compiler.targets import Order, checked_engine
from stepnet.compiler.trace.step import Spec
from stepnet.compiler.values.arguments import choice, short_repr
from stepnet.compiler.values.structure import leaves, named_leaves, skeleton
from stepnet.errors import InputError
from stepnet.model.batch import with_dtypes
from stepnet.model.blank import no_sequences
from stepnet.model.model import Model
from stepnet.model.program import Asked
from stepnet.ragged import Ragged

Array = np.ndarray
OUTPUTS = ("last", "outputs")
"""The results of a model: the last output of each sequence, or the outputs of all its steps."""


@dataclass(frozen=True)
class Runnable:
    """A model as a function of one sequence input to its outputs, with parts that identify it.

    spec: the features and dtype of a step; None for a model made without inputs=. run: computes the outputs
    in the model's structure, a `Ragged` for outputs per step, an array for outputs per sequence. schedules:
    returns the schedules of the model's parts, given no sequences. values: returns its parameters. Schedules
    and parameters identify the model.
    """

    spec: Spec | None
    run: Callable[[Ragged], Any]
    schedules: Callable[[Ragged], list[Schedule]] = lambda _: []
    values: Callable[[], list[Array]] = list[Array]

    @classmethod
    def of(cls, model: Any, output: str = "outputs", engine: Asked = "auto") -> "Runnable":
        """Makes a `Runnable`, a function of sequences, from a recurrence, a layer or a graph; a `Runnable` is
        returned as it is.

        output: "last" for each sequence's last output, "outputs" for all. engine: one, or several in order of
        preference. Raises `InputError` for other values, and for models of several inputs or with statics.
        """
        asked = choice(output, "output is 'last' or 'outputs'", OUTPUTS)
        if isinstance(model, Runnable):
            return model
        if isinstance(model, Model):
            return of_model(model, asked == "last", checked_engine(engine))
        raise InputError(
            "model is a recurrence, a Stack, a Bidirectional, a Graph, or the path of a file, not "
            f"{short_repr(model)}"
        )


def of_model(model: Model, last: bool, engine: Order) -> Runnable:
    """Makes the `Runnable` of a model, a function of sequences; raises `InputError` if the model has several
    inputs, or statics.

    last: whether the outputs are those of each sequence's last step. engine: the engines to try, in order.
    """
    inputs, statics, own = model.declaration
    params = leaves(own)
    check_no_statics(statics)
    return Runnable(
        input_spec(inputs, params),
        lambda sequences: model.outputs(sequences, last, engine),
        lambda nothing: model.schedules(nothing, last, engine),
        lambda: params,
    )


def input_spec(inputs: Any, params: list[Any]) -> Spec | None:
    """Returns the features and dtype of a model's only input; None if the model does not state them.

    inputs: the declared inputs, a `Spec` or a structure of them; `InputError` is raised for a structure.
    params: the model's arrays, whose dtype counts if the inputs state none.
    """
    if inputs is None:
        return None
    if not isinstance(inputs, Spec):
        raise InputError(
            f"the model takes a structure of inputs, {skeleton(inputs)}, and a column is a single one: "
            "make a Graph of it that takes the features apart"
        )
    return with_dtypes(inputs, params)


def check_no_statics(statics: Any) -> None:
    """Raises `InputError` for a model with statics (inputs that are the same at every step of a sequence),
    because a column of sequences has none.

    statics: the declared statics, a structure; None or an empty one passes.
    """
    if statics is not None and leaves(statics):
        names = ", ".join(name for name, _ in named_leaves(statics) if name)
        which = f" ({names})" if names else ""
        raise InputError(
            f"the model takes statics beside its sequences{which}, and here there is a single column: make "
            "a Graph of it that has them as constants"
        )


@dataclass(frozen=True)
class CompiledModel:
    """A model compiled for steps of a `Spec`.

    run: computes the outputs for sequences. blank: the outputs for no sequences, which show their types.
    level_bytes: the bytes that a call holds at most for each sequence, each step, and each entry of further
    levels, without its inputs.
    """

    spec: Spec
    run: Callable[[Ragged], Any]
    blank: Any
    level_bytes: tuple[int, ...]

    @classmethod
    def of(cls, runnable: Runnable, spec: Spec) -> "CompiledModel":
        """Compiles a model by a call without sequences. Also adds up the bytes that outputs, and values
        between the parts of its schedules, take per sequence, per step, and per entry of further levels, to
        bound the memory of later calls.

        spec: the features and dtype of a step.
        """
        nothing = no_sequences(spec)
        blank = runnable.run(nothing)
        held = [0] * (2 + spec.levels)
        for leaf in leaves(blank):
            values, levels = (leaf.values, leaf.levels) if isinstance(leaf, Ragged) else (leaf, 0)
            held[levels] += prod(values.shape[1:]) * values.itemsize
        for schedule in runnable.schedules(nothing):
            for level, size in intermediate_bytes(schedule):
                held[level] += size
        return cls(spec, runnable.run, blank, tuple(held))


def intermediate_bytes(schedule: Schedule) -> list[tuple[int, int]]:
    """Returns (level, bytes per entry) of each value that a part of a schedule leaves to later parts, to
    bound the memory of a call. Level 0 has an entry per sequence, level 1 per step. Final results, and values
    without rows, do not count, but for what final results have more of than steps. A schedule (parts of a
    model in the order they run) of one part leaves none: values before its loop are computed in blocks of a
    fixed size.
    """
    if schedule.single_plan is not None:
        return []
    net = schedule.net
    left = {number for part in schedule.parts for number in part.results if number >= 0} - {*net.results}
    entries = [(net.type_of(number), 0) for number in left]
    entries += [(net.type_of(number), 1) for number in net.results]  # one for each step counts already
    return [
        (
            len(type_.extent) - 1,
            ceil(type_.size * type_.itemsize * (most_per_step(type_.extent[-1]) - counted)),
        )
        for type_, counted in entries
        if type_.extent and most_per_step(type_.extent[-1]) > counted
    ]
