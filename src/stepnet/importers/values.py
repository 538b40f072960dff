"""Works on the features of traced values and of arrays alike: their shapes, orders and extents."""

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.net.types import CONST, Extent, is_pairs
from stepnet.compiler.trace import traced
from stepnet.compiler.trace.numpy_shapes import broadcast_to_features
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.errors import ModelError

Array = np.ndarray
MOST = 2**27
"""The largest number of elements of a computed constant, or of the features of a value."""


def shape_of(value: Any) -> tuple[int, ...]:
    """Returns the sizes of the features of a traced value, or of all axes of an array."""
    return value.type.shape if isinstance(value, Traced) else np.shape(value)


def first_feature(value: Any) -> int:
    """Returns the first feature's axis: 1 for traced values, behind steps or sequences; 0 for arrays."""
    return 1 if isinstance(value, Traced) and not value.is_constant else 0


def reshaped(value: Any, features: Sequence[int]) -> Any:
    """Reshapes the features of a traced value, or an array, to these sizes."""
    if isinstance(value, Traced):
        return traced.reshaped(value, tuple(features))
    return value.reshape(tuple(features))


def transposed(value: Any, order: Sequence[int]) -> Any:
    """Transposes the features of a traced value, or the axes of an array, to this order."""
    if isinstance(value, Traced):
        return traced.transposed(value, tuple(order))
    return np.transpose(value, order)


def broadcast(value: Any, features: Sequence[int]) -> Any:
    """Repeats the features of a traced value or an array until they have these sizes."""
    check_room(features)
    if isinstance(value, Traced):
        return broadcast_to_features(value, tuple(features))
    return np.broadcast_to(value, tuple(features))


def part_of(value: Any, feature: int, part: Any) -> Any:
    """Takes a part of a value along the feature with index `feature`. part: an index or a slice."""
    return value[(*(slice(None),) * (first_feature(value) + feature), part)]


def to_extent(value: Traced, extent: Extent) -> Traced:
    """Repeats a traced value until it has an entry for each step, or whatever `extent` says; one that has as
    many or more entries already, such as per step where per sequence is asked for, stays as it is.
    """
    if len(value.type.extent) >= len(extent):
        return value
    if is_pairs(extent) and value.type.extent == extent[:1]:
        value = apply("expand", value, extent=extent[:-1])
    return apply("expand", value, extent=extent)


def deepest(values: Sequence[Any]) -> Extent:
    """Returns the deepest extent of values: per step, else per sequence, else constant (as of arrays)."""
    return max(
        (value.type.extent if isinstance(value, Traced) else CONST for value in values),
        key=len,
        default=CONST,
    )


def at_one_extent(values: Sequence[Any]) -> list[Any]:
    """Repeats traced values until all are per step if one is per step, or else per sequence, so that they can
    be combined.

    Arrays and parameters stay as they are.
    """
    extent = deepest(values)
    return [
        to_extent(value, extent) if isinstance(value, Traced) and not value.is_constant else value
        for value in values
    ]


def repeated_at(array: Array, like: Traced, extent: Extent | None = None) -> Traced:
    """Repeats an array at each entry of the traced value `like`, such as each step of its sequences, or, if
    `extent` is given, at each entry that it names, such as each sequence.
    """
    literal = Traced(like.builder, like.builder.constant(np.asarray(array)))
    return apply("expand", literal, extent=like.type.extent if extent is None else extent)


def as_dtype(value: Any, dtype: np.dtype[Any]) -> Any:
    """Casts a value to a dtype, as formats keep an operand's dtype where NumPy's result is wider."""
    return value if np.dtype(value.dtype) == dtype else value.astype(dtype)


def check_room(sizes: Sequence[int]) -> None:
    """Raises `ModelError` for the sizes of an array that are negative, or multiply to more than `MOST`."""
    if min(sizes, default=0) < 0:
        raise ModelError(f"it makes an array of sizes {list(sizes)}, of which one is negative")
    if prod(sizes) > MOST:
        raise ModelError(
            f"it makes a constant, or a value of one step, of {prod(sizes)} numbers; the most is {MOST}"
        )
