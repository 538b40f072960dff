"""Factors that a sum does not run over, taken out of it.

    S = a * S                                S = a * S
    r = sum(S * k, axis 0)            ->     r = a * sum(S0 * k, axis 0)      S0: the memory

A decay multiplies each number of a matrix, and then each of the sums over it: one multiplication per sum
instead of one per number. It pays twice where the matrix is a memory: the sum reads the memory itself, so
nothing is computed for it.

A factor that keeps a product small may not leave it, or squares overflow that did not before:

    n = x * (1 / max(abs(x)))
    sum(n * n)                         stays

So a product in which a value is there twice is left as it is, and a factor that is computed from another one
stays beside it.
"""

from collections.abc import Collection
from functools import reduce

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.passes.rewrite import rewritten


def factor(net: Net) -> Net:
    """Moves factors that are constant along the axes of a sum out of it, so that there are fewer products."""
    return rewritten(net, factored)


def factored(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: adds a sum of products as the factors that are constant along its axes, times the sum of
    the product of the others. Returns the new number; None for other nodes.

    operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation != "sum" or not node.type.is_float:
        return None
    return factored_sum(builder, operands[0], node.attributes["axes"], node.source)


def factored_sum(builder: Builder, number: int, axes: tuple[int, ...], source: str) -> int | None:
    """Adds the sum of node `number` along `axes`, with constant factors outside the sum; returns its new
    number, None if the value has no such factors. A product with a factor that occurs twice is left alone. A
    factor that is computed from a factor inside the sum stays inside too, as it may keep the product in
    range. source: the user's line, for messages.
    """
    shape = builder.type_of(number).shape
    every = factors(builder, number, shape)
    if len({*every}) < len(every):
        return None
    inside = [factor_node for factor_node in every if not is_same_along(builder, factor_node, axes)]
    outside = [
        factor_node
        for factor_node in every
        if factor_node not in inside and not is_computed_from(builder, factor_node, inside)
    ]
    inside = [factor_node for factor_node in every if factor_node not in outside]
    if not outside or not inside or sizes_along(builder, inside, axes) != [shape[axis] for axis in axes]:
        return None

    def product(numbers: list[int]) -> int:
        """Multiplies values of the net; returns the number of the product."""
        return reduce(lambda a, b: builder.add("multiply", a, b, source=source), numbers)

    inner = product(inside)
    total = factored_sum(builder, inner, axes, source)
    if total is None:
        total = builder.add("sum", inner, axes=axes, source=source)
    return builder.add("multiply", without_axes(builder, product(outside), axes), total, source=source)


def factors(builder: Builder, number: int, shape: tuple[int, ...]) -> list[int]:
    """Lists values whose product is node `number`: the operands of a multiplication, and of multiplications
    among these, as long as dtype and shape do not change; else the node alone. shape: the shape of the node.
    """
    node = builder.nodes[number]
    if node.operation != "multiply" or node.type.shape != shape:
        return [number]
    if any(builder.type_of(operand).dtype != node.type.dtype for operand in node.inputs):
        return [number]
    return [factor_node for operand in node.inputs for factor_node in factors(builder, operand, shape)]


def is_same_along(builder: Builder, number: int, axes: tuple[int, ...]) -> bool:
    """Tells whether a factor of a product does not vary along any of the axes, because it is broadcast along
    them. number: the factor. axes: axes of the product, counted from the end.
    """
    shape = builder.type_of(number).shape
    return all(-axis > len(shape) or shape[axis] == 1 for axis in axes)


def is_computed_from(builder: Builder, number: int, others: Collection[int]) -> bool:
    """Tells whether a node depends, directly or through other nodes, on any of the nodes `others`."""
    waiting, seen = [number], set[int]()
    while waiting:
        node_number = waiting.pop()
        if node_number in others:
            return True
        if node_number not in seen:
            seen.add(node_number)
            waiting += builder.nodes[node_number].inputs
    return False


def sizes_along(builder: Builder, numbers: list[int], axes: tuple[int, ...]) -> list[int]:
    """Returns a product's sizes along `axes`, to see if it has a sum's axes; 0 for an axis of no factor."""
    shapes = [builder.type_of(number).shape for number in numbers]
    return [max((shape[axis] for shape in shapes if -axis <= len(shape)), default=0) for axis in axes]


def without_axes(builder: Builder, number: int, axes: tuple[int, ...]) -> int:
    """Drops the axes of a value that a sum over `axes` would drop, all of size 1; returns the new number."""
    shape = builder.type_of(number).shape
    left = tuple(size for index, size in enumerate(shape) if index - len(shape) not in axes)
    return builder.add("reshape", number, rank=len(shape), shape=left)
