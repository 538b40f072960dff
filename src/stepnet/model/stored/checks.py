"""Checks of the operations of a net in a file, beyond the type rules: facts that traces see to.

    slice of 4 features, slices=((0, 5, 1),)   ->   ModelError: the slice (0, 5, 1) reaches beyond 4 features

Each check takes the types of the operands and the attributes of an operation.
"""

from collections.abc import Callable, Mapping
from math import prod
from typing import Any

import numpy as np

from stepnet.compiler.net.ir import Net
from stepnet.compiler.net.types import AXES, ROWS, Type
from stepnet.compiler.trace.spec import MOST_FEATURES
from stepnet.errors import ModelError
from stepnet.model.declared import MOST_UNROLLED


def unchecked(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Accepts all operands, of an operation whose type rule says all."""


def check_slices(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for an operation `slice` of a file whose attribute "slices" is not one (start,
    stop, step) for each feature axis, or reaches beyond an axis.
    """
    (operand,) = operands
    slices: tuple[tuple[int, ...], ...] = attributes["slices"]
    if len(slices) != len(operand.shape):
        raise ModelError(f"{len(slices)} slices do not fit {operand}")
    for entry, size in zip(slices, operand.shape, strict=True):
        if len(entry) != 3 or entry[2] == 0 or entry[0] < 0 or entry[1] < -1:
            raise ModelError(f"{entry} is no slice (start, stop, step)")
        places = range(*entry)
        if places and not (max(places[0], places[-1]) < size and min(places[0], places[-1]) >= 0):
            raise ModelError(f"the slice {entry} reaches beyond {size} features")
        if entry[1] > size or (entry[1] < 0 <= entry[2]):
            raise ModelError(f"the slice {entry} reaches beyond {size} features")


def check_shape(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for an operation `reshape` of a file whose attributes do not fit: `rank` is the
    operand's number of feature axes (those after the rows), and `shape`, the sizes that they become, has as
    many numbers in all.
    """
    (operand,), rank, shape = operands, attributes["rank"], attributes["shape"]
    if rank != len(operand.shape) or prod(shape) != operand.size:
        raise ModelError(f"{operand} cannot be reshaped to {list(shape)}")


def check_broadcast(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for an operation `broadcast` of a file whose attributes do not fit: `rank` is the
    operand's number of feature axes (those after the rows), and `shape`, to which they are repeated, has at
    least as many axes and at most `MOST_FEATURES` numbers.
    """
    (operand,), rank, shape = operands, attributes["rank"], attributes["shape"]
    if rank != len(operand.shape) or len(shape) < rank or prod(shape) > MOST_FEATURES:
        raise ModelError(f"{operand} cannot be broadcast to {list(shape)}")


def check_order(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for an order that is not one of all feature axes."""
    if sorted(attributes["order"]) != list(range(len(operands[0].shape))):
        raise ModelError(f"{attributes['order']} is no order of the axes of {operands[0]}")


def check_axes(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for an operation of a file whose axes (attribute "axes" or "axis") are not all
    different feature axes, counted from the end (-1 is the last). operands: the types of its operands.
    """
    axes: tuple[int, ...] = attributes.get("axes", (attributes.get("axis"),))
    rank = min(len(operand.shape) for operand in operands)
    if not axes or len(set(axes)) < len(axes) or any(not -rank <= axis < 0 for axis in axes):
        raise ModelError(f"{axes} are no feature axes of {operands[0]}, counted from the end")


def check_single_axis(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` unless an operation, such as argmax, has one feature axis from the end."""
    check_axes(operands, attributes)
    if len(attributes["axes"]) != 1:
        raise ModelError("an argmax has one axis")


def check_taken(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for an operation `take` of a file with indices that its axis does not have."""
    check_axes(operands, attributes)
    axis: int = attributes["axis"]
    size, indices = operands[0].shape[axis], np.array(attributes["indices"], np.int64)
    if indices.max(initial=-1) >= size:
        raise ModelError(f"indices of take are not below {size}")


def check_joined(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for a `concatenate` of `operands` with different dtypes or numbers of axes."""
    check_axes(operands, attributes)
    if len({(operand.dtype, len(operand.shape)) for operand in operands}) > 1:
        raise ModelError("values of different dtypes or ranks are concatenated")


def check_recur(operands: list[Type], attributes: Mapping[str, Any]) -> None:
    """Raises `ModelError` for a recurrence of a file whose body (the net of a step) has other numbers or
    kinds of inputs and results than its operands and attributes say.
    """
    body: Net = attributes["body"]
    sequences, memories = attributes["sequences"], attributes["memories"]
    types = [body.type_of(place) for place in body.inputs]
    results = [body.type_of(place) for place in body.results]
    if len(types) != len(operands) or not 1 <= sequences <= len(types) - memories or memories > len(results):
        raise ModelError("a recurrence and its body have different numbers of values")
    ahead, carried = types[:sequences], types[sequences : sequences + memories]
    if any(type_.extent[:1] != ROWS or type_.extent[-1] not in AXES for type_ in ahead):
        raise ModelError("a sequence of a recurrence is no value of its steps")
    if any(type_.extent != ROWS for type_ in (*carried, *results[len(results) - memories :])):
        raise ModelError("a memory of a recurrence has another extent than one value per row")
    if not 1 <= attributes.get("unroll", 1) <= MOST_UNROLLED:
        raise ModelError(f"unroll is a number of steps from 1 to {MOST_UNROLLED}")


CHECKS: dict[str, Callable[[list[Type], Mapping[str, Any]], None]] = {
    "slice": check_slices,
    "reshape": check_shape,
    "broadcast": check_broadcast,
    "transpose": check_order,
    "take": check_taken,
    "concatenate": check_joined,
    "sum": check_axes,
    "max": check_axes,
    "min": check_axes,
    "argmax": check_single_axis,
    "cumsum": check_axes,
    "cumprod": check_axes,
}
