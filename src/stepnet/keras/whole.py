"""What Keras' `call` cannot take apart itself: several sequences at once, and sequences without steps.

(a [batch, time, 3], b [batch, time, 2, 2])   <->   data [batch, time, 7]
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import prod
from typing import Any, cast

from stepnet.keras.installed import installed

keras: Any = installed()
tree: Any = keras.tree


@dataclass(frozen=True)
class Whole:
    """Sequences as Keras' `call` takes them. parts: a structure of tensors [batch, time, ...]."""

    parts: Any

    @property
    def shape(self) -> tuple[Any, ...]:
        """The shape of the first part."""
        return tuple(tree.flatten(self.parts)[0].shape)

    def cast(self, dtype: Any) -> "Whole":
        """The same in a dtype."""
        return Whole(tree.map_structure(partial(keras.ops.cast, dtype=dtype), self.parts))

    def __tf_tensor__(self, dtype: Any = None, name: Any = None) -> Any:
        """The first part: on TensorFlow, Keras' `ops.shape` reads the shape of a tensor."""
        return tree.flatten(self.parts)[0]

    def __getitem__(self, index: tuple[slice, int, slice]) -> Any:
        """The first step, zeros where there is none: Keras asks for it to know shapes and dtypes."""
        return tree.map_structure(first, self.parts)


def first(x: Any) -> Any:
    """The first step of sequences [batch, time, ...]; zeros where there is none."""
    if x.shape[1] == 0:
        return keras.ops.zeros((x.shape[0], *x.shape[2:]), dtype=x.dtype)
    return x[:, 0]


def together(steps: Any, lead: int) -> Any:
    """A structure of tensors as one with their features side by side. lead: the number of axes before."""
    if not tree.is_nested(steps):
        return steps
    flat = [
        keras.ops.reshape(part, (*part.shape[:lead], prod(part.shape[lead:]))) for part in tree.flatten(steps)
    ]
    return keras.ops.concatenate(flat, axis=-1)


def apart(x: Any, like: Any) -> Any:
    """The structure of tensors [rows, ...] that lie side by side in one. like: tensors of its shapes."""
    if not tree.is_nested(like):
        return x
    parts, begin = list[Any](), 0
    for part in tree.flatten(like):
        end = begin + prod(part.shape[1:])
        parts.append(x[:, begin:end].reshape(-1, *part.shape[1:]))
        begin = end
    return tree.pack_sequence_as(like, parts)


def is_shape(shape: Any) -> bool:
    """Whether this is one shape, and not a structure of them."""
    if isinstance(shape, Mapping):
        return False
    return all(size is None or isinstance(size, int) for size in cast("Sequence[Any]", shape))


def shapes_in(shapes: Any) -> list[Any]:
    """The shapes of a structure of them, in order."""
    if is_shape(shapes):
        return [shapes]
    parts = cast("Mapping[Any, Any]", shapes).values() if isinstance(shapes, Mapping) else shapes
    return [shape for part in parts for shape in shapes_in(part)]
