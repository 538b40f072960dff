"""Rules for ATen operations that move or pick features, or make new values; see `rules`."""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from stepnet.compiler.trace.numpy_shapes import broadcast_to_features, in_every_row
from stepnet.compiler.trace.traced import Traced, refuse, reshaped
from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.torch.rules import Result

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


# ---- features moved ---------------------------------------------------------------------------------------


def repeated(result: Result, x: Any, *_: Any, **__: Any) -> Traced:
    """The value broadcast to the result: features of size 1, and a parameter in every row."""
    if not result.per_row or not x.is_constant:
        return broadcast_to_features(x, result.features)
    shape = x.type.shape
    # A parameter [1, n] stands for [rows, n]: its first axis is the rows.
    features = shape[1:] if len(shape) > len(result.features) else shape
    return in_every_row(broadcast_to_features(reshaped(x, features), result.features), len(result.features))


def copied(result: Result, x: Any, source: Any, *_: Any) -> Any:
    """The source as a replacement of x: in its dtype, and broadcast to its shape."""
    return repeated(result, source.astype(result.dtype))


def along(x: Any, dim: int, part: Any) -> Any:
    """A part of x along an axis."""
    index = [slice(None)] * x.ndim
    index[dim] = part
    return x[tuple(index)]


def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """A slice of one axis."""
    return along(x, dim, slice(start, end, step))


def split_by_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> list[Any]:
    """The features in parts of these sizes."""
    return numpy.split(x, [sum(sizes[:place]) for place in range(1, len(sizes))], axis=dim)


def flipped(x: Any, dims: Sequence[int]) -> Any:
    """Features reversed along axes."""
    return reduce(lambda value, dim: along(value, dim, slice(None, None, -1)), dims, x)


def rolled(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Features rotated along axes."""
    if len(dims) != len(shifts):
        raise refuse("roll over all axes joins them: give dims=-1")
    for shift, dim in zip(shifts, dims, strict=True):
        places: list[int] = np.roll(np.arange(int(x.shape[dim])), shift).tolist()
        x = along(x, dim, places)
    return x


def times(x: Any, dim: int, count: int) -> Any:
    """x concatenated with itself along an axis, a number of times."""
    return numpy.concatenate([x] * count, axis=dim) if count else along(x, dim, slice(0))


def slice_replaced(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """x with part of one axis replaced."""
    if step != 1:
        raise refuse("every second feature is replaced; use torch.where, or torch.stack and a view")
    first, last, _ = slice(start, end).indices(x.shape[dim])
    parts = [along(x, dim, slice(0, first)), source, along(x, dim, slice(last, None))]
    return numpy.concatenate([part for part in parts if part.shape[dim]], axis=dim)


# ---- at integers -------------------------------------------------------------------------------------------


def constant_of(value: Any) -> Any:
    """The array of a constant; raises an error for any other value."""
    node = value.builder.nodes[value.number]
    if node.operation == "constant":
        return node.attributes["value"].value
    raise refuse(
        "features are picked at constant places (as a list holds them: a buffer is a parameter), and rows of "
        "a parameter at a step's integers"
    )


def embedded(table: Any, index: Any, *_: Any) -> Any:
    """Rows of a parameter at integers."""
    return numpy.take(table, index, axis=0)


def indexed(result: Result, x: Any, indices: Sequence[Any]) -> Any:
    """x[..., index]: features at constant places along one axis, or rows of a parameter at integers."""
    used = [dim for dim, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        raise refuse("features are picked along one axis at a time")
    return picked(result, x, used[0], indices[used[0]])


def picked(result: Result, x: Any, dim: int, index: Any) -> Any:
    """Features at constant places along one axis, or rows of a parameter at integers."""
    if x.is_constant and dim % x.ndim == 0 and kind_of_dtype(index.dtype) == "integer":
        return numpy.take(x, index, axis=0)
    return reshaped(along(x, dim, constant_of(index).ravel().tolist()), result.features)


def gathered(result: Result, x: Any, dim: int, index: Any, **_: Any) -> Any:
    """The features along one axis at a step's own integers."""
    rank = x.ndim
    for axis in range(0 if x.is_constant else 1, rank):
        if axis != dim % rank:
            x = along(x, axis, slice(0, index.shape[axis]))
    x, index = numpy.moveaxis(x, dim, -1), numpy.moveaxis(index, dim, -1)
    hit = numpy.equal(numpy.expand_dims(index, -1), np.arange(x.shape[-1]))
    selected = numpy.where(hit, numpy.expand_dims(x, -2), 0).sum(axis=-1).astype(result.dtype)
    return numpy.moveaxis(selected, -1, dim)


# ---- new values --------------------------------------------------------------------------------------------


def undefined(result: Result, *_: Any, **__: Any) -> Traced:
    """Zeros, for an operation whose numbers PyTorch leaves undefined."""
    return filled(result, None)


def filled(result: Result, _: Any, value: Any = 0, **__: Any) -> Traced:
    """The result filled with a number."""
    builder = result.like.builder
    constant = Traced(builder, builder.constant(np.full(result.features, value, result.dtype)))
    return in_every_row(constant, len(result.features)) if result.per_row else constant


def number(result: Result, value: Any, **_: Any) -> Traced:
    """A number as a value without axes."""
    return filled(result, None, value)


def counted(result: Result, start: Any, end: Any, step: Any = 1, **_: Any) -> Traced:
    """The numbers from `start` up to but not including `end`."""
    builder = result.like.builder
    return Traced(builder, builder.constant(numpy.arange(start, end, step).astype(result.dtype)))


def identity(result: Result, *_: Any, **__: Any) -> Traced:
    """A matrix with ones on its diagonal."""
    builder = result.like.builder
    return Traced(builder, builder.constant(np.eye(*result.features, dtype=result.dtype)))
