"""The recurrent layers of a Keras model that is read whole: which a file has, and how they run.

    LSTM                                   -->   one layer, in its direction
    Bidirectional, two layers alike        -->   one layer of both directions
    Bidirectional, merge_mode None, or two layers that differ   -->   two layers, and what merges them

A layer that keeps its state from one call to the next (stateful) begins at zeros in each call. A stream of
the model keeps it, until the stream ends.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import pointwise, selecting
from stepnet.importers.axes import AxesError, axis_names, is_feature
from stepnet.importers.placed import Placed
from stepnet.importers.recurrent import as_sequences
from stepnet.importers.values import part_of, reshaped
from stepnet.layout.files.keras.config import Use
from stepnet.layout.files.keras.directions import merge_of
from stepnet.layout.files.keras.file import KerasFile, KerasLayer
from stepnet.layout.files.keras.masks import MaskedValue
from stepnet.layout.files.keras.modules import modules_of
from stepnet.layout.files.keras.names import BIDIRECTIONAL, DIRECTIONS, LAYERS, NOTES
from stepnet.layout.files.model import Module
from stepnet.layout.files.recurrent import RecurrentLayer

ZERO_AT_MASKED, STATEFUL = NOTES["zero_output_for_mask"], NOTES["stateful"]
RECURRENT = {*LAYERS, "RNN", BIDIRECTIONAL}
"""The classes of recurrent layers."""


@dataclass(frozen=True)
class TwoLayers:
    """The layers of a Bidirectional that are run one by one.

    forward, backward: the layers. merge: how their outputs are merged, such as "sum"; None if both are
    returned.
    """

    forward: RecurrentLayer
    backward: RecurrentLayer
    merge: str | None

    @property
    def layers(self) -> tuple[RecurrentLayer, RecurrentLayer]:
        """Both layers, the forward one first."""
        return self.forward, self.backward


MERGED: Mapping[str, Callable[[Placed, Placed], Placed]] = {
    "concat": lambda a, b: selecting.concatenate([a, b], -1),
    "sum": lambda a, b: pointwise.elementwise("add", a, b),
    "product": lambda a, b: pointwise.elementwise("multiply", a, b),
    "average": pointwise.mean,
}
"""The functions that merge the outputs of both directions, by the names of layouts."""


def run(
    layer: RecurrentLayer | TwoLayers, operands: Sequence[MaskedValue], version: str
) -> list[MaskedValue]:
    """Runs a recurrent layer over the first operand; the other operands are its initial states, zeros if
    there are none. Returns its outputs, then its final states if the layer returns them. Raises `ModelError`
    for properties of the layer that a graph does not express.

    With a mask, masked steps are skipped, and outputs for all steps have the same mask. A layer with initial
    states does not read its operand's mask in Keras 3 unless its call states the mask. version: the major
    version of Keras.
    """
    if isinstance(layer, RecurrentLayer):
        return one_layer(layer, operands, version, zero=layer.directions > 1)
    x, states = operands[0], operands[1:]
    half = len(states) // 2
    (a, *first), (b, *second) = (
        one_layer(each, [x, *own], version, zero=True)
        for each, own in zip(layer.layers, (states[:half], states[half:]), strict=True)
    )
    if a.placed.axes[:-1] != b.placed.axes[:-1]:
        raise ModelError("the outputs of both directions do not fit: one returns those of all steps")
    if layer.merge is None:
        return [a, b, *first, *second]
    return [replace(a, placed=MERGED[layer.merge](a.placed, b.placed)), *first, *second]


def one_layer(
    layer: RecurrentLayer, operands: Sequence[MaskedValue], version: str, zero: bool
) -> list[MaskedValue]:
    """Runs one recurrent layer over the first operand; the other operands are its initial states. Returns its
    outputs, then its final states if the layer returns them.

    version: the major version of Keras. zero: whether its outputs at masked steps are zeros, instead of the
    outputs of the steps before. If Keras has the steps of the operand in reverse, the layer runs in the other
    direction, and Keras has the steps of its outputs in reverse too. Raises `ModelError` for properties of
    the layer that a graph does not express, and `AxesError` for initial states of other axes than [sequences,
    features].
    """
    facts = [fact for module in layer.modules for fact in (*module.notes, *module.use)]
    last = layer.top.last_only
    zero = (zero and not last) or ZERO_AT_MASKED in facts
    facts = [fact for fact in facts if fact not in (ZERO_AT_MASKED, STATEFUL)]
    if facts:
        raise ModelError("; ".join(facts))
    if is_feature(operands[0].placed.axes[1]):
        return [MaskedValue(each) for each in over_feature(layer, operands)]
    backwards = operands[0].backwards
    layer = layer.turned() if backwards else layer
    x, initial = as_sequences(operands[0].placed, batch_first=True), [state.placed for state in operands[1:]]
    mask, backwards = operands[0].step_mask(), backwards != layer.top.flipped
    is_read = not initial or version == "2" or operands[0].given
    read = mask.value if mask is not None and is_read else None
    if read is not None and any(layout.startswith("keras.cudnn") for layout in layer.top.layouts):
        raise ModelError("it takes no mask in Keras")
    for state in initial:
        if state.letters != "N_":
            raise AxesError(f"an initial state has the axes [{axis_names(state.letters)}]")
    begun, masked = [state.value for state in initial], "zero" if zero else "repeat"
    outputs, states = layer.run(x.value, begun, last, layer.top.states, read, masked)
    first = MaskedValue(
        x.lettered(outputs, "N_" if last else "NT_"), None if last else mask, backwards=backwards and not last
    )
    if mask is not None:  # which Keras has in the order of the layer's input
        first = first.in_order_of_keras()
    return [first, *(MaskedValue(x.lettered(state, "N_")) for state in states)]


MOST_IN_ROW = 64
"""The most entries of a feature over which a recurrent layer runs without a loop."""


def over_feature(layer: RecurrentLayer, operands: Sequence[MaskedValue]) -> list[Placed]:
    """Runs a recurrent layer over an axis of features, [sequences, features, inputs], as a TimeDistributed
    does at each step; returns its outputs, and its final states if it returns these. Raises `ModelError` for
    a mask, for initial states, and for an axis of more than `MOST_IN_ROW` entries.
    """
    x, *initial = [each.placed for each in operands]
    first, count, last = x.axes[0], x.sizes[1], layer.top.last_only
    if operands[0].mask is not None or initial or len(x.axes) != 3:
        raise ModelError("at each step it runs from zeros, and without a mask")
    if not 0 < count <= MOST_IN_ROW:
        raise ModelError(f"at each step it runs over {count} entries: 1 to {MOST_IN_ROW} are supported")
    outputs, states = layer.run_in_row([part_of(x.value, 0, at) for at in range(count)], last)
    wide = [reshaped(value, (1, *value.type.shape)) for value in outputs]
    wide = wide[::-1] if layer.top.flipped else wide
    made = outputs[0] if last else np.concatenate(wide, axis=1) if count > 1 else wide[0]
    width = outputs[0].type.shape
    own = x.with_value(made, (first, width) if last else (first, (count,), width))
    return [own, *(x.with_value(state, (first, state.type.shape)) for state in states)]


def recurrent_layers(path: Path, file: KerasFile) -> dict[str, RecurrentLayer | TwoLayers]:
    """Reads the recurrent layers of a Keras file, by name, except layers with a part whose class is not
    Keras' own. The record of a layer leaves out how the model uses it, apart from dropout in training,
    because the model is read whole and implements the rest itself.
    """
    layers = tuple(
        replace(
            layer,
            use=Use(training=layer.use.training) if layer.use else None,
            timed="",
            sublayers=tuple(replace(part, timed="") for part in layer.sublayers),
        )
        for layer in file.layers
    )
    modules = modules_of(path, replace(file, layers=layers), None, {})
    found: dict[str, RecurrentLayer | TwoLayers] = {}
    for layer in layers:
        own = [each for each in modules if f"{each.name}/".startswith(f"{layer.name}/")]
        foreign = any(part.foreign for part in layer.sublayers)
        if own and layer.class_name in RECURRENT and not foreign:
            read = (
                RecurrentLayer.of(own)
                if not any(each.alone for each in own)
                else two_layers(path, layer, own)
            )
            found |= {layer.name: read} if read else {}
    return found


def two_layers(path: Path, layer: KerasLayer, modules: Sequence[Module]) -> TwoLayers | None:
    """Returns both directions of a Keras Bidirectional as two recurrent layers, and how their outputs are
    merged, if each direction was read as modules of its own; None if one of them was not read. path: of the
    file, for messages.
    """
    ways = [[*of_direction(layer.name, way, modules)] for way in DIRECTIONS.values()]
    if not all(ways) or sum(map(len, ways)) < len(modules):
        return None
    part = next(part for part in layer.sublayers if part.direction)
    merge = None if part.merge is None else merge_of(path, part, layer.name)
    forward, backward = map(RecurrentLayer.of, ways)
    return TwoLayers(forward, backward, merge)


def of_direction(name: str, way: str, modules: Sequence[Module]) -> Iterator[Module]:
    """Yields the cells of one direction, "forward" or "backward", without the reason why none runs alone."""
    for module in modules:
        if f"{module.name}/".startswith(f"{name}/{way}/"):
            yield replace(module, alone="")
