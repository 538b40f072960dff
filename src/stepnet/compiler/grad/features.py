"""Adjoints of operations within one element: views, reductions and scans over feature axes."""

from collections.abc import Sequence

import numpy as np

from stepnet.compiler.grad.value import Value, concatenated
from stepnet.compiler.net.ir import Node
from stepnet.compiler.values.records import dataclass

Cotangents = tuple[Value | None, ...]

# ---- views -------------------------------------------------------------------------------------------------


def slice_(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a slice's operand: d at the sliced features, and 0 elsewhere."""
    for axis, (start, stop, stride) in enumerate(node.attributes["slices"]):
        read = range(x.type.shape[axis])[slice(start, None if stop < 0 else stop, stride)]
        d = put_back(d, axis - x.rank, list(read), x.type.shape[axis])
    return (d,)


def take(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of the operand x of `take`, which copies features at constant indices: for each
    feature, the sum of the cotangent d of the result y over its copies.
    """
    axis: int = node.attributes["axis"]
    size = x.type.shape[axis]
    return (put_back(d, axis, [index % size for index in node.attributes["indices"]], size),)


def put_back(d: Value, axis: int, read: Sequence[int], size: int) -> Value:
    """Makes a value that has the entries of d at the indices `read` along an axis of this size, and zeros
    elsewhere. It undoes a slice or a take.

    axis: counted from the end. An index that was read several times has the sum.
    """
    if list(read) == list(range(size)):
        return d
    shape = list(d.type.shape)

    def zeros(count: int) -> list[Value]:
        """Makes `count` zeros along the axis, as a list with one value, or none for a count of 0."""
        shape[axis] = count
        return [d.zeros(*shape)] if count else []

    if not read:
        return zeros(size)[0] if size else d
    if list(read) == list(range(read[0], read[-1] + 1)):
        return concatenated(axis, *zeros(read[0]), d, *zeros(size - read[-1] - 1))
    padded, total = concatenated(axis, d, *zeros(1)), None
    positions: list[list[int]] = [
        [position for position, index in enumerate(read) if index == n] for n in range(size)
    ]
    for occurrence in range(max(map(len, positions))):
        chosen = tuple(
            positions_of_index[occurrence] if occurrence < len(positions_of_index) else len(read)
            for positions_of_index in positions
        )
        selected = padded.take(axis, chosen)
        total = selected if total is None else total + selected
    assert total is not None
    return total


def reshape(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a reshape's operand x: the cotangent d of the result y in the shape of x."""
    return (d.reshape(*x.type.shape),)


def transpose(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a transpose's operand x: the cotangent d of the result y, transposed back."""
    order = tuple(np.argsort(node.attributes["order"]).tolist())
    return (d.apply("transpose", order=order),)


def broadcast(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a broadcast's operand: d itself, which the caller sums over the new axes."""
    return (d,)


def concatenate(node: Node, d: Value, y: Value, *operands: Value) -> Cotangents:
    """Returns the cotangents of a concatenation's operands: the slices of the cotangent d of the result y."""
    axis: int = node.attributes["axis"] % y.rank
    gradients: list[Value] = []
    start = 0
    for selected in operands:
        stop = start + selected.type.shape[axis]
        gradients.append(d.slice(axis, start, stop))
        start = stop
    return tuple(gradients)


# ---- reductions --------------------------------------------------------------------------------------------


def spread(value: Value, axes: Sequence[int], like: Value) -> Value:
    """Repeats a reduced value along the reduced axes, `axes`, to the shape of the operand, `like`."""
    over = {axis % like.rank for axis in axes}
    sizes = (1 if axis in over else size for axis, size in enumerate(like.type.shape))
    return value.reshape(*sizes).broadcast(*like.type.shape)


def sum_(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a sum's operand x: for each term, the cotangent d of the sum y."""
    return (spread(d, node.attributes["axes"], x),)


def extreme(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a max's or min's operand: d, divided equally among the extreme elements."""
    those, count = extremes(node, x)
    return (spread(d / count, node.attributes["axes"], x) * those,)


def extremes(node: Node, x: Value) -> tuple[Value, Value]:
    """Returns which elements of a max's or min's operand x are extreme, as 1 and 0, and how many are.

    The maximum is recomputed: x may have been recomputed with another order of additions, so that no element
    need equal the result of the forward pass.
    """
    axes: tuple[int, ...] = node.attributes["axes"]
    again = x.apply(node.operation, axes=axes)
    those = x.apply("equal", spread(again, axes, x)).cast(x.type.dtype)
    return those, those.sum(*axes)


# ---- scans -------------------------------------------------------------------------------------------------


def reversed_along(value: Value, axis: int) -> Value:
    """Reverses the order of the features along one axis, to make a prefix scan a suffix scan."""
    return value.slice(axis, value.type.shape[axis] - 1, -1, -1)


def cumsum(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a cumsum's operand x: the suffix sum of the cotangent d of the result y."""
    axis: int = node.attributes["axis"]
    return (reversed_along(reversed_along(d, axis).apply("cumsum", axis=axis), axis),)


def cumprod(node: Node, d: Value, y: Value, x: Value) -> Cotangents:
    """Returns the cotangent of a cumprod's operand x: for element j, the sum over i >= j of d_i times the
    product of the other elements up to i, where d is the cotangent of the result y.
    """
    factors = ProductFactors.of(node, x, y)
    *others, size = factors.before.type.shape
    after = (factors.after * factors.moved(d).reshape(*others, 1, size)).sum(-1)
    return (factors.moved(factors.before * after),)


@dataclass(frozen=True)
class ProductFactors:
    """The factors of a cumprod's derivatives: element i of the result changes by before_j * after_ji with
    element j of the operand.

    There is no division by the element, so the result is right where it is 0: the products between j and i
    are scans of a matrix whose row j has ones up to j.

    axis: the axis along which the products run, counted from 0.
    before: for each element, the product of those before it; the products run along the last axis.
    after: a matrix [j, i] with the product of the elements behind j up to i, and 0 for i before j.
    """

    axis: int
    before: Value
    after: Value

    @classmethod
    def of(cls, node: Node, x: Value, y: Value) -> "ProductFactors":
        """Adds the factors to the net of the operand x and the result y of a cumprod."""
        axis: int = node.attributes["axis"] % x.rank
        x, y = moved_last(x, axis), moved_last(y, axis)
        *others, size = x.type.shape
        mask = x.constant(np.triu(np.ones((size, size)), 1))
        between = x.reshape(*others, 1, size) * mask + (1 - mask)
        after = between.apply("cumprod", axis=-1) * x.constant(np.triu(np.ones((size, size))))
        earlier = [y.slice(len(others), 0, size - 1)] if size > 1 else []
        return cls(axis, concatenated(-1, x.zeros(*others, 1) + 1, *earlier), after)

    def moved(self, value: Value) -> Value:
        """Exchanges the axis along which the products run and the last axis of a value."""
        return moved_last(value, self.axis)


def moved_last(value: Value, axis: int) -> Value:
    """Exchanges a feature axis, counted from 0, and the last one."""
    order = [*range(value.rank)]
    order[axis], order[-1] = order[-1], order[axis]
    return value if axis == value.rank - 1 else value.apply("transpose", order=tuple(order))
