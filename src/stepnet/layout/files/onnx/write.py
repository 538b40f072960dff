"""Writes an ONNX model that runs recurrent layers one after another."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import InputError, StepnetError
from stepnet.layout.files.onnx.drawing import GraphBuilder
from stepnet.layout.files.onnx.node import FLAGS, GATES, STATES, OnnxNode, filled, misfit
from stepnet.layout.files.onnx.tensor import Proto
from stepnet.layout.files.paths import library


def write(
    path: str | Path,
    layers: Sequence[OnnxNode],
    force: bool = False,
    lengths: bool = False,
    last_only: bool = False,
) -> None:
    """Writes an ONNX model that runs the layers one after another, for any batch and number of steps.

    Its input is `input` [batch, time, features], and with `lengths` also `lengths` [batch], int32. Its
    outputs are `output` [batch, time, directions*hidden], or with `last_only` the last output of each
    direction [batch, directions*hidden]; and for layer 0 `final_h_0` [directions, batch, hidden] and of an
    LSTM `final_c_0`, and so on. It has the dtype of the arrays, float32 or float64; onnxruntime runs float32.
    Of each layer `name`, `op`, `arrays` and `attributes` are used. Its initial states, if any, are of a batch
    of one, and are repeated for every sequence. Raises `InputError` for layers that do not fit, `FileError`
    if `path` exists, unless `force`.
    """
    onnx = library("onnx", "an .onnx file", "onnx")
    layers = [checked(layer) for layer in layers]
    dtype = common_dtype(layers)
    helper, kind = onnx.helper, onnx.helper.np_dtype_to_tensor_dtype(dtype)
    drawn = LayerDrawing(onnx)
    x = drawn.node("Transpose", ["input"], "input_by_time", perm=[1, 0, 2])
    outputs: list[Proto] = []
    for index, layer in enumerate(layers):
        last = index == len(layers) - 1
        output_order = BETWEEN if not last else LAST if last_only else STEPS
        x, states = drawn.layer(layer, index, x, "lengths" if lengths else "", output_order)
        shape = [layer.directions, "batch", layer.attributes["hidden_size"]]
        outputs += [helper.make_tensor_value_info(name, kind, shape) for name in states]
    features, width = layers[0].arrays["W"].shape[2], outputs_of(layers[-1])
    inputs = [helper.make_tensor_value_info("input", kind, ["batch", "time", features])]
    if lengths:
        inputs.append(helper.make_tensor_value_info("lengths", onnx.TensorProto.INT32, ["batch"]))
    shape = ["batch", width] if last_only else ["batch", "time", width]
    outputs.insert(0, helper.make_tensor_value_info(x, kind, shape))
    drawn.write(path, inputs, outputs, force)


class LayerDrawing(GraphBuilder):
    """An ONNX graph of recurrent layers that is being built, one layer after another."""

    def layer(
        self, layer: OnnxNode, index: int, x: str, lengths: str, output_order: "OutputTransposition"
    ) -> tuple[str, list[str]]:
        """Adds layer number `index` to the ONNX graph; returns the name of its output and the names of its
        final states.

        x: the name of its input [time, batch, features]. lengths: the name of the value with the sequence
        lengths, or "". output_order: BETWEEN for the input of another layer, STEPS for the model's output at
        all steps, LAST for the last step only.
        """
        name = layer.name
        arrays = {slot: self.constant(f"{name}.{slot}", array) for slot, array in layer.arrays.items()}
        for slot in STATES:
            if slot in arrays:
                arrays[slot] = self.for_each_sequence(arrays[slot])
        states = [f"final_h_{index}"] + ([f"final_c_{index}"] if layer.op == "LSTM" else [])
        y = "" if output_order is LAST else f"{name}.Y"
        inputs = {**arrays, "X": x, "sequence_lens": lengths}
        self.recurrent(layer.op, inputs, [y, *states], name, **attributes_of(layer.op, layer.attributes))
        moved = self.node(
            "Transpose", [y or states[0]], f"{name}.Y{output_order.suffix}", perm=output_order.order
        )
        shape = self.sizes(f"{name}.shape", *[0] * (len(output_order.order) - 2), outputs_of(layer))
        output = f"{name}.output" if output_order is BETWEEN else "output"
        return self.node("Reshape", [moved, shape], output), states

    def for_each_sequence(self, state: str) -> str:
        """Adds ONNX nodes that repeat an initial state [directions, 1, hidden] for every sequence of the
        batch. state: the name of its value. Returns the name of the result, [directions, batch, hidden].
        """
        unit = self.sizes(f"{state}.one", 1)
        batch = self.node("Shape", ["input"], f"{state}.batch", start=0, end=1)
        sizes = self.node("Concat", [unit, batch, unit], f"{state}.sizes", axis=0)
        return self.node("Expand", [state, sizes], f"{state}.each")


@dataclass(frozen=True)
class OutputTransposition:
    """The transposition of an ONNX layer's outputs. order: of the axes. suffix: of the result's name."""

    order: list[int]
    suffix: str


BETWEEN = OutputTransposition([0, 2, 1, 3], "_by_time")  # of Y [time, directions, batch, hidden]
STEPS = OutputTransposition([2, 0, 1, 3], "_by_batch")
LAST = OutputTransposition([1, 0, 2], "_h_by_batch")  # of Y_h [directions, batch, hidden]


def checked(layer: OnnxNode) -> OnnxNode:
    """Returns a copy of an ONNX layer that can be written: with all attributes, time before batch (layout 0),
    and initial states of the shape [directions, 1, hidden]. Raises `InputError` if its arrays and attributes
    do not fit, or if it has states for a batch of more than one.
    """
    try:
        missing = [slot for slot in ("W", "R") if slot not in layer.arrays]
        if layer.op not in GATES or missing:
            raise ValueError(f"it has no {missing[0]}" if missing else f"ONNX has no {layer.op}")
        stated = {**layer.attributes, "layout": 0}  # onnxruntime supports no other
        attributes = filled(layer.op, stated, layer.arrays["R"].shape[-1])
        arrays = {slot: np.asarray(a, a.dtype.newbyteorder("=")) for slot, a in layer.arrays.items()}
        for slot in STATES:
            if slot in arrays and arrays[slot].ndim == 3 and layer.attributes.get("layout"):
                arrays[slot] = arrays[slot].swapaxes(0, 1)
        reason = misfit(layer.op, arrays, attributes)
        states = [slot for slot in STATES if slot in arrays and arrays[slot].shape[1:2] != (1,)]
        if reason is None and states:
            reason = (
                f"its {states[0]} is of {arrays[states[0]].shape}, and any batch may come; give (.., 1, ..)"
            )
        if reason is not None:
            raise ValueError(reason)
    except StepnetError:
        raise
    except (ValueError, TypeError) as error:
        raise InputError(f"layer {layer.name!r} ({layer.op}) cannot be written: {error}") from error
    return OnnxNode(layer.name, layer.op, arrays, attributes)


def common_dtype(layers: Sequence[OnnxNode]) -> np.dtype[Any]:
    """Returns the only dtype of the weights of ONNX layers that are to run one after another. Raises
    `InputError` if there are several, if the layers' names are not unique, or if a layer does not take as
    many features as the layer before it gives.
    """
    names = [layer.name for layer in layers]
    if not layers or len(set(names)) < len(names) or "" in names:
        raise InputError(f"the layers to write have the names {names}; at least one, and each its own")
    for below, above in pairwise(layers):
        takes = above.arrays["W"].shape[2]
        if takes != outputs_of(below):
            raise InputError(
                f"layer {above.name!r} takes {takes} numbers, and {below.name!r} gives {outputs_of(below)}"
            )
    dtypes = {array.dtype for layer in layers for array in layer.arrays.values()}
    if len(dtypes) > 1:
        raise InputError(
            f"the layers to write are of {' and '.join(sorted(map(str, dtypes)))}; cast them to one"
        )
    return dtypes.pop()


def outputs_of(layer: OnnxNode) -> int:
    """Returns the number of output features of an ONNX layer, both directions together."""
    return layer.directions * layer.attributes["hidden_size"]


def attributes_of(op: str, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the attributes to write for a recurrent ONNX node, without those that have ONNX's default, such
    as no clip. Activations without an alpha or beta, for which `attributes` has None, are left out of the
    lists of these.
    """
    stated = {key: attributes[key] for key in ("direction", "hidden_size", "activations")}
    stated |= {key: attributes[key] for key in FLAGS[op] if attributes[key]}
    for key in ("activation_alpha", "activation_beta"):
        numbers = [number for number in attributes[key] if number is not None]
        stated |= {key: numbers} if numbers else {}
    return stated | ({} if attributes["clip"] is None else {"clip": attributes["clip"]})
