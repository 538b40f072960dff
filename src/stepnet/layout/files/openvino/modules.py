"""The recurrent operators of an OpenVINO model as modules."""

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, TypeGuard

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import FileError, LayoutError
from stepnet.layout.files.axes import Axes
from stepnet.layout.files.model import Array, FileContents, Module
from stepnet.layout.files.openvino import ir
from stepnet.layout.files.openvino.ir import OpenVinoLayer
from stepnet.layout.files.openvino.names import (
    CONST,
    FED,
    MOVES,
    NUMBERS,
    OPERATORS,
    RESET_BEFORE,
    RESULT,
    STRAIGHT,
    WEIGHTS,
)
from stepnet.layout.files.paths import reading
from stepnet.layout.registry import record

FAR = 64  # the most layers between an operator and the source of its input


def read(path: Path) -> FileContents:
    """Reads the recurrent operators of an OpenVINO model, each as a module (recurrent layer), and its other
    constants.

    Raises `FileError`, with the path, for a damaged file, and for a recurrent operator that no layout (a
    framework's arrangement of weights) can express.
    """
    with reading(path, str(path.parent / path.stem)):
        layers, data = ir.read(path)
        names = dict(unique_names(layers))
        modules = tuple(module(layer, names, data) for layer in layers if layer.type in OPERATORS)
        used = {name for recurrent in modules for name in recurrent.names.values()}
        rest = {
            names[id(layer)]: ir.constant(layer, data)
            for layer in layers
            if layer.type == CONST
            and layer.data.get("element_type") in ir.KINDS
            and names[id(layer)] not in used
        }
        return FileContents(
            str(path), modules, rest, tuple(other_layers(layers, names, data)), unspecified=""
        )


def unique_names(layers: list[OpenVinoLayer]) -> Iterator[tuple[int, str]]:
    """Yields (id of an OpenVINO layer object, unique name): the layer's own name, with a number if another
    layer has it; raises `FileError` for a name that cannot be printed.
    """
    counts: dict[str, int] = {}
    for layer in layers:
        if not layer.name.isprintable() or len(layer.name) > 1000:
            raise FileError(
                f"a layer has the name {layer.name[:100]!a}, which cannot be printed or is too long"
            )
        count = counts[layer.name] = counts.get(layer.name, 0) + 1
        yield id(layer), layer.name if count == 1 else f"{layer.name}#{count}"


def module(layer: OpenVinoLayer, names: dict[int, str], data: Array) -> Module:
    """Converts a recurrent OpenVINO operator to a module (layer in stepnet's form); raises `FileError` for a
    function that no layout (a framework's arrangement of weights) has. names: the unique names of layers, by
    id. data: the bytes of the model's constants.
    """
    operator = OPERATORS[layer.type]
    name = names[id(layer)]
    where = f"{layer.type} {name!r}"
    after = layer.data.get("linear_before_reset", "false").lower() in ("true", "1")
    layout = operator.layout if after else RESET_BEFORE.get(operator.layout, operator.layout)
    arrays: dict[str, Array] = {}
    stored_names: dict[str, str] = {}
    for index, weight in enumerate(WEIGHTS, operator.weights):
        source = input_origin(layer, index, {"Convert"}).layer
        if source is None or source.type != CONST:
            kind = source.type if source else "nothing"
            raise FileError(f"{where} takes {weight} from {kind}, and not from a constant")
        array = ir.constant(source, data)
        arrays[weight] = array if operator.sequence else array[None]
        stored_names[weight] = names[id(source)]
    try:
        semantics = record(layout).translated(settings(layer, where))
    except LayoutError as error:
        raise FileError(f"{where}: {error}") from error
    states = [input_origin(layer, index, MOVES).layer for index in range(1, 1 + operator.states)]
    constants = [state for state in states if is_nonzero_constant(state, data)]
    fed = [state.name for state in states if state is not None and state.type in FED]
    makers = [state.name for state in states if state is not None and state.type not in {*FED, CONST}]
    computed = " and ".join(dict.fromkeys(makers))
    direction = layer.data.get("direction", "forward").lower()
    return Module(
        name,
        (layout,),
        arrays,
        stored_names,
        semantics=semantics,
        follows=preceding_operator(layer, names, data),
        reverse=direction == "reverse",
        notes=(
            *(f"the initial state {name!r} is given when the model runs" for name in fed),
            *(
                f"the initial state {state.name!r} is a constant in the file, which is left out"
                for state in constants
            ),
        ),
        alone=f"starts from what other layers compute ({computed})" if computed else "",
        besides=tuple(names[id(constant)] for constant in (*constants, *lengths_constant(layer, data))),
    )


def preceding_operator(layer: OpenVinoLayer, names: dict[int, str], data: Array) -> str:
    """Returns the name of the recurrent OpenVINO operator whose outputs at all steps are another's input; ""
    if the input is anything else, or has other axes.

    names: the unique names of layers, by id. data: the bytes of the model's constants.
    """
    origin = input_origin(layer, 0, STRAIGHT)
    below = origin.layer
    if below is None or below.type not in OPERATORS or origin.output:
        return ""
    axes: Axes | None = outputs(below)
    for passed in reversed(origin.through):
        axes = axes and axes_after(passed, axes, data)
    expected = Axes.of("BTH" if OPERATORS[below.type].sequence else "BH", axes.sizes) if axes else None
    return names[id(below)] if axes and expected and axes.axes == merged_directions(axes, expected) else ""


def outputs(layer: OpenVinoLayer) -> Axes:
    """Returns the axes of an OpenVINO operator's outputs at all steps, as letters: batch, directions, time,
    hidden ("BDTH"), or "BH" for an operator of one step; with their lengths, if known.
    """
    letters = "BDTH" if OPERATORS[layer.type].sequence else "BH"
    shape = layer.shapes.get(len(layer.inputs), [])
    hidden = layer.data.get("hidden_size", "")
    both = layer.data.get("direction", "").lower() == "bidirectional"
    sizes = {letter: length for letter, length in zip(letters, shape, strict=False) if length > 0}
    sizes |= {"H": int(hidden)} if hidden.isdecimal() and len(hidden) < 10 else {}
    return Axes.of(letters, {**sizes, "D": 2 if both else 1})


def merged_directions(axes: Axes, expected: Axes) -> tuple[str, ...]:
    """Returns the axes in which the next operator takes outputs: for one direction `expected`; for both, the
    directions are merged into the last axis of `expected`, the features ("DH").

    axes: the axes of the outputs, which tell the number of directions.
    """
    return (*expected.axes[:-1], f"{'D' if axes.sizes['D'] > 1 else ''}{expected.axes[-1]}")


def axes_after(layer: OpenVinoLayer, axes: Axes, data: Array) -> Axes | None:
    """Returns the axes of an array after an OpenVINO layer that only moves its numbers; None if they are
    unknown. axes: those before it. data: the bytes of the model's constants.
    """
    if layer.type == "Convert":
        return axes
    operand = layer.inputs.get(1)
    if operand is None and layer.type == "Squeeze":
        return axes.squeezed(())
    if operand is None or operand.type != CONST:
        return None
    numbers = [int(number) for number in ir.constant(operand, data).reshape(-1)]
    if layer.type == "Reshape":
        return axes.reshaped(numbers, layer.data.get("special_zero", "").lower() in ("true", "1"))
    how = {"Transpose": axes.transposed, "Squeeze": axes.squeezed, "Unsqueeze": axes.expanded}
    return how[layer.type](numbers)


def other_layers(layers: list[OpenVinoLayer], names: dict[int, str], data: Array) -> Iterator[str]:
    """Yields "name (type)" of the OpenVINO layers that are no recurrent operators, constants, inputs or
    outputs, without those that only move inputs of recurrent ones: the user is told that these are not
    converted.

    names: the unique names of layers, by id. data: the bytes of the model's constants.
    """
    operators = [layer for layer in layers if layer.type in OPERATORS]
    seen = {
        id(passed)
        for layer in operators
        for index in layer.inputs
        if index or preceding_operator(layer, names, data)
        for passed in input_origin(layer, index, MOVES if index else STRAIGHT).through
    }
    for layer in layers:
        if layer.type not in {*OPERATORS, *FED, CONST, RESULT} and id(layer) not in seen:
            yield f"{names[id(layer)]} ({layer.type})"


def is_nonzero_constant(layer: OpenVinoLayer | None, data: Array) -> TypeGuard[OpenVinoLayer]:
    """Returns True if `layer`, which computes the initial state of a recurrent operator, is a constant that
    is not all zeros; None stands for no initial state. data: the bytes of the model's constants.
    """
    return layer is not None and layer.type == CONST and bool(np.any(ir.constant(layer, data)))


def lengths_constant(layer: OpenVinoLayer, data: Array) -> list[OpenVinoLayer]:
    """Returns [layer] for the constant that has the lengths of an OpenVINO operator's sequences, if these are
    not all steps; [] if they are, or if the lengths are no constant. data: the bytes of the model's
    constants.
    """
    operator = OPERATORS[layer.type]
    lengths = input_origin(layer, operator.weights - 1, {"Convert"}).layer if operator.sequence else None
    if lengths is None or lengths.type != CONST:
        return []
    steps = dict(enumerate(layer.shapes.get(0, ()))).get(1)
    return [] if bool(np.all(ir.constant(lengths, data) == steps)) else [lengths]


def settings(layer: OpenVinoLayer, where: str) -> dict[str, Any]:
    """Returns the activations and the clip of an OpenVINO operator, by their names in layouts (frameworks'
    arrangements of weights); raises `FileError` for settings that are not read. where: the operator, for
    messages.
    """
    data, operator = layer.data, OPERATORS[layer.type]
    if data.get("input_forget", "false").lower() in ("true", "1"):
        raise FileError(f"{where} has input_forget=true, which is not read")
    if data.get("weights_format", "fico") != "fico" or len(layer.inputs) > operator.weights + len(WEIGHTS):
        raise FileError(f"{where} is of opset 1, whose peepholes and orders of gates are not read")
    for name in NUMBERS:
        if data.get(name, "").strip():
            raise FileError(f"{where} has {name}={data[name][:50]!a}, which is not read")
    stated = [text.strip().lower() for text in data.get("activations", "").split(",") if text.strip()]
    try:
        clip = float(data.get("clip", "0"))
    except ValueError:
        raise FileError(f"{where} has the clip {data['clip'][:50]!a}, which is no number") from None
    names = (*stated, *operator.activations[len(stated) :])
    return {**{f"activations[{index}]": name for index, name in enumerate(names)}, "clip": clip}


@dataclass(frozen=True)
class InputOrigin:
    """The source of an OpenVINO input: a layer, the number of its output, and the layers in between."""

    layer: OpenVinoLayer | None
    output: int
    through: tuple[OpenVinoLayer, ...]


def input_origin(layer: OpenVinoLayer, index: int, kinds: Collection[str]) -> InputOrigin:
    """Finds the source of input number `index` of an OpenVINO layer: the nearest layer before it whose type
    is not in `kinds`. Layers of these types are followed through their first input, at most `FAR` of them.
    Returns the source (None if there is none), the number of its output, and the layers in between.
    """
    through: list[OpenVinoLayer] = []
    while (source := layer.inputs.get(index)) is not None and source.type in kinds and len(through) < FAR:
        through.append(source)
        layer, index = source, 0
    return InputOrigin(source, layer.ports[index] - len(source.inputs) if source else 0, tuple(through))
