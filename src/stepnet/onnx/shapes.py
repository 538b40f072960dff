"""ONNX's operators that compute shapes and constants, and that move, join and select numbers."""

from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import extending, selecting, shaping
from stepnet.importers.axes import time_of
from stepnet.importers.placed import Placed, constant
from stepnet.importers.sizes import product
from stepnet.onnx import sequences
from stepnet.onnx.call import OnnxCall

COPIES = {mode: mode for mode in ("reflect", "edge", "wrap")}
"""The modes of Pad that put copies of entries around an axis, with their names in `numpy.pad`."""
FIXED_INSIDE = (
    "or, where a size is the number of steps of the example, as dynamo=False writes it for attention, export "
    "with dynamo=True and dynamic_shapes="
)


def size(call: OnnxCall) -> Placed:
    """Computes the result of a Size node: the number of elements of the operand, which may be symbolic."""
    return constant(shaping.sizes_array([product(call.x.sizes)]).reshape(()))


def sizes(call: OnnxCall, index: int) -> list[Any]:
    """Returns the sizes in the constant operand at index `index`: integers, or symbolic `Size`s."""
    return list(np.ravel(call.operand(index).array))


def reshape(call: OnnxCall) -> Placed:
    """Computes the result of a Reshape node. A size of 0 keeps the operand's size unless `allowzero`."""
    target = sizes(call, 1) if call.optional(1) else call.attributes["shape"]
    try:
        return shaping.reshape(call.x, target, zero_keeps=not call.flag("allowzero"))
    except ModelError as error:
        if time_of(call.x.axes) is None or call.x.stated:
            raise
        raise ModelError(f"{error}; {FIXED_INSIDE}") from error


def flatten(call: OnnxCall) -> Placed:
    """Computes a Flatten: a matrix with the axes before `axis` as rows, and the others as columns."""
    x = shaping.with_one_step(call.x)
    axis = x.axis(int(call.attributes.get("axis", 1)), 1)
    return shaping.reshape(x, [product(x.sizes[:axis]), product(x.sizes[axis:])])


def expand(call: OnnxCall) -> Placed:
    """Computes the result of an Expand node: the value broadcast to a shape."""
    return shaping.expand(call.x, sizes(call, 1))


def constant_of_shape(call: OnnxCall) -> Placed:
    """Computes the result of a ConstantOfShape node: an array filled with one number."""
    number = np.asarray(call.attributes.get("value", np.zeros(1, "float32"))).reshape(())
    return shaping.expand(constant(number), sizes(call, 0))


CONSTANTS = {
    "value": None,
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
}
"""The attributes of which a Constant has one, with their dtypes."""


def constant_(call: OnnxCall) -> Placed:
    """Computes the result of a Constant node: an array that is stored in one of the attributes `CONSTANTS`.
    Raises `ModelError` for texts and sparse arrays.
    """
    for name, dtype in CONSTANTS.items():
        if name in call.attributes:
            return constant(np.asarray(call.attributes[name], dtype))
    raise ModelError(
        f"this constant is not an array of numbers: it has {', '.join(call.attributes) or 'none'}"
    )


# ---- parts -------------------------------------------------------------------------------------------------


def concat(call: OnnxCall) -> Placed:
    """Computes the result of a Concat node: values concatenated along an axis; or a list with one more entry,
    for an array that grows in a Loop.
    """
    if isinstance(call.x.value, sequences.Listed):
        return sequences.grown(call)
    are_known = all(value.is_array for value in call.present)
    axis = call.attributes.get("axis", 0) if are_known else call.attributes["axis"]
    return selecting.concatenate(call.present, int(axis))


def pad(call: OnnxCall) -> Placed:
    """Computes the result of a Pad node: features padded with one number, or, for a negative pad, cut off;
    steps of zeros around sequences, which only a convolution may read; or copies of steps or features.
    """
    x, mode, pads = call.x, call.attributes.get("mode", "constant"), call.integers(1, "pads") or []
    axes = [x.axis(axis) for axis in call.integers(3, "axes", list(range(len(x.axes)))) or []]
    if len(pads) != 2 * len(axes):
        raise ModelError(f"it has {len(pads)} pads for {len(axes)} axes, not two for each")
    ends = [*zip(axes, pads[: len(axes)], pads[len(axes) :], strict=True)]
    if mode != "constant":
        return extending.pad_with_copies(x, ends, extending.mode_of(mode, COPIES), call.padded)
    return selecting.pad(x, ends, call.number(2, "value", 0))


def split(call: OnnxCall) -> list[Placed]:
    """Computes a Split node: consecutive parts of a feature axis, equal ones if no sizes are stated."""
    x, axis, parts = call.x, call.axis(0), call.integers(1, "split")
    if parts is None:
        count = call.attributes.get("num_outputs", call.outputs)
        if count != call.outputs:
            raise ModelError(f"its num_outputs is {count}, but it has {call.outputs} outputs")
        part = -(-x.sizes[axis] // count)
        parts = [min(part, x.sizes[axis] - part * index) for index in range(count)]
    size = x.sizes[axis]
    if isinstance(size, int) and (min(parts, default=0) < 0 or sum(parts) != size):
        raise ModelError(f"its parts have the sizes {short_repr(parts)}, and axis {axis} has {size}")
    return selecting.split(x, axis, parts)


def slice_(call: OnnxCall) -> Placed:
    """Computes the result of a Slice node: a range of features, of sizes in a shape, or of steps."""
    x, starts, ends = call.x, call.numbers(1, "starts"), call.numbers(2, "ends")
    axes = call.integers(3, "axes", list(range(len(starts)))) or []
    steps = call.integers(4, "steps", [1] * len(starts)) or []
    return selecting.slices(x, starts, ends, axes, steps, call.padded)
