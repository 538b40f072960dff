"""The call of a model that a C library runs, whose arrays have names in C."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from stepnet.compiler.targets import Order
from stepnet.compiler.targets.library import ArrayArgument, CallSpecification
from stepnet.compiler.trace.spec import specs
from stepnet.compiler.values.c_names import c_name
from stepnet.compiler.values.dtypes import computed
from stepnet.compiler.values.structure import leaves, transform
from stepnet.errors import InputError
from stepnet.model.graph.graph import Graph
from stepnet.model.model import Model, checked_model

PREFIX = {"output": "y_"}
"""The beginnings of the names of arrays, ahead of the names of the values, by kind."""


def built_model(
    model: Any,
    engine: Order,
    inputs: Any = None,
    statics: Any = None,
    stream: bool = False,
    one_frame: bool = False,
) -> CallSpecification:
    """Returns the specification of a model's call, with names of C for its arrays.

    engine: the engine whose code the library has. inputs, statics: the features of the inputs and statics
    (values that each sequence has once), as for `RNN`; needed if the model was made without them. stream:
    whether the call of a graph takes and gives its memories. one_frame: whether inputs without a dtype have
    the one in which parameters are computed, as devices store parameters alone in 16 bits.

    Raises `InputError` if `model` is not a model, if its inputs are unknown, if a static is a sequence, or if
    its sequences end early.
    """
    if checked_model(model, "a library is built of").ends_early:
        raise InputError(
            "sequences that end early (until=) are not built: Python decides at which step they end"
        )
    given = {"inputs": specs(inputs), "statics": specs(statics)}
    declared = model.declaration._replace(**{kind: spec for kind, spec in given.items() if spec is not None})
    if one_frame:
        declared = declared._replace(params=transform(computed, declared.params))
    if declared.inputs is None:
        raise InputError("the model was made without inputs=: give their features with build(..., inputs=)")
    if any(spec.axis for spec in leaves(declared.statics)):
        raise InputError("statics that are sequences are not built: a library takes flat sequences")
    file = model
    if stream and isinstance(model, Graph):
        model = recurrence_of(model, declared.typed.inputs, declared.typed.statics, engine)
    call, taken = model.specification(declared.typed, engine), set[str]()
    titles = titles_of(file, call.arguments)
    pairs = [(each, c_name(each.name, taken)) for each in call.arguments]
    return replace(
        call,
        arguments=tuple(
            replace(each, name=name, title="" if title == name else title)
            for (each, name), title in zip(pairs, titles, strict=True)
        ),
    )


def titles_of(model: Model, arguments: Sequence[ArrayArgument]) -> list[str]:
    """Lists the names of a call's arrays in the model: those of its file, if that names its only input and
    its only output, which have no name in a call.
    """
    of_file: Mapping[str, Sequence[str]] = model.file_names if isinstance(model, Graph) else {}
    only = {kind: names[0] for kind, names in of_file.items() if len(names) == 1}
    return [only.get(each.kind) or each.name.removeprefix(PREFIX.get(each.kind, "")) for each in arguments]


def recurrence_of(graph: Graph, inputs: Any, statics: Any, engine: Order) -> Model:
    """Returns a graph as one recurrence, whose memories are those of a stream of the graph (a run of it one
    step at a time).

    inputs, statics: their `Spec`s (shapes and dtypes). engine: the engine whose code the library has. Raises
    `InputError` for a graph that has no stream or no memories, and for one that computes the memories that it
    begins with.
    """
    made = graph.step_for(engine).composed_for(inputs, statics)
    if not leaves(made.step.memory):
        raise InputError(
            "the model has no memories, so its steps need nothing of earlier calls: leave out stream"
        )
    if made.step.begin is not None:
        raise InputError(beginning_refusal(made.read_at_the_beginning))
    return made.recurrence


def beginning_refusal(names: Sequence[str]) -> str:
    """Returns the message that refuses a library of a stream of a graph whose memories begin not at zeros.

    names: the names of the statics (values that each sequence has once) that its memories begin with.
    """
    if not names:
        return (
            "the model computes the memories that it begins with from its parameters; with stream they begin "
            "at zeros: make these memories inputs and outputs of the model, and leave out stream"
        )
    given = ", ".join(f"`{name or 'statics'}`" for name in names)
    return (
        f"the memories of the model begin with its inputs {given}: leave out stream, and give the final "
        "memories that it returns as these inputs in the next call"
    )
