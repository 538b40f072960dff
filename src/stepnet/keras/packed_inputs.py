"""Adapters for inputs that Keras' `call` does not take: structures of several sequences, or no steps.

(a [batch, time, 3], b [batch, time, 2, 2])   <->   data [batch, time, 7]
"""

from collections.abc import Mapping, Sequence
from functools import partial
from math import prod
from typing import Any, cast

from stepnet.compiler.values.records import dataclass
from stepnet.keras.installed import installed

keras: Any = installed()
tree: Any = keras.tree


@dataclass(frozen=True)
class PackedInputs:
    """A structure of sequences [batch, time, ...] in a form that Keras' `call` accepts as one tensor.

    parts: the structure of tensors, or a single tensor.
    """

    parts: Any

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the first sequence of the structure, which represents all of them."""
        return tuple(tree.flatten(self.parts)[0].shape)

    def cast(self, dtype: Any) -> "PackedInputs":
        """Returns this structure of sequences with each sequence cast to a dtype."""
        return PackedInputs(tree.map_structure(partial(keras.ops.cast, dtype=dtype), self.parts))

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        """Returns the first sequence: on TensorFlow, Keras' `ops.shape` reads the shape of a tensor."""
        return tree.flatten(self.parts)[0]

    def __getitem__(self, index: tuple[slice, int, slice]) -> Any:
        """Returns the first step of each sequence, whatever the index: Keras needs only shapes and dtypes."""
        return tree.map_structure(first_step, self.parts)


def first_step(x: Any) -> Any:
    """Returns the first step of a tensor [batch, time, ...]; zeros if it has no steps."""
    if x.shape[1] == 0:
        return keras.ops.zeros((x.shape[0], *x.shape[2:]), dtype=x.dtype)
    return x[:, 0]


def pack_features(steps: Any, lead: int) -> Any:
    """Concatenates the features of a structure of tensors into one tensor, as a net has a single input.

    lead: the number of axes before the features, which all tensors share. A single tensor is returned
        unchanged.
    """
    if not tree.is_nested(steps):
        return steps
    flat = [
        keras.ops.reshape(tensor, (*tensor.shape[:lead], prod(tensor.shape[lead:])))
        for tensor in tree.flatten(steps)
    ]
    return keras.ops.concatenate(flat, axis=-1)


def unpack_features(x: Any, like: Any) -> Any:
    """Splits a tensor [rows, features] into a structure of tensors; the inverse of `pack_features`.

    like: tensors that have the structure and, after the rows, the shapes of the result.
    """
    if not tree.is_nested(like):
        return x
    tensors, begin = list[Any](), 0
    for tensor in tree.flatten(like):
        end = begin + prod(tensor.shape[1:])
        tensors.append(x[:, begin:end].reshape(-1, *tensor.shape[1:]))
        begin = end
    return tree.pack_sequence_as(like, tensors)


def is_shape(shape: Any) -> bool:
    """Tells whether a value is a single shape, and not a structure of shapes."""
    if isinstance(shape, Mapping):
        return False
    return all(size is None or isinstance(size, int) for size in cast("Sequence[Any]", shape))


def shapes_in(shapes: Any) -> list[Any]:
    """Lists the shapes in a nested structure of shapes, in order."""
    if is_shape(shapes):
        return [shapes]
    items = cast("Mapping[Any, Any]", shapes).values() if isinstance(shapes, Mapping) else shapes
    return [shape for item in items for shape in shapes_in(item)]
