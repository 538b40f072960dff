"""A recurrent operator of a TensorFlow Lite model: its arrays, its options, and the checks of its arrays."""

from collections.abc import Mapping
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.layout.files.tflite.names import OPTIONAL, TOGETHER, OperatorKind

Array = np.ndarray


@dataclass(frozen=True)
class TfliteNode:
    """A recurrent operator of a TensorFlow Lite model.

    Attributes:
        name: The name of its output tensor, unique in the model.
        op: Its operator, such as UNIDIRECTIONAL_SEQUENCE_LSTM.
        arrays: Its weights, by the names of the kernels, such as input_to_forget_weights [cell, input]; of a
            bidirectional operator with the prefixes fw_ and bw_. Without input_to_input_weights, the input
            gate is one minus the forget gate.
        options: All options by the schema's names. A clip of 0 is none; the converter from Keras writes a
            cell_clip of 10.
        inputs: Its input tensor, and the tensors that this comes from by reversal alone.
        reverse: Whether its input is reversed in time, so that it runs backward.
        after: The recurrent operators whose concatenated outputs are its input.
        over: The output tensor of the operator of another kind that computes its input, if there is one.
    """

    name: str
    op: str
    arrays: Mapping[str, Array]
    options: Mapping[str, Any]
    inputs: tuple[str, ...] = ()
    reverse: bool = False
    after: tuple[str, ...] = ()
    over: str = ""


def misfit(kind: OperatorKind, arrays: Mapping[str, Array]) -> str | None:
    """Returns why the arrays of a TFLite operator do not fit together, in words; None if they do. kind: has
    the names and axes of its inputs, where an axis of the same name has the same length.
    """
    sizes: dict[str, int] = {}
    for name, axes in kind.inputs.items():
        if axes and name not in arrays and name.removeprefix("fw_").removeprefix("bw_") not in OPTIONAL:
            return f"it has no {name}"
        array = arrays.get(name)
        if array is None:
            continue
        if array.ndim != len(axes) or not array.size:
            return f"its {name} is of {array.shape}, and not of ({', '.join(axes)})"
        for axis, size in zip(axes, array.shape, strict=True):
            if sizes.setdefault(axis, size) != size:
                return f"its {name} is of {array.shape}, and other weights say that {axis} is {sizes[axis]}"
    for way in ("fw_", "bw_") if any(name.startswith("fw_") for name in arrays) else ("",):
        for names in TOGETHER:
            present = [way + name in arrays for name in names]
            if any(present) and not all(present):
                return f"of {', '.join(way + name for name in names)} it has only some"
        cell, output = (sizes.get(axis) for axis in ("cell", "output"))
        if way + "projection_weights" not in arrays and output not in (None, cell):
            return f"it gives {output} numbers out of {cell} cells and has no projection_weights"
    if sizes.get("gates", 0) % 4 or sizes.get("joined", 2) <= sizes.get("gates", 4) // 4:
        return f"its weights are of {arrays['weights'].shape}, and not of (4*cell, input+cell)"
    return None
