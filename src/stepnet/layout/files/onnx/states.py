"""The sources of initial states and lengths of recurrent nodes: zeros, constants, inputs, or other nodes."""

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.layout.files.onnx.graph import (
    ConstantFolder,
    GraphNode,
    GraphScope,
    Key,
    Output,
    Source,
    Walk,
    find,
)
from stepnet.layout.files.onnx.tensor import Array

CONSTANT, GIVEN, COMPUTED = "constant", "given", "computed"


@dataclass(frozen=True)
class InputSource:
    """An input of a recurrent ONNX node that is an initial state, or the lengths.

    kind: its source: "constant", "given" (an input of the model) or "computed" (by other nodes); "" if it has
        no effect.
    constants: the arrays of the file from which it is computed.
    array: its value, if that is known; a batch of one stands for all sequences.
    """

    kind: str = ""
    constants: Mapping[Key, Array] = field(default_factory=dict[Key, Array])
    array: Array | None = None


def state(scope: GraphScope, name: str, folder: ConstantFolder) -> InputSource:
    """Finds the source of a recurrent ONNX node's initial state, the value `name` of the scope `scope`:
    constants, inputs of the model or other nodes. Zeros of any shape have no effect, and count as no source.
    folder: computes constants.
    """
    if folder.is_zero(scope, name):
        folder.use(scope, name)
        return InputSource()
    beginning = source_of(scope, name, folder)
    constants = {key: array for key, array in beginning.constants.items() if array.any()}
    return InputSource(beginning.kind, constants, beginning.array)


def lengths(node: GraphNode, name: str, walk: Walk, folder: ConstantFolder) -> InputSource:
    """Finds the source of the sequence lengths of a recurrent ONNX node, the value `name`: constants, inputs
    of the model or other nodes. Constants that equal the declared number of steps have no effect: they give
    an `InputSource` of no kind. walk: has the declared shapes. folder: computes constants.
    """
    beginning = source_of(node.scope, name, folder)
    sizes = walk.sizes(node.scope, node.inputs[0])
    by_batch = "layout" in node.attributes and node.attributes["layout"].i == 1
    steps = sizes[by_batch] if len(sizes) == 3 else 0
    is_all = all(np.all(array == steps) for array in beginning.constants.values())
    return InputSource() if beginning.kind == CONSTANT and steps and is_all else beginning


def source_of(scope: GraphScope, name: str, folder: ConstantFolder) -> InputSource:
    """Finds the source of an initial state or of sequence lengths, the ONNX value `name` of the scope
    `scope`: the constants from which it is computed by nodes that only move or repeat numbers, and its kind:
    "constant" if it is computed from constants alone, "given" if all its other sources are inputs of the
    model, else "computed". The constants are arrays, by name. folder: computes constants.
    """
    sources = origins(scope, name, folder)
    constants = {key: array for key, (_, array) in sources.items() if array is not None}
    others = [source for source, array in sources.values() if array is None]
    if others:
        return InputSource(GIVEN if others == [None] * len(others) else COMPUTED, constants)
    folder.use(scope, name)
    array, source = folder.value(scope, name), find(scope, name)[2]
    if array is None and isinstance(source, Output) and source.node.op == "Expand":
        array = folder.value(source.node.scope, source.node.inputs[0])
    return InputSource(CONSTANT, constants, array)


def origins(scope: GraphScope, name: str, folder: ConstantFolder) -> dict[Key, tuple[Source, Array | None]]:
    """Returns the values from which the ONNX value `name` of a scope is computed by nodes that only move or
    repeat numbers: {(scope, name): (source of the value, its array if it is a constant, else None)}. folder:
    computes constants.
    """
    pending, reached = [(scope, name)], dict[Key, tuple[Source, Array | None]]()
    seen = set[Key]()
    while pending:
        folder.work()
        where, called, source = find(*pending.pop())
        if (where, called) in seen:
            continue
        seen.add((where, called))
        moved = folder.moved_inputs(source)
        pending += moved
        if not moved:
            reached[where, called] = source, constant(where, called, source, folder)
    return reached


def constant(scope: GraphScope, name: str, source: Source, folder: ConstantFolder) -> Array | None:
    """Returns the array of the ONNX value `name` of a scope, whose source is `source`, if it is a constant;
    the number, as an array, that fills it if it is the output of a ConstantOfShape; else None. folder:
    computes constants.
    """
    array = folder.value(scope, name)
    if array is None and isinstance(source, Output) and source.node.op == "ConstantOfShape":
        return folder.filling(source.node)
    return array
