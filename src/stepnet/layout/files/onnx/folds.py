"""Constant folding of ONNX nodes: a table of operators that move numbers, and of operators that compute
shapes. For models that are run, the operators in `importers/` compute with constants as well. Here, to read
weights, numbers are only moved, into memory that is counted and bounded by the size of the file (`store.py`).
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.layout.files.onnx.tensor import TYPES, Array
from stepnet.layout.files.store import Store

DROPS = 7  # the version before which Dropout drops unless is_test is set
LISTED = 1 << 16  # numbers of an attribute, or of an input that is a list of whole numbers


@dataclass(frozen=True)
class Operands:
    """The inputs and attributes of an ONNX node whose outputs are computed.

    inputs: None for a missing one. outputs: their number. opset: the version of the operators.
    """

    inputs: list[Array | None]
    attributes: dict[str, Any]
    outputs: int
    store: Store
    opset: int

    @property
    def x(self) -> Array:
        """The first input of the ONNX node that is computed; raises `ValueError` if it is missing."""
        return self.array(0)

    def array(self, index: int) -> Array:
        """Returns input number `index` of the ONNX node; raises `ValueError` if it is missing."""
        array = self.inputs[index]
        if array is None:
            raise ValueError("an input is missing")
        return array

    def tensor(self, attribute: str) -> Array:
        """Returns an attribute of the ONNX node by name; raises `ValueError` unless it is a tensor."""
        if not isinstance(self.attributes.get(attribute), np.ndarray):
            raise ValueError(f"its {attribute} is no tensor")
        return self.attributes[attribute]

    def numbers(self, index: int, attribute: str, default: Any = None) -> Any:
        """Returns a tuple of whole numbers, such as axes: input `index` of an ONNX node or, if it is missing,
        the attribute that old models have instead; `default` if both are missing. Raises `ValueError` if the
        input has other numbers, or too many.
        """
        if index >= len(self.inputs) or self.inputs[index] is None:
            return self.attributes.get(attribute, default)
        array = self.array(index)
        if array.dtype.kind not in "iu" or array.size > LISTED:
            raise ValueError("these are no whole numbers")
        return tuple(int(number) for number in array.ravel())

    def room(self, count: int, dtype: Any) -> None:
        """Raises `ValueError` if an array of `count` numbers of a dtype exceeds the file's memory limit."""
        if count * np.dtype(dtype).itemsize > self.store.left:
            raise ValueError("this is far more than the file has")


def constant(operands: Operands) -> Array:
    """Computes an ONNX Constant: the array or the numbers in its attributes, as an array. Raises `ValueError`
    if it has neither.
    """
    if "value" in operands.attributes:
        return operands.tensor("value")
    for name, dtype in (
        ("value_float", "f4"),
        ("value_floats", "f4"),
        ("value_int", "i8"),
        ("value_ints", "i8"),
    ):
        if name in operands.attributes:
            return np.array(operands.attributes[name], dtype)
    raise ValueError("this constant is not an array of numbers")


def reshape(operands: Operands) -> Array:
    """Computes an ONNX Reshape to the second input, where 0 is the axis' old size, but for `allowzero`."""
    shape = operands.numbers(1, "shape")
    if not operands.attributes.get("allowzero"):
        shape = tuple(size or operands.x.shape[axis] for axis, size in enumerate(shape))
    return operands.x.reshape(shape)


def slice_(operands: Operands) -> Array:
    """Computes an ONNX Slice of the first input: starts, ends, axes (by default the first ones) and steps (1)
    are further inputs, or attributes in old models.
    """
    starts, ends = operands.numbers(1, "starts"), operands.numbers(2, "ends")
    axes = operands.numbers(3, "axes") or range(len(starts))
    steps = operands.numbers(4, "steps") or (1,) * len(starts)
    picked = [slice(None)] * operands.x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        picked[axis] = slice(start, end, step)
    return operands.x[tuple(picked)]


def squeeze(operands: Operands) -> Array:
    """Computes an ONNX Squeeze of axes in the second input, or attribute in old models; by default of all."""
    axes = operands.numbers(1, "axes")
    return np.squeeze(operands.x, None if axes is None else tuple(axes))


def concat(operands: Operands) -> Array:
    """Computes an ONNX Concat of all inputs; raises `ValueError` for a result beyond the limit on memory."""
    arrays = [operands.array(index) for index in range(len(operands.inputs))]
    operands.room(sum(array.size for array in arrays), operands.x.dtype)
    if any(array.dtype != operands.x.dtype for array in arrays):
        raise ValueError("these are of several dtypes")
    return np.concatenate(arrays, operands.attributes["axis"])


def gather(operands: Operands) -> Array:
    """Computes an ONNX Gather: the elements along an axis of the first input at indices in the second."""
    axis, indices = operands.attributes.get("axis", 0), operands.array(1)
    operands.room(indices.size * (operands.x.size // max(1, operands.x.shape[axis])), operands.x.dtype)
    return np.take(operands.x, indices, axis)


def split(operands: Operands) -> Sequence[Array]:
    """Computes an ONNX Split of the first input along an axis: into parts of the sizes in the second input or
    the attribute `split`, else into equal parts.
    """
    axis = operands.attributes.get("axis", 0)
    size = operands.x.shape[axis]
    sizes = operands.numbers(1, "split") or (-(-size // operands.outputs),) * operands.outputs
    return np.split(operands.x, np.cumsum(sizes)[:-1], axis)


def cast(operands: Operands) -> Array:
    """Computes an ONNX Cast to the dtype of the attribute "to", by ONNX's number of it; a cast to float16 or
    bfloat16 rounds to it and returns float32.
    """
    to = operands.attributes["to"]
    operands.room(operands.x.size, "f8")
    cast_to = operands.x.astype(TYPES[to][2])
    return cast_to.astype(np.float32) if to in (10, 16) else cast_to


def dropout(operands: Operands) -> Array:
    """Computes an ONNX Dropout: returns its input; raises `ValueError` if it drops numbers, by its input
    `training_mode` since version 12 of the operators, or without `is_test` before version 7.
    """
    in_training = len(operands.inputs) > 2 and operands.inputs[2] is not None and operands.array(2).any()
    if in_training or (operands.opset < DROPS and not operands.attributes.get("is_test")):
        raise ValueError("this drops numbers at random")
    return operands.x


def shape(operands: Operands) -> Array:
    """Computes an ONNX Shape: the shape of the first input, or of its axes from start up to end."""
    start, end = operands.attributes.get("start", 0), operands.attributes.get("end")
    return np.array(operands.x.shape[start:end], np.int64)


def full(operands: Operands) -> Array:
    """Computes an ONNX ConstantOfShape: an array of the input's shape, filled with `value`, or 0."""
    sizes = operands.numbers(0, "")
    value = operands.tensor("value") if "value" in operands.attributes else np.zeros(1, np.float32)
    operands.room(math.prod(sizes), value.dtype)
    return np.broadcast_to(value.reshape(()), sizes).copy()


def expand(operands: Operands) -> Array:
    """Computes an ONNX Expand: broadcasts the first input to the shape in the second."""
    sizes = np.broadcast_shapes(operands.x.shape, operands.numbers(1, ""))
    operands.room(math.prod(sizes), operands.x.dtype)
    return np.broadcast_to(operands.x, sizes).copy()


def tile(operands: Operands) -> Array:
    """Computes an ONNX Tile: repeats the first input along each axis as often as the second input states."""
    repeats = operands.numbers(1, "")
    operands.room(operands.x.size * math.prod(repeats), operands.x.dtype)
    return np.tile(operands.x, repeats)


def multiply(operands: Operands) -> Array:
    """Computes an ONNX Mul of whole numbers, such as those of shapes; raises `ValueError` for floats, because
    weights are only moved and never computed, and for large arrays.
    """
    x, y = operands.x, operands.array(1)
    if x.dtype.kind not in "iu" or x.size * y.size > LISTED:
        raise ValueError("weights are not computed, shapes are")
    return x * y


def single_output(fold: Callable[[Operands], Array]) -> Callable[[Operands], Sequence[Array]]:
    """Returns a function like `fold`, which computes an ONNX node's only output, with a tuple as result."""
    return lambda operands: (fold(operands),)


REPEATS = ("Expand", "Tile")  # these repeat the numbers of the first input
# These only move the numbers of the first input (of all, for Concat).
MOVES: dict[str, Callable[[Operands], Sequence[Array]]] = {
    "Cast": single_output(cast),
    "Concat": single_output(concat),
    "Dropout": single_output(dropout),
    "Gather": single_output(gather),
    "Identity": single_output(lambda operands: operands.x),
    "Reshape": single_output(reshape),
    "Slice": single_output(slice_),
    "Split": split,
    "Squeeze": single_output(squeeze),
    "Transpose": single_output(lambda operands: np.transpose(operands.x, operands.attributes.get("perm"))),
    "Unsqueeze": single_output(
        lambda operands: np.expand_dims(operands.x, tuple(operands.numbers(1, "axes")))
    ),
}
FOLDS = {
    **MOVES,
    "Constant": single_output(constant),
    "ConstantOfShape": single_output(full),
    "Expand": single_output(expand),
    "Mul": single_output(multiply),
    "Shape": single_output(shape),
    "Tile": single_output(tile),
}
