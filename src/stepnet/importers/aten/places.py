"""Rules for ATen operations that move or pick features, or make new values. Further rules are in `rules`.

A rule takes the arguments that PyTorch gives to the operation, with values of a net in place of tensors; the
result that PyTorch infers (features, dtype) comes first if the rule needs it.
"""

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np

from stepnet.compiler.trace.numpy_shapes import broadcast_to_features, in_every_row
from stepnet.compiler.trace.traced import Traced, refuse, reshaped
from stepnet.compiler.values.dtypes import kind_of_dtype
from stepnet.importers.aten.graph import SymbolicSize
from stepnet.importers.aten.rules import InferredResult

# NumPy's functions give traced values for traced values, which its stubs do not know.
numpy: Any = np


# ---- features moved ---------------------------------------------------------------------------------------


def repeated(result: InferredResult, x: Any, *_: Any, **__: Any) -> Traced:
    """Computes ATen's `expand`: broadcasts a value to the features of a result. A parameter, which is the
    same for all rows (sequences), is also repeated for each row if the result has rows.
    """
    if not result.per_row or not x.is_constant:
        return broadcast_to_features(x, result.features)
    shape = x.type.shape
    # A parameter [1, n] broadcasts to [rows, n], so its first axis is not a feature.
    features = shape[1:] if len(shape) > len(result.features) else shape
    return in_every_row(broadcast_to_features(reshaped(x, features), result.features), len(result.features))


def copied(result: InferredResult, x: Any, source: Any, *_: Any) -> Any:
    """Computes ATen's `copy`, which overwrites x with `source`. Values of a net do not change, so it returns
    `source` with the dtype and shape of x, those of the result.
    """
    return repeated(result, source.astype(result.dtype))


def along(x: Any, dim: int, part: Any) -> Any:
    """Indexes x along axis `dim` alone. part: the index, an integer, a slice or a list of integers."""
    index = [slice(None)] * x.ndim
    index[dim] = part
    return x[tuple(index)]


def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Computes ATen's `slice`: x[start:end:step] along one axis of features."""
    return along(x, dim, slice(start, end, step))


def split_by_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> list[Any]:
    """Splits x along the feature axis `dim` into parts of these sizes."""
    return numpy.split(x, [sum(sizes[:place]) for place in range(1, len(sizes))], axis=dim)


def flipped(x: Any, dims: Sequence[int]) -> Any:
    """Computes ATen's `flip`: reverses x along each of the axes `dims`."""
    return reduce(lambda value, dim: along(value, dim, slice(None, None, -1)), dims, x)


def rolled(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Computes ATen's `roll`: rotates x along each of the axes `dims` by its number in `shifts`; raises
    `StepError` without `dims`, where PyTorch rolls all axes at once.
    """
    if len(dims) != len(shifts):
        raise refuse("roll over all axes joins them: give dims=-1")
    for shift, dim in zip(shifts, dims, strict=True):
        places: list[int] = np.roll(np.arange(int(x.shape[dim])), shift).tolist()
        x = along(x, dim, places)
    return x


def tiled(x: Any, dim: int, count: int) -> Any:
    """Concatenates x with itself along axis `dim`, `count` times in all; 0 gives an axis without elements."""
    return numpy.concatenate([x] * count, axis=dim) if count else along(x, dim, slice(0))


def slice_replaced(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """Computes ATen's `slice_scatter`: x with x[start:end] along one axis replaced by `source`.

    Raises `StepError` for another `step` than 1.
    """
    if step != 1:
        raise refuse(
            "features at a distance from each other cannot be replaced; use torch.where, or torch.stack "
            "and a view"
        )
    first, last, _ = slice(start, end).indices(x.shape[dim])
    parts = [along(x, dim, slice(0, first)), source, along(x, dim, slice(last, None))]
    return numpy.concatenate([part for part in parts if part.shape[dim]], axis=dim)


# ---- at integers -------------------------------------------------------------------------------------------


def constant_of(value: Any) -> Any:
    """Returns the array of a constant of the net, to use as an index; raises `StepError` for other values."""
    node = value.builder.nodes[value.number]
    if node.operation == "constant":
        return node.attributes["value"].value
    raise refuse(
        "features can be indexed by constants only (a list; a buffer is a parameter), and rows of a "
        "parameter by integers of the step"
    )


def embedded(table: Any, index: Any, *_: Any) -> Any:
    """Computes ATen's `embedding`: takes entries of the first axis of a parameter `table` at integers.
    Negative ones are outside, as in PyTorch: they do not count from the end.
    """
    return numpy.take(table, numpy.where(index < 0, table.shape[0], index), axis=0)


def indexed(result: InferredResult, x: Any, indices: Sequence[Any]) -> Any:
    """Computes ATen's `index` for one index of features: takes the elements of x at it along its axis.
    indices: one for each axis of x, None for axes that are not indexed; two or more indices raise
    `StepError`.
    """
    used = [dim for dim, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        raise refuse("features are picked along one axis at a time")
    return index_selected(result, x, used[0], indices[used[0]])


def index_selected(result: InferredResult, x: Any, dim: int, index: Any) -> Any:
    """Computes ATen's `index_select`: takes features of x along axis `dim` at constant indices. If x is a
    parameter and `dim` its first axis, takes rows of x at any integers, as an embedding does.
    """
    if x.is_constant and dim % x.ndim == 0 and kind_of_dtype(index.dtype) == "integer":
        return numpy.take(x, index, axis=0)
    return reshaped(along(x, dim, constant_of(index).ravel().tolist()), result.features)


def gathered(result: InferredResult, x: Any, dim: int, index: Any, **_: Any) -> Any:
    """Computes ATen's `gather` along a feature axis `dim`, at integers `index` that the step computes.

    Nets cannot index features by values, so the integers are compared with all positions. Along the other
    axes of features, x is first cut to the sizes of `index`, as in PyTorch.
    """
    rank = x.ndim
    for axis in range(0 if x.is_constant else 1, rank):
        if axis != dim % rank:
            x = along(x, axis, slice(0, index.shape[axis]))
    x, index = numpy.moveaxis(x, dim, -1), numpy.moveaxis(index, dim, -1)
    hit = numpy.equal(numpy.expand_dims(index, -1), np.arange(x.shape[-1]))
    selected = numpy.where(hit, numpy.expand_dims(x, -2), 0).sum(axis=-1).astype(result.dtype)
    return numpy.moveaxis(selected, -1, dim)


# ---- new values --------------------------------------------------------------------------------------------


def undefined(result: InferredResult, *_: Any, **__: Any) -> Traced:
    """Computes ATen's `empty`, whose numbers PyTorch leaves undefined: makes zeros of the result's shape."""
    return filled(result, None)


def filled(result: InferredResult, _: Any, value: Any = 0, **__: Any) -> Traced:
    """Makes a value of the result's features and dtype, filled with the number `value`, with one entry per
    row (sequence) if the result has these. The second argument, a shape or a tensor, is not read.
    """
    if isinstance(value, SymbolicSize):
        raise refuse(f"it makes a tensor of the number of {value.text}, which differs from call to call")
    builder = result.like.builder
    constant = Traced(builder, builder.constant(np.full(result.features, value, result.dtype)))
    return in_every_row(constant, len(result.features)) if result.per_row else constant


def number(result: InferredResult, value: Any, **_: Any) -> Traced:
    """Computes ATen's `scalar_tensor`: adds a constant without features, of the dtype of `result`."""
    return filled(result, None, value)


def arange(result: InferredResult, start: Any, end: Any, step: Any = 1, **_: Any) -> Traced:
    """Computes ATen's `arange`: the constant [start, start + step, ...] up to but not including `end`."""
    builder = result.like.builder
    return Traced(builder, builder.constant(numpy.arange(start, end, step).astype(result.dtype)))


def identity(result: InferredResult, *sizes: Any, **_: Any) -> Traced:
    """Computes ATen's `eye`: a constant matrix of the result's sizes, with ones on its diagonal. Raises
    `StepError` for one with a row for each step or sequence.
    """
    if any(isinstance(size, SymbolicSize) for size in sizes):
        raise refuse("it makes an identity matrix of the number of steps or sequences")
    builder = result.like.builder
    return Traced(builder, builder.constant(np.eye(*result.features, dtype=result.dtype)))
