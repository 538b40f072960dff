"""One step of a model for one sequence, with the memories of its stream, as programs of one frame run it."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.compiler.net.interpreter import within
from stepnet.compiler.net.ir import Builder, Net, ancestors
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes import Pipeline
from stepnet.compiler.plan.passes.narrow import any_low, narrow
from stepnet.compiler.plan.passes.prune import prune
from stepnet.compiler.plan.passes.split_concat_matmul import split_concat_matmul
from stepnet.compiler.targets.frame.step import KEEPING, ModelStep, StepEnd, StepMemory
from stepnet.compiler.targets.library import ArrayArgument, CallSpecification
from stepnet.compiler.values.arguments import choice
from stepnet.errors import InputError
from stepnet.model.halves import STORAGE, in_half, stored_dtypes
from stepnet.model.streams.composed import composition

Array = np.ndarray
EXACT: Pipeline = (prune, split_concat_matmul)
"""The passes of a step in integers alone, all of whose weights are int8."""
PASSES: Pipeline = (*EXACT, narrow)
"""The passes of a step, which choose the products that are computed in fewer bits."""


def step_of_call(call: CallSpecification, dtype: Any = None, passes: Pipeline = PASSES) -> ModelStep:
    """Returns one step of a call's model, with all memories of its stream. Values that a sequence has once
    are inputs of each step.

    dtype: the dtype of 16 bits to which matrices and tables are rounded; None to leave them as they are.
    passes: the passes of the step. Raises `InputError` for a model that has no stream, for one whose memories
    begin with its inputs, and for a dtype of a model that has low precisions.
    """
    storage = stored_dtypes(call.net)
    if dtype is not None:
        call, storage = with_rounded(call, dtype), [dtype]
    made = composition(call.schedule, passes)
    net, builder = call.net, made.builder

    def ends(given: Iterable[ArrayArgument], numbers: Sequence[int]) -> tuple[StepEnd, ...]:
        """Returns the inputs or outputs of the step. numbers: of the model's net."""
        return tuple(StepEnd(made.value(numbers[each.index]), each.name, each.title) for each in given)

    initial = {
        made.values[net.inputs[each.index]]
        for each in call.arguments
        if each.kind == "initial" and each.optional
    }
    inputs = ends((each for each in call.arguments if each.kind in ("sequence", "static")), net.inputs)
    outputs = ends((each for each in call.arguments if each.kind == "output"), net.results)
    numbers = [number for number in net.inputs if net.type_of(number).extent == CONST]
    constants = dict(zip((made.values[number] for number in numbers), call.params, strict=True))
    begins = [begin_of(builder, start, constants, initial) for start in made.start]
    pairs = [*zip(made.before, made.after, begins, strict=True), *counted(builder)]
    memories = [
        StepMemory(before, after, f"memory_{builder.nodes[before].name or 'steps'}", "", begin)
        for before, after, begin in pairs
    ]
    nodes = tuple(builder.nodes)
    declared = tuple(number for number, node in enumerate(nodes) if node.operation == "input")
    ended = (*(each.number for each in outputs), *(each.after for each in memories))
    net = Net(nodes, declared, ended)
    return ModelStep(net, inputs, tuple(memories), outputs, constants, storage=tuple(storage))


def with_rounded(call: CallSpecification, dtype: Any) -> CallSpecification:
    """Returns a call whose matrices and tables are rounded to a dtype of 16 bits. Raises `InputError` for
    another dtype, and for a model with low precisions.
    """
    choice(dtype, f"dtype is that of stored weights: {' or '.join(STORAGE)}, or None", STORAGE)
    net = call.net
    if any_low(net):
        raise InputError("the model was quantized, which says how its weights are stored: leave out dtype")
    names = [net.nodes[number].name for number in net.inputs if net.type_of(number).extent == CONST]
    params = (in_half(array, dtype, name) for name, array in zip(names, call.params, strict=True))
    return replace(call, params=tuple(params))


def with_names(step: ModelStep, call: CallSpecification) -> ModelStep:
    """Returns a step with the names that a call gives its inputs and outputs."""

    def ends(own: tuple[StepEnd, ...], *kinds: str) -> tuple[StepEnd, ...]:
        """Returns inputs or outputs with names. kinds: the kinds of the call's arguments."""
        named = [each for each in call.arguments if each.kind in kinds]
        return tuple(StepEnd(end.number, each.name, each.title) for end, each in zip(own, named, strict=True))

    return replace(step, inputs=ends(step.inputs, "sequence", "static"), outputs=ends(step.outputs, "output"))


def begin_of(
    builder: Builder, start: int | None, constants: Mapping[int, Array], initial: set[int]
) -> Array | None:
    """Returns the first value of a memory, computed from the parameters; None for zeros.

    start: the number of the value that it begins with in the net of one step; None for zeros. constants: the
    parameters by their numbers. initial: the numbers of the memories that a call may give, which begin with
    zeros here. Raises `InputError` for a memory that begins with a static.
    """
    if start is None or start in initial:
        return None
    needed = sorted(ancestors(builder.nodes, [start]))
    given = [builder.nodes[n] for n in needed if builder.nodes[n].operation == "input" and n not in constants]
    if given:
        names = ", ".join(f"`{node.name}`" for node in given)
        raise InputError(
            f"the memories of the model begin with its inputs {names}, and those of a frame with zeros or "
            "parameters: leave these inputs out of the model"
        )
    known = dict(constants)
    with np.errstate(all="ignore"):
        for number in needed:
            node = builder.nodes[number]
            if number not in known:
                operands = [known[operand] for operand in node.inputs]
                known[number] = operands[0] if node.operation in KEEPING else within(node, operands)
    return np.asarray(known[start])


def counted(builder: Builder) -> list[tuple[int, int, Array | None]]:
    """Returns the memory with the number of steps so far, to which a step adds 1, if the model reads it: its
    value before the step, its value after the step, and None for its beginning, zeros.
    """
    for number, node in enumerate(builder.nodes):
        if node.operation == "index":
            one = builder.constant(np.array(1, np.int64))
            return [(number, builder.add("add", number, one), None)]
    return []
