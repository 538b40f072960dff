"""What nodes of ONNX make of constants: a table of those that move numbers, and that shapes are made by."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.files.onnx.tensor import TYPES, Array
from stepnet.files.store import Store

DROPS = 7  # the version before which Dropout drops, unless is_test is given
LISTED = 1 << 16  # numbers of one attribute, or of one input that lists whole numbers


@dataclass(frozen=True)
class Given:
    """What a node is given to compute.

    inputs: None for one that is missing. outputs: how many there are. opset: the version of the operators.
    """

    inputs: list[Array | None]
    attributes: dict[str, Any]
    outputs: int
    store: Store
    opset: int

    @property
    def x(self) -> Array:
        """The first input."""
        return self.array(0)

    def array(self, index: int) -> Array:
        """An input that must be there."""
        array = self.inputs[index]
        if array is None:
            raise ValueError("an input is missing")
        return array

    def tensor(self, attribute: str) -> Array:
        """An attribute that must be a tensor."""
        if not isinstance(self.attributes.get(attribute), np.ndarray):
            raise ValueError(f"its {attribute} is no tensor")
        return self.attributes[attribute]

    def numbers(self, index: int, attribute: str, default: Any = None) -> Any:
        """Whole numbers, which an input gives, or in old models an attribute."""
        if index >= len(self.inputs) or self.inputs[index] is None:
            return self.attributes.get(attribute, default)
        array = self.array(index)
        if array.dtype.kind not in "iu" or array.size > LISTED:
            raise ValueError("these are no whole numbers")
        return tuple(int(number) for number in array.ravel())

    def room(self, count: int, dtype: Any) -> None:
        """Refuses an array larger than what may still be taken, before it is made."""
        if count * np.dtype(dtype).itemsize > self.store.left:
            raise ValueError("this is far more than the file has")


def constant(given: Given) -> Array:
    """The array or the numbers that a Constant says."""
    if "value" in given.attributes:
        return given.tensor("value")
    for name, dtype in (
        ("value_float", "f4"),
        ("value_floats", "f4"),
        ("value_int", "i8"),
        ("value_ints", "i8"),
    ):
        if name in given.attributes:
            return np.array(given.attributes[name], dtype)
    raise ValueError("this constant is no array of numbers")


def reshape(given: Given) -> Array:
    """The first input in the shape that the second says, where 0 keeps a size."""
    shape = given.numbers(1, "shape")
    if not given.attributes.get("allowzero"):
        shape = tuple(size or given.x.shape[axis] for axis, size in enumerate(shape))
    return given.x.reshape(shape)


def slice_(given: Given) -> Array:
    """A part of each of some axes."""
    starts, ends = given.numbers(1, "starts"), given.numbers(2, "ends")
    axes = given.numbers(3, "axes") or range(len(starts))
    steps = given.numbers(4, "steps") or (1,) * len(starts)
    picked = [slice(None)] * given.x.ndim
    for axis, start, end, step in zip(axes, starts, ends, steps, strict=True):
        picked[axis] = slice(start, end, step)
    return given.x[tuple(picked)]


def unsqueeze(given: Given) -> Array:
    """The input with further axes of size 1."""
    return np.expand_dims(given.x, tuple(given.numbers(1, "axes")))


def squeeze(given: Given) -> Array:
    """The input without axes of size 1."""
    axes = given.numbers(1, "axes")
    return np.squeeze(given.x, None if axes is None else tuple(axes))


def concat(given: Given) -> Array:
    """All inputs one after another."""
    arrays = [given.array(index) for index in range(len(given.inputs))]
    given.room(sum(array.size for array in arrays), given.x.dtype)
    if any(array.dtype != given.x.dtype for array in arrays):
        raise ValueError("these are of several dtypes")
    return np.concatenate(arrays, given.attributes["axis"])


def gather(given: Given) -> Array:
    """Those elements of an axis that the second input lists."""
    axis, indices = given.attributes.get("axis", 0), given.array(1)
    given.room(indices.size * (given.x.size // max(1, given.x.shape[axis])), given.x.dtype)
    return np.take(given.x, indices, axis)


def split(given: Given) -> Sequence[Array]:
    """The parts of an axis."""
    axis = given.attributes.get("axis", 0)
    size = given.x.shape[axis]
    sizes = given.numbers(1, "split") or (-(-size // given.outputs),) * given.outputs
    return np.split(given.x, np.cumsum(sizes)[:-1], axis)


def cast(given: Given) -> Array:
    """The input as another dtype; halves are rounded and widened again."""
    to = given.attributes["to"]
    given.room(given.x.size, "f8")
    cast_to = given.x.astype(TYPES[to][2])
    return cast_to.astype(np.float32) if to in (10, 16) else cast_to


def dropout(given: Given) -> Array:
    """The input, as it is unless the node drops numbers whenever it is run: since version 12 of the operators
    it may be asked to, and before version 7 it did where it was not asked to leave it.
    """
    in_training = len(given.inputs) > 2 and given.inputs[2] is not None and given.array(2).any()
    if in_training or (given.opset < DROPS and not given.attributes.get("is_test")):
        raise ValueError("this drops numbers at random")
    return given.x


def shape(given: Given) -> Array:
    """The shape of the input."""
    start, end = given.attributes.get("start", 0), given.attributes.get("end")
    return np.array(given.x.shape[start:end], np.int64)


def full(given: Given) -> Array:
    """The shape that the input says, filled with one number."""
    sizes = given.numbers(0, "")
    value = given.tensor("value") if "value" in given.attributes else np.zeros(1, np.float32)
    given.room(math.prod(sizes), value.dtype)
    return np.broadcast_to(value.reshape(()), sizes).copy()


def expand(given: Given) -> Array:
    """The input repeated along axes of size 1."""
    sizes = np.broadcast_shapes(given.x.shape, given.numbers(1, ""))
    given.room(math.prod(sizes), given.x.dtype)
    return np.broadcast_to(given.x, sizes).copy()


def tile(given: Given) -> Array:
    """The input repeated along each axis."""
    repeats = given.numbers(1, "")
    given.room(given.x.size * math.prod(repeats), given.x.dtype)
    return np.tile(given.x, repeats)


def multiply(given: Given) -> Array:
    """A product of whole numbers, of which shapes are made."""
    x, y = given.x, given.array(1)
    if x.dtype.kind not in "iu" or x.size * y.size > LISTED:
        raise ValueError("weights are not computed, shapes are")
    return x * y


def one(fold: Callable[[Given], Array]) -> Callable[[Given], Sequence[Array]]:
    """A fold of one output."""
    return lambda given: (fold(given),)


REPEATS = ("Expand", "Tile")  # what repeats the numbers of its first input
# What only moves the numbers of its first input (of all, for Concat).
MOVES: dict[str, Callable[[Given], Sequence[Array]]] = {
    "Cast": one(cast),
    "Concat": one(concat),
    "Dropout": one(dropout),
    "Gather": one(gather),
    "Identity": one(lambda given: given.x),
    "Reshape": one(reshape),
    "Slice": one(slice_),
    "Split": split,
    "Squeeze": one(squeeze),
    "Transpose": one(lambda given: np.transpose(given.x, given.attributes.get("perm"))),
    "Unsqueeze": one(unsqueeze),
}
FOLDS = {
    **MOVES,
    "Constant": one(constant),
    "ConstantOfShape": one(full),
    "Expand": one(expand),
    "Mul": one(multiply),
    "Shape": one(shape),
    "Tile": one(tile),
}
