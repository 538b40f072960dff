"""A model as a function from sequences to outputs, and the bytes that a call of it takes.

RNN, Stack, Bidirectional, Graph   --Runnable.of-->   Ragged -> outputs
Runnable + Spec of a step     --CompiledModel.of-->   the kinds of the outputs, bytes by level
"""

from collections.abc import Callable
from math import prod
from typing import Any

from stepnet.compiler.targets import Order
from stepnet.compiler.trace.spec import Spec
from stepnet.compiler.values.arguments import choice
from stepnet.compiler.values.records import dataclass
from stepnet.compiler.values.structure import leaves, named_leaves, skeleton
from stepnet.errors import InputError
from stepnet.model.model import Model, checked_model
from stepnet.model.program import Asked
from stepnet.ragged import Ragged

OUTPUTS = ("last", "outputs")
"""The results of a model: the last output of each sequence, or the outputs of all its steps."""


@dataclass(frozen=True)
class Runnable:
    """A model as a function of one sequence input to its outputs, with parts that identify it.

    spec: the features and dtype of a step; None for a model made without inputs=. run: computes the outputs
    in the model's structure, a `Ragged` for outputs per step, an array for outputs per sequence. digest:
    returns the text that identifies the model for steps of a `Spec`. held: returns (level, bytes per entry)
    of each value that a call holds besides its inputs and outputs. engine: the engines that run it, in order.
    """

    spec: Spec | None
    run: Callable[[Ragged], Any]
    digest: Callable[[Spec], str]
    held: Callable[[Spec], list[tuple[int, int]]] = lambda _: []
    engine: Order = "auto"

    @classmethod
    def of(cls, model: Any, result: str = "outputs", engine: Asked = "auto") -> "Runnable":
        """Makes a `Runnable`, a function of sequences, from a recurrence, a layer or a graph; a `Runnable` is
        returned as it is.

        result: "last" for each sequence's last output, "outputs" for all. engine: one, or several in order of
        preference. Raises `InputError` for other values, and for models of several inputs or with statics
        (values that each sequence has once).
        """
        asked = choice(result, "result is 'last' or 'outputs'", OUTPUTS)
        if isinstance(model, Runnable):
            return model
        checked = checked_model(model, "model is the path of a file,")
        return of_model(checked, asked == "last", checked.engine_order(engine))


def of_model(model: Model, last: bool, engine: Order) -> Runnable:
    """Makes the `Runnable` of a model, a function of sequences; raises `InputError` if the model has several
    inputs, or statics (values that each sequence has once).

    last: whether each sequence has the output of its last step alone. engine: the engines to try, in order.
    """
    declared = model.declaration.typed
    check_no_statics(declared.statics)
    check_single_input(declared.inputs)
    return Runnable(
        declared.inputs,
        lambda sequences: model.outputs(sequences, last, engine),
        lambda spec: model.digest(spec, last, engine),
        lambda spec: model.bytes_between(spec, last, engine),
        engine,
    )


def check_single_input(inputs: Any) -> None:
    """Raises `InputError` for a model with a structure of inputs, because a column is a single one.

    inputs: the declared inputs: a `Spec`, a structure of them, or None for unknown ones, which pass.
    """
    if inputs is not None and not isinstance(inputs, Spec):
        raise InputError(
            f"the model takes a structure of inputs, {skeleton(inputs)}, and a column is a single one: "
            "make a Graph of it that takes the features apart, stepnet.Graph(lambda x, params: model(...))"
        )


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
    pair_bytes: the bytes that a call holds at most for each pair of steps of a sequence, as of attention.
    """

    spec: Spec
    run: Callable[[Ragged], Any]
    blank: Any
    level_bytes: tuple[int, ...]
    pair_bytes: int = 0

    @classmethod
    def of(cls, runnable: Runnable, spec: Spec) -> "CompiledModel":
        """Compiles a model by a call without sequences. Also adds up the bytes that its outputs, and the
        values that it holds during a call, take per sequence, per step, and per entry of further levels of
        nesting, to bound the memory of later calls.

        runnable: the model, with its engine. spec: the features and dtype of a step.
        """
        blank = runnable.run(Ragged.from_list([], spec.dtype, spec.shape, 1 + spec.levels))
        held = [0] * (2 + spec.levels + 1)  # per sequence, step and inner step, and per pair of steps
        for leaf in leaves(blank):
            values, levels = (leaf.values, leaf.levels) if isinstance(leaf, Ragged) else (leaf, 0)
            held[levels] += prod(values.shape[1:]) * values.itemsize
        for level, size in runnable.held(spec):
            held[level] += size
        *level_bytes, pair_bytes = held
        return cls(spec, runnable.run, blank, tuple(level_bytes), pair_bytes)
