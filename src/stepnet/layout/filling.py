"""Performs the moves of a conversion: each block is copied directly, in tiles that fit the cache."""

import math
from collections.abc import Mapping
from typing import Any, cast

import ml_dtypes
import numpy as np

from stepnet.layout.moves import Move
from stepnet.layout.options import option
from stepnet.layout.places import Array, ParameterBlock, Region
from stepnet.layout.sizes import Shape

TILE = 256  # numbers along each side of a transposed tile: two tiles fit the L2 cache
GAP = 16  # numbers of padding between the rows of a buffered tile


def read(region: Region, arrays: Mapping[str, Array]) -> Array:
    """Returns a block (one parameter of one gate) of the source's weights as a view, with the axes of the
    block.

    region: the block's position. A `raw` one, declared [x, h], holds the numbers of an array [h, x] in the
    order in which they lie in memory: a matrix is then reshaped, not transposed.
    """
    view = region.view(arrays[region.array])
    return view.reshape(view.shape[::-1]) if region.raw and view.ndim == 2 else view


@np.errstate(over="ignore", invalid="ignore")  # an overflow is an infinite rounding, which is refused
def perform(
    move: Move,
    regions: Mapping[ParameterBlock, Region],
    arrays: Mapping[str, Array],
    target: Region,
    target_arrays: Mapping[str, Array],
) -> float:
    """Computes one block (one parameter of one gate) of the target's weights; returns the largest rounding
    error, infinite if a number overflowed. A copy between blocks of different shapes, one of which is a
    buffer in another order, is made some rows at a time.

    move: the formula of the block, from blocks of the source.
    regions, arrays: the positions of the source's blocks, and the source's arrays by name.
    target, target_arrays: the position of the target's block, and the target's arrays, which are changed.
    """
    destination = target.view(target_arrays[target.array])
    if move.kind == "filled":
        destination[...] = number = np.float64(move.constant).astype(destination.dtype)
        return abs(float(number) - move.constant)
    if move.kind == "summed":
        blocks = [(read(regions[block], arrays), sign) for block, sign in move.terms]
        destination[...], rounding = sum_once(blocks, move.constant, destination.dtype)
        return rounding
    block, sign = move.terms[0]
    region = regions[block]
    source = region.view(arrays[region.array])
    if source.shape == destination.shape:
        return copy(destination, source, sign)
    rows = max(1, TILE * TILE // destination.shape[1])
    rounding = 0.0
    for row in range(0, destination.shape[0], rows):
        piece = destination[row : row + rows]
        rounding = max(rounding, copy(piece, reshaped(source, destination.shape, row, len(piece)), sign))
    return rounding


def sum_once(blocks: list[tuple[Array, int]], constant: float, dtype: np.dtype[Any]) -> tuple[Array, float]:
    """Computes the sum of blocks (arrays of one shape, parts of weights), each times its sign, and of a
    constant, for an array of a new layout; returns (the sum, rounded only once to `dtype`; the largest error
    of this rounding). The error is infinite if a sum of finite numbers overflowed.

    blocks: pairs of a block and its sign.
    """
    terms = [block.astype(np.float64) * sign for block, sign in blocks]
    terms = [term for term in terms if term.any()] or terms[:1]  # no zeros: -0.0 + 0.0 is 0.0
    if constant:
        terms.append(np.full_like(terms[0], constant))
    total, error_sum = terms[0], np.zeros_like(terms[0])
    for term in terms[1:]:
        total, error = two_sum(total, term)
        error_sum += error
    error_sum[~np.isfinite(error_sum)] = 0  # it is inf - inf where the total is infinite
    if len(terms) > 2:
        total, error_sum = two_sum(total, error_sum)
    rounded = round_once(total, error_sum, dtype)
    rounding = np.abs((rounded.astype(np.float64) - total) - error_sum)
    rounding[np.isinf(total) & np.logical_and.reduce([np.isfinite(term) for term in terms])] = np.inf
    return rounded, float(np.nanmax(rounding, initial=0.0))


def round_once(total: Array, error: Array, dtype: np.dtype[Any]) -> Array:
    """Rounds the number `total + error` to a dtype in a single rounding; to round `total` alone could round
    twice. `total` is a sum in float64, and `error` its rounding error, of at most half a unit in the last
    place.
    """
    rounded = total.astype(dtype)
    if dtype == np.float64:
        return rounded
    rounded_exact = rounded.astype(np.float64)
    remainder = total - rounded_exact
    neighbour = np.nextafter(rounded, np.copysign(np.inf, remainder).astype(dtype))
    half = np.abs(neighbour.astype(np.float64) - rounded_exact) / 2
    return np.where((np.abs(remainder) - half) + np.copysign(1, remainder) * error > 0, neighbour, rounded)


def two_sum(a: Array, b: Array) -> tuple[Array, Array]:
    """Adds the arrays a and b; returns (the rounded sum, its exact rounding error), to compute sums that are
    rounded once. D. E. Knuth, "The Art of Computer Programming", volume 2, section 4.2.2, theorem B.
    """
    total = a + b
    rest = total - a
    return total, (a - (total - rest)) + (b - rest)


def reshaped(array: Array, shape: Shape, start: int, count: int) -> Array:
    """Returns `count` rows, from row `start` on, of a matrix reshaped to `shape`; only the rows of `array`
    with their numbers are copied, so that a large matrix is converted in pieces.
    """
    first, last = start * shape[1], (start + count) * shape[1]
    width = array.shape[1]
    top, bottom = first // width, -(-last // width)
    numbers = array[top:bottom].reshape(-1)[first - top * width : last - top * width]
    return numbers.reshape(count, shape[1])


def cast_into(destination: Array, block: Array, sign: int) -> float:
    """Writes `block * sign` to `destination`, a view of a new array of weights with another dtype, some rows
    at a time. Returns the largest rounding error, infinite if a finite number overflowed.
    """
    rounding = 0.0
    rows = max(1, TILE * TILE // max(1, math.prod(destination.shape[1:])))
    for row in range(0, len(destination), rows):
        exactly = block[row : row + rows].astype(np.float64) * sign
        piece = destination[row : row + rows]
        piece[...] = exactly.astype(destination.dtype)
        errors = np.abs(piece.astype(np.float64) - exactly)
        errors[np.isinf(exactly)] = 0
        rounding = max(rounding, float(np.nanmax(errors, initial=0.0)))
    return rounding


def copy(destination: Array, block: Array, sign: int) -> float:
    """Writes `block * sign` (1 or -1) to `destination`, a view of a new array of weights. Returns the largest
    rounding error, 0 if the dtypes are equal. To transpose, tiles are read and written row by row through a
    buffer. The padding after each row of the buffer prevents columns from mapping to the same cache set if
    the width is a power of two.
    """
    if destination.dtype != block.dtype:
        return cast_into(destination, block, sign)
    change = np.negative if sign < 0 else np.positive
    if destination.ndim < 2 or contiguous_axis(destination) == contiguous_axis(block):
        change(block, out=destination)
        return 0.0
    if contiguous_axis(destination) == 0:
        destination, block = destination.T, block.T
    rows, columns = destination.shape
    buffer = np.empty((TILE, TILE + GAP), destination.dtype)
    for row in range(0, rows, TILE):
        for column in range(0, columns, TILE):
            piece = slice(row, row + TILE), slice(column, column + TILE)
            transposed = block[piece].T
            view = buffer[: transposed.shape[0], : transposed.shape[1]]
            change(transposed, out=view)
            destination[piece] = view.T
    return 0.0


def contiguous_axis(array: Array) -> int:
    """Returns the axis along which an array is contiguous: that with the smallest stride."""
    return int(np.argmin(np.abs(array.strides)))


def address(array: Array) -> int:
    """Returns the memory address of the first number of an array, to locate a view in its array."""
    return array.__array_interface__["data"][0]


def overflow(region: Region, target_arrays: Mapping[str, Array]) -> str:
    """Returns the error message for a block (one parameter of one gate) of converted weights that overflowed
    its dtype, with the position of its first infinite number. region: the position of the block in its array.
    """
    array = target_arrays[region.array]
    view = region.view(array)
    index = np.unravel_index(int(np.argmax(np.isinf(view))), view.shape)
    steps = zip(index, view.strides, strict=True)
    byte_offset = address(view) + sum(int(number) * stride for number, stride in steps) - address(array)
    position = [int(number) for number in np.unravel_index(byte_offset // array.itemsize, array.shape)]
    largest = float(cast(Any, ml_dtypes.finfo(array.dtype)).max)
    return (
        f"{region.array}{position} ({region.block}) would exceed the largest {array.dtype.name}, "
        f"{largest:.6g}: say {option('dtype', dtype='float32')} or a wider one"
    )
