"""The step of a model in integers alone as JSON: its net, what its ends are, and the ranges of its values."""

from typing import Any

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import CONST, Type
from stepnet.compiler.targets.frame.step import FrameRanges, ModelStep, StepEnd, StepMemory
from stepnet.compiler.values.structure import leaves
from stepnet.errors import ModelError
from stepnet.model.graph.programs import GraphProgram
from stepnet.model.stored.arrays import Collected, Found
from stepnet.model.stored.fields import Object, count, entries, keyed, number, several, text
from stepnet.model.stored.nets import net_data, net_of


def step_data(step: ModelStep, arrays: Collected) -> Object:
    """Converts a calibrated step to JSON for a file, and adds its constants to `arrays`; its parameters are
    those of the model, in the same order.
    """
    assert step.ranges is not None
    return {
        "net": net_data(step.net, arrays),
        "inputs": [end_data(end) for end in step.inputs],
        "outputs": [end_data(end) for end in step.outputs],
        "memories": [memory_data(memory, arrays) for memory in step.memories],
        "activations": step.ranges.activations,
        "largest": list(step.ranges.largest),
    }


def end_data(end: StepEnd) -> Object:
    """Converts an input or output of a step to JSON for a file."""
    return {"value": end.number, "name": end.name, "title": end.title}


def memory_data(memory: StepMemory, arrays: Collected) -> Object:
    """Converts a memory of a step to JSON for a file, and adds what it begins with to `arrays`."""
    begin = None if memory.begin is None else arrays.add(memory.begin, f"{memory.name}_begin")
    named = {"name": memory.name, "title": memory.title}
    return {"before": memory.before, "after": memory.after, "begin": begin, **named}


def step_of(data: Any, program: GraphProgram, arrays: Found) -> ModelStep:
    """Reads the calibrated step of a model from JSON that `step_data` wrote to a file.

    program: the program of the model, which has the parameters of the step. arrays: the arrays of the file.
    Raises `ModelError` for a step that does not fit the model.
    """
    given = keyed(data, "a step", "net", "inputs", "outputs", "memories", "activations", "largest")
    net = net_of(given["net"], arrays)

    def value(place: Any, what: str) -> int:
        """Reads the number of a value of the net that is no recurrence."""
        number = count(place, what)
        if number >= len(net.nodes) or len(net.nodes[number].types) != 1:
            raise ModelError(f"{what} is %{number}, which is no value of the net of a step")
        return number

    def end_of(data: Any, what: str) -> StepEnd:
        """Reads an input or output of the step."""
        own = keyed(data, what, "value", "name", "title")
        return StepEnd(value(own["value"], what), text(own["name"], what), text(own["title"], what))

    def memory_of(data: Any, what: str) -> StepMemory:
        """Reads a memory of the step."""
        own = keyed(data, what, "before", "after", "begin", "name", "title")
        before, after = (value(own[name], what) for name in ("before", "after"))
        begin = None if own["begin"] is None else arrays.get(own["begin"], f"the beginning of {what}")
        types = list[object]()
        types += [type_key(net.type_of(before)), type_key(net.type_of(after))]
        types += [] if begin is None else [(begin.shape, begin.dtype.name)]
        if len(set(types)) > 1:
            raise ModelError(f"{what} has other features or another dtype after a step, or at its beginning")
        return StepMemory(before, after, text(own["name"], what), text(own["title"], what), begin)

    inputs, outputs = (several(end_of, given[name], f"an entry of {name}") for name in ("inputs", "outputs"))
    memories = several(memory_of, given["memories"], "a memory of a step")
    largest = tuple(
        float(number(each, "a magnitude")) for each in entries(given["largest"], "the magnitudes")
    )
    if len(largest) != len(net.nodes):
        raise ModelError(f"a step of {len(net.nodes)} values has {len(largest)} magnitudes")
    ranges = FrameRanges(text(given["activations"], "activations"), largest)
    constants = [place for place in net.inputs if net.type_of(place).extent == CONST]
    others = [*(end.number for end in inputs), *(memory.before for memory in memories)]
    if sorted((*constants, *others)) != sorted(net.inputs):
        raise ModelError("the inputs, memories and parameters of a step are not the inputs of its net")
    check_ends(net, program, inputs, outputs, constants)
    known = dict(zip(constants, program.params, strict=True))
    return ModelStep(net, inputs, memories, outputs, known, ranges)


def check_ends(
    net: Net,
    program: GraphProgram,
    inputs: tuple[StepEnd, ...],
    outputs: tuple[StepEnd, ...],
    constants: list[int],
) -> None:
    """Raises `ModelError` unless a step has the inputs, outputs and parameters of the model's program."""
    traced = program.traced
    specs = [(spec.shape, str(spec.dtype)) for spec in (*leaves(traced.inputs), *leaves(traced.statics))]
    results = [type_key(program.net.type_of(place)) for place in program.net.results]
    arrays = [(array.shape, array.dtype.name) for array in program.params]
    parts = [
        ("inputs", [end.number for end in inputs], specs),
        ("outputs", [end.number for end in outputs], results),
        ("parameters", constants, arrays),
    ]
    for kind, numbers, wanted in parts:
        found = [type_key(net.type_of(place)) for place in numbers]
        if found != wanted:
            raise ModelError(
                f"the {kind} of the step of a model are {found}, and those of the model {wanted}"
            )


def type_key(type_: Type) -> tuple[tuple[int, ...], str]:
    """Returns the features and the dtype of a type."""
    return type_.shape, type_.dtype
