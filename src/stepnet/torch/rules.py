"""What each ATen operation is of a step's values, in terms of NumPy's functions and stepnet's.

A rule takes the operation's own arguments as PyTorch gives them, with a step's values in place of tensors.
Where it needs to know what PyTorch says of the result, that comes first.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np

from stepnet import functions
from stepnet.numpy_functions import broadcast_to_features, in_every_row
from stepnet.trace import Traced, refuse, reshaped

# What NumPy makes of a traced value is a traced value, which its stubs do not know.
numpy: Any = np


@dataclass(frozen=True)
class Result:
    """What PyTorch says that an operation gives: its features, its dtype, and whether there is one per row.

    `common` is the dtype that the operands have in common, and `like` any value of the step.
    """

    features: tuple[int, ...]
    dtype: str
    common: str
    per_row: bool
    like: Traced


def to(dtype: str, values: Sequence[Any]) -> list[Any]:
    """The values, those of a step as another dtype."""
    return [value.astype(dtype) if isinstance(value, Traced) else value for value in values]


def as_bool(value: Any) -> Any:
    """The value as booleans: whether it is not zero."""
    return value if value.dtype == np.bool_ else value != 0


def shaped(result: Result, x: Traced, *_: Any, **__: Any) -> Traced:
    """The value with the features of the result, in the same order."""
    return reshaped(x, result.features)


def repeated(result: Result, x: Any, *_: Any, **__: Any) -> Traced:
    """The value repeated until it is as the result: one-sized features, and a parameter in every row."""
    if not result.per_row or not x.is_constant:
        return broadcast_to_features(x, result.features)
    shape = x.type.shape
    # A parameter [1, n] stands for [rows, n]: its first axis is the rows.
    features = shape[1:] if len(shape) > len(result.features) else shape
    return in_every_row(broadcast_to_features(reshaped(x, features), result.features), len(result.features))


# ---- pointwise ---------------------------------------------------------------------------------------------


def add(a: Any, b: Any, alpha: Any = 1) -> Any:
    """a + alpha b."""
    return a + (b if alpha == 1 else b * alpha)


def subtract(a: Any, b: Any, alpha: Any = 1) -> Any:
    """a - alpha b."""
    return a - (b if alpha == 1 else b * alpha)


def divide(a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """a / b, rounded down or towards zero where it is asked for."""
    if rounding_mode == "floor":
        return a // b
    return truncate(a / b) if rounding_mode == "trunc" else a / b


def divide_rounded(result: Result, a: Any, b: Any, *, rounding_mode: str | None = None) -> Any:
    """a / b rounded; of integers too, whose quotient goes by way of float64."""
    whole = not result.dtype.startswith("float") and rounding_mode == "trunc"
    quotient = divide(*to("float64" if whole else result.dtype, (a, b)), rounding_mode=rounding_mode)
    return quotient.astype(result.dtype)


def truncate(x: Any) -> Any:
    """x without its fraction."""
    return numpy.where(x < 0, np.ceil(x), np.floor(x))


def sign(x: Any) -> Any:
    """-1, 0 or 1; 0 of what is not a number."""
    return (x > 0).astype(x.dtype) - (x < 0).astype(x.dtype)


def elu(x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """x where it is positive, alpha (exp(x) - 1) elsewhere, scaled."""
    return numpy.where(x > 0, x, np.expm1(np.minimum(x, 0) * input_scale) * alpha) * scale


def gelu(x: Any, *, approximate: str = "none") -> Any:
    """x times the normal distribution at x."""
    return functions.gelu(x, approximate == "tanh")


def clamp(x: Any, min: Any = None, max: Any = None) -> Any:  # noqa: A002 - PyTorch's names
    """The value kept between two bounds."""
    return numpy.clip(x, min, max)


def power_of(base: float, exponent: Any) -> Any:
    """A number to the power of a value."""
    if base <= 0:
        raise refuse(f"{base} to the power of a value is not an operation of a step")
    return np.exp(exponent * math.log(base))


def is_infinite(x: Any) -> Any:
    """Whether x is infinite."""
    return numpy.absolute(x) == math.inf


def chosen(result: Result, condition: Any, a: Any, b: Any) -> Any:
    """One of two values, by a condition."""
    return numpy.where(condition, *to(result.dtype, (a, b)))


def cast(result: Result, x: Any, *_: Any, **__: Any) -> Any:
    """The value as the result's dtype."""
    return x.astype(result.dtype)


def copied(result: Result, x: Any, source: Any, *_: Any) -> Any:
    """The source in the place of x: as its dtype, and repeated to its shape."""
    return repeated(result, source.astype(result.dtype))


# ---- products ----------------------------------------------------------------------------------------------


def product(a: Any, b: Any) -> Any:
    """The product with a parameter, or of each row's own matrices: [..., m, k] with [..., k, n]."""
    if a.dtype != b.dtype:
        raise refuse(
            f"PyTorch multiplies matrices of one dtype, not {a.dtype} and {b.dtype}: cast one of them"
        )
    if not b.is_constant or (a.is_constant and b.ndim > 2):
        return (a[..., None] * numpy.expand_dims(b, -3)).sum(axis=-2)
    return a @ (b if b.ndim == 2 else reshaped(b, b.type.shape[1:]))  # [1, k, n], where a is [1, rows, k]


def scaled_sum(x: Any, a: Any, b: Any, *, beta: float = 1, alpha: float = 1) -> Any:
    """beta x + alpha a b."""
    scaled = product(a, b) if alpha == 1 else product(a, b) * alpha
    return scaled if beta == 0 else (x if beta == 1 else x * beta) + scaled


# ---- over features -----------------------------------------------------------------------------------------


def axes(x: Any, dim: Any) -> Any:
    """The axes to reduce over: all of them for None and for an empty list."""
    return tuple(range(x.ndim)) if dim is None or dim == [] else tuple(dim) if np.ndim(dim) else (dim,)


def total(x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The sum over feature axes."""
    return numpy.sum(x, axis=axes(x, dim), keepdims=keepdim)


def mean(x: Any, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The mean over feature axes."""
    return numpy.mean(x, axis=axes(x, dim), keepdims=keepdim)


def largest(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The largest over feature axes."""
    return numpy.max(x, axis=axes(x, dim), keepdims=keepdim)


def smallest(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """The smallest over feature axes."""
    return numpy.min(x, axis=axes(x, dim), keepdims=keepdim)


def largest_and_place(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The largest along a feature axis, and where it is."""
    return largest(x, dim, keepdim), place_of_largest(x, dim, keepdim)


def smallest_and_place(x: Any, dim: int, keepdim: bool = False) -> tuple[Any, Any]:
    """The smallest along a feature axis, and where it is."""
    return smallest(x, dim, keepdim), place_of_largest(-x, dim, keepdim)


def place_of_largest(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Where the largest is along a feature axis."""
    return numpy.argmax(x, axis=dim, keepdims=keepdim)


def place_of_smallest(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Where the smallest is along a feature axis."""
    return place_of_largest(-x, dim, keepdim)


def variance(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """The variance over feature axes."""
    return numpy.var(x, axis=axes(x, dim), ddof=1 if correction is None else correction, keepdims=keepdim)


def variance_and_mean(x: Any, dim: Any = None, *, correction: Any = 1, keepdim: bool = False) -> Any:
    """The variance and the mean over feature axes."""
    return variance(x, dim, correction=correction, keepdim=keepdim), mean(x, dim, keepdim)


def any_true(x: Any, dim: Any = None, keepdim: bool = False) -> Any:
    """Whether any is true, or not zero, over feature axes."""
    return total(as_bool(x).astype(np.int32), dim, keepdim) > 0


def norm(x: Any, order: float = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    """The norm of a vector, of order 1, 2 or infinity."""
    if order == 2:
        return np.sqrt(total(x * x, dim, keepdim))
    if order not in (1, math.inf):
        raise refuse(f"a norm of order {order} is not an operation of a step")
    size = numpy.absolute(x)
    return total(size, dim, keepdim) if order == 1 else largest(size, dim, keepdim)


def softmax(x: Any, dim: int, _: bool) -> Any:
    """exp(x) over its sum along a feature axis."""
    return functions.softmax(x, dim)


def log_softmax(x: Any, dim: int, _: bool) -> Any:
    """The logarithm of the softmax along a feature axis."""
    away = x - numpy.max(x, axis=dim, keepdims=True)
    return away - np.log(numpy.sum(np.exp(away), axis=dim, keepdims=True))


def layer_norm(x: Any, shape: Sequence[int], scale: Any, shift: Any, epsilon: float) -> tuple[Any, Any, Any]:
    """x with mean 0 and variance 1 over its last axes, scaled and shifted; the mean, and 1 / deviation."""
    last = list(range(-len(shape), 0))
    middle = mean(x, last, True)
    away = x - middle
    inverse = 1 / np.sqrt(mean(away * away, last, True) + epsilon)
    normal = away * inverse
    normal = normal if scale is None else normal * scale
    return normal if shift is None else normal + shift, middle, inverse


# ---- features moved ----------------------------------------------------------------------------------------


def along(x: Any, dim: int, part: Any) -> Any:
    """Part of one axis."""
    index = [slice(None)] * x.ndim
    index[dim] = part
    return x[tuple(index)]


def sliced(x: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    """Part of one axis."""
    if not x.is_constant and dim % x.ndim == 0 and (start or 0, step) == (0, 1):
        return x  # all rows, as the shape of the result says
    return along(x, dim, slice(start, end, step))


def split_by_sizes(x: Any, sizes: Sequence[int], dim: int = 0) -> list[Any]:
    """The features in parts of these sizes."""
    return numpy.split(x, [sum(sizes[:place]) for place in range(1, len(sizes))], axis=dim)


def concatenated(result: Result, values: Sequence[Any], dim: int = 0) -> Any:
    """Features side by side."""
    return numpy.concatenate(to(result.dtype, values), axis=dim)


def flipped(x: Any, dims: Sequence[int]) -> Any:
    """Features backwards along axes."""
    return reduce(lambda value, dim: along(value, dim, slice(None, None, -1)), dims, x)


def rolled(x: Any, shifts: Sequence[int], dims: Sequence[int] = ()) -> Any:
    """Features moved along axes, those beyond the end to the beginning."""
    if not dims:
        raise refuse("roll over all axes mixes rows: every row is a sequence of its own; give dims=-1")
    for shift, dim in zip(shifts, dims, strict=True):
        places: list[int] = np.roll(np.arange(int(x.shape[dim])), shift).tolist()
        x = along(x, dim, places)
    return x


def tiled(x: Any, repeats: Sequence[Any]) -> Any:
    """Features side by side with themselves, `repeats` times along each axis."""
    for _ in range(len(repeats) - x.ndim):
        x = numpy.expand_dims(x, 0)
    for dim, count in enumerate(repeats):
        x = numpy.concatenate([x] * count, axis=dim) if count != 1 else x
    return x


def slice_replaced(
    x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: int = 1
) -> Any:
    """x with part of one axis replaced."""
    if not x.is_constant and dim % x.ndim == 0:
        if (start or 0, step) != (0, 1):
            raise refuse("part of the rows is replaced, and a step sees them all alike: write x[:, ...] = y")
        return source
    if step != 1:
        raise refuse("every second feature is replaced; use torch.where, or torch.stack and a view")
    first, last, _ = slice(start, end).indices(x.shape[dim])
    parts = [along(x, dim, slice(0, first)), source, along(x, dim, slice(last, None))]
    return numpy.concatenate([part for part in parts if part.shape[dim]], axis=dim)


# ---- at integers -------------------------------------------------------------------------------------------


def constant_of(value: Any) -> Any:
    """The array that a constant holds; raises for a value that is none."""
    node = value.builder.nodes[value.number]
    if node.operation == "constant":
        return node.attributes["value"].value
    raise refuse("features are picked at constant places, and rows of a parameter at a step's integers")


def embedded(table: Any, index: Any, *_: Any) -> Any:
    """Rows of a parameter at integers."""
    return numpy.take(table, index, axis=0)


def indexed(x: Any, indices: Sequence[Any]) -> Any:
    """x[..., index]: features at constant places along one axis, or rows of a parameter at integers."""
    used = [dim for dim, index in enumerate(indices) if index is not None]
    if len(used) != 1:
        raise refuse("features are picked along one axis at a time")
    return picked(x, used[0], indices[used[0]])


def picked(x: Any, dim: int, index: Any) -> Any:
    """Features at constant places along one axis, or rows of a parameter at integers."""
    if x.is_constant and dim % x.ndim == 0 and index.dtype.kind == "i":
        return numpy.take(x, index, axis=0)
    return along(x, dim, constant_of(index).tolist())


def gathered(result: Result, x: Any, dim: int, index: Any, **_: Any) -> Any:
    """The features along one axis at a step's own integers."""
    rank = x.ndim
    if dim % rank == 0 and not x.is_constant:
        raise refuse("gather over axis 0 mixes rows: every row is a sequence of its own; use a feature axis")
    for axis in range(1, rank):
        if axis != dim % rank:
            x = along(x, axis, slice(0, index.shape[axis]))
    x, index = numpy.moveaxis(x, dim, -1), numpy.moveaxis(index, dim, -1)
    hit = numpy.equal(numpy.expand_dims(index, -1), np.arange(x.shape[-1]))
    found = numpy.where(hit, numpy.expand_dims(x, -2), 0).sum(axis=-1).astype(result.dtype)
    return numpy.moveaxis(found, -1, dim)


# ---- new values --------------------------------------------------------------------------------------------


def filled(result: Result, _: Any, value: Any = 0, **__: Any) -> Traced:
    """One number everywhere."""
    builder = result.like.builder
    constant = Traced(builder, builder.constant(np.full(result.features, value, result.dtype)))
    return in_every_row(constant, len(result.features)) if result.per_row else constant


def number(result: Result, value: Any, **_: Any) -> Traced:
    """A number as a value without axes."""
    return filled(result, None, value)


def counted(result: Result, start: Any, end: Any, step: Any = 1, **_: Any) -> Traced:
    """The numbers from `start` to before `end`."""
    builder = result.like.builder
    return Traced(builder, builder.constant(numpy.arange(start, end, step).astype(result.dtype)))


def identity(result: Result, count: int, *_: Any, **__: Any) -> Traced:
    """A square matrix with ones on its diagonal."""
    builder = result.like.builder
    return Traced(builder, builder.constant(np.eye(count, dtype=result.dtype)))


def logarithm(base: float) -> Callable[[Any], Any]:
    """The logarithm to a base."""
    return lambda x: np.log(x) / math.log(base)


def itself(x: Any, *_: Any, **__: Any) -> Any:
    """The value."""
    return x


def inverse_root(x: Any) -> Any:
    """1 over the square root."""
    return 1 / np.sqrt(x)


def hardtanh(x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    """The value kept between two bounds."""
    return clamp(x, low, high)
