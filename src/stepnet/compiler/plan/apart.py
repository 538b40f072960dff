"""Units of a step that do not depend on each other, each with a few elements of its memories: its *fiber*.

    h [channels, states]        unit: a channel        fiber: its states, over which the step sums

So one thread can run all steps of a unit; or a block those of several, as of the units of a head. Which
memories an element depends on is found by computing with the numbers of units in place of the elements.
"""

from collections.abc import Collection, Iterator, Mapping
from itertools import product
from math import prod

import numpy as np

from stepnet.compiler.net.ir import Net, Node, Recur
from stepnet.compiler.plan.labels import viewed
from stepnet.compiler.plan.matrix_rule import is_plain
from stepnet.compiler.values.records import dataclass

Array = np.ndarray
NONE, MANY = -1, -2
"""In place of a unit's number: the element depends on no memory; on those of several units."""


@dataclass(frozen=True)
class UnitFibers:
    """The units of a step and the fibers of its memories.

    count: of units. axes: for each memory the axis that a fiber lies along; None for one element of a unit.
    """

    body: Net
    count: int
    axes: tuple[int | None, ...]
    memories: tuple[int, ...]

    @property
    def lengths(self) -> tuple[int, ...]:
        """The elements of each memory that a unit has."""
        pairs = zip(self.axes, self.memories, strict=True)
        return tuple(1 if axis is None else self.body.type_of(m).shape[axis] for axis, m in pairs)

    @property
    def are_long(self) -> bool:
        """Tells whether a unit has several elements of some memory."""
        return any(axis is not None for axis in self.axes)

    def axis_of(self, number: int) -> int | None:
        """Returns the axis along which a unit's elements of a memory, an output or a next memory lie."""
        shape = self.body.type_of(number).shape
        if prod(shape) == self.count:
            return None
        return next(axis for axis, m in zip(self.axes, self.memories, strict=True)
                    if self.body.type_of(m).shape == shape)  # fmt: skip


def unit_fibers(recur: Recur, most: int) -> UnitFibers | None:
    """Returns the units of a step with fibers of at most `most` elements; None if there are none, because its
    units depend on each other, or because a sum has more terms.
    """
    body = recur.body
    if not is_plain(body) or any(terms(body, node) > most for node in body.nodes):
        return None
    return next((form for form in forms(recur, most) if are_apart(recur, form)), None)


def terms(body: Net, node: Node) -> int:
    """Returns the number of elements that a node combines for one of its own; 1 if it is no reduction."""
    if node.kind != "reduce":
        return 1
    return body.type_of(node.inputs[0]).size // max(1, node.type.size)


def forms(recur: Recur, most: int) -> Iterator[UnitFibers]:
    """Yields all ways to divide the memories of a step into as many fibers each."""
    shapes = [recur.body.type_of(number).shape for number in recur.memories]
    options = [[None, *(axis for axis, size in enumerate(shape) if 1 < size <= most)] for shape in shapes]
    for axes in product(*options):
        counts = {
            prod(shape) // (1 if axis is None else shape[axis])
            for shape, axis in zip(shapes, axes, strict=True)
        }
        if len(counts) == 1 and any(axis is not None for axis in axes):
            yield UnitFibers(recur.body, counts.pop(), axes, tuple(recur.memories))


def are_apart(recur: Recur, form: UnitFibers) -> bool:
    """Tells whether the results of each unit depend on its own memories alone."""
    body, given = recur.body, dict[int, Array]()
    for number, axis in zip(recur.memories, form.axes, strict=True):
        given[number] = numbered(body.type_of(number).shape, axis)
    found = units_of(body, given)
    pairs = [*zip(recur.following, recur.memories, strict=True)]
    if not all(is_own(found[after], given[memory]) for after, memory in pairs):
        return False
    for number in recur.outputs:
        shape = body.type_of(number).shape
        like = [array for array in given.values() if array.shape == shape]
        own = numbered(shape, None) if prod(shape) == form.count else like[0] if like else None
        if own is None or not is_own(found[number], own):
            return False
    return True


def numbered(shape: tuple[int, ...], axis: int | None) -> Array:
    """Returns the number of each element's unit in a value. axis: the axis of its fibers, if it has any."""
    if axis is None:
        return np.arange(prod(shape)).reshape(shape)
    others = shape[:axis] + shape[axis + 1 :]
    units = np.arange(prod(others)).reshape(others)
    return np.broadcast_to(np.expand_dims(units, axis), shape)


def is_own(found: Array, own: Array) -> bool:
    """Tells whether each element depends on the memories of its own unit alone."""
    return bool(((found == NONE) | (found == own)).all())


def units_of(body: Net, given: Mapping[int, Array]) -> dict[int, Array]:
    """Returns for each value of a step the unit of which each element depends on the memories; NONE or MANY.

    given: the units of memories, by node.
    """
    found = dict[int, Array]()
    for number in range(len(body.nodes)):
        if number in given:
            found[number] = given[number]
            continue
        found[number] = units_of_node(body, number, found)
    return found


def units_of_node(body: Net, number: int, found: Mapping[int, Array]) -> Array:
    """Returns the units on which the elements of a value depend, by the units of its operands."""
    node = body.nodes[number]
    own = [found[operand] for operand in node.inputs]
    units: Array = np.full((), NONE)
    if node.kind == "view":
        units = viewed(node, *own)
    elif node.kind == "reduce":
        units = reduced(own[0], tuple(axis % own[0].ndim for axis in node.attributes["axes"]))
    else:
        for operand in own:
            units = union_of_units(units, operand)
    return np.broadcast_to(units, node.type.shape)


def parted(
    body: Net, values: Collection[int], memories: Mapping[int, int], parts: int
) -> dict[int, int] | None:
    """Divides values of a step into equal parts, so that part i of a value reads only parts i of others;
    returns None if that is impossible. A value of [2, 4, 32] whose second axis is divided into 4 parts is
    divided *twice*: once in each half. Returns the number of times by value. Values that do not depend on
    memories are not divided, and are missing.

    values: the values that are stored, or that are results.
    memories: each memory with the node of its next value. They are divided once, along their first axes.
    """
    once = {*memories, *memories.values()}
    found, divided = dict[int, Array](), dict[int, int]()
    for number, node in enumerate(body.nodes):
        shape = node.type.shape
        computed = np.full((), NONE) if number in memories else units_of_node(body, number, found)
        found[number] = np.broadcast_to(computed, shape)
        is_late = bool((found[number] != NONE).any()) or number in once
        if number in {*values, *once} and is_late:
            times = [1] if number in once else divisors(prod(shape) // parts)
            fitting = [
                n for n in times if prod(shape) % (n * parts) == 0 and is_independent(found[number], parts, n)
            ]
            if not fitting:
                return None
            divided[number] = fitting[0]
            found[number] = in_parts(shape, parts, fitting[0])
    return divided


def divisors(number: int) -> list[int]:
    """Returns the divisors of a number, the smallest first."""
    return [n for n in range(1, number + 1) if number % n == 0]


def is_independent(units: Array, parts: int, times: int) -> bool:
    """Tells whether each element depends on its own part alone, if a value is so often divided into parts."""
    return is_own(units, in_parts(units.shape, parts, times))


def in_parts(shape: tuple[int, ...], parts: int, times: int = 1) -> Array:
    """Returns the part of each element of a value that is divided into parts `times` times."""
    inner = prod(shape) // times
    return (np.arange(prod(shape)) % inner // (inner // parts)).reshape(shape)


def union_of_units(a: Array, b: Array) -> Array:
    """Returns the units of elements that depend on elements of two values."""
    return np.where(a == NONE, b, np.where((b == NONE) | (a == b), a, MANY))


def reduced(units: Array, axes: tuple[int, ...]) -> Array:
    """Returns the units of elements that combine others along some axes."""
    largest = units.max(axes)
    least = np.where(units == NONE, np.iinfo(units.dtype).max, units).min(axes)
    return np.where((largest == NONE) & (least > largest), NONE, np.where(least == largest, largest, MANY))
