"""Means that are taken from products with parameters, taken from the parameters instead.

    b = h @ R                        ->     C = R - mean(R, of each row)
    c = b - mean(b)                         c = h @ C

A layer norm begins so. Taking the mean away is linear, so the matrix without it gives the difference itself,
also of sums of products and of vectors of parameters. The matrix is made once, when parameters are bound. A
step then has one sum over its units less: for a GPU one meeting of all threads that have a unit, which the
sum of squares would wait for.

The difference is as exact as before: what rounding a weight leaves is as large as what rounding its products
left. Weights are divided before they are added up, as a sum of them may be infinite where no product is.
Beyond half of the largest number a weight may still be too far from its mean; in the step, the squares of
values of 1e19 and more are infinite, so that such weights have results only for inputs below 1e-19.

It is done where nothing else reads the value and its mean, and where the weights are in float32 or
float64 and no product has a reduced precision: a matrix of 16 bits would become one of 32.
"""

from collections.abc import Collection

import numpy as np

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.narrow import any_low
from stepnet.compiler.plan.passes.rewrite import rewritten_steps, value_read

WHOLE = ("float32", "float64")
"""The dtypes of floats in which weights are computed."""
SUMS = "add", "subtract"
"""The operations on centred values that are as if the result were centred."""


def centre(net: Net) -> Net:
    """Returns a net in whose recurrences means are taken from matrices and not from products with them."""
    stored = {
        type_.dtype for type_ in map(net.type_of, net.inputs) if type_.extent == CONST and type_.is_float
    }
    if any_low(net) or not stored <= {*WHOLE}:
        return net
    return rewritten_steps(net, centred)


def centred(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: adds a value without its mean as products with matrices without theirs; None for other
    nodes. operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation != "subtract" or node.type.extent == CONST:
        return None
    value, mean = node.inputs
    total, divided = total_of_mean(net, mean)
    if total is None or net.nodes[total].inputs[0] != value:
        return None
    users = net.users()
    readers = {reader for reader in users[value] if reader != total}
    alike = all(net.nodes[n].operation == "subtract" and net.nodes[n].inputs == node.inputs for n in readers)
    if not alike or not is_read_by(net, users, divided, total, readers):
        return None
    if not is_linear(net, users, value, {total, *readers}):
        return None
    return without_mean(builder, operands[0])


def total_of_mean(net: Net, mean: int) -> tuple[int | None, list[int]]:
    """Returns the sum of all features of a vector that a value is the mean by, with the nodes between the
    two, that of the value last; None if it is no mean.
    """
    between, number = [mean], mean
    while net.nodes[number].is_view:
        number = net.nodes[number].inputs[0]
        between.append(number)
    node = net.nodes[number]
    if node.operation not in ("divide", "multiply"):
        return None, []
    total, by = node.inputs
    while net.nodes[total].is_view:
        between.append(total)
        total = net.nodes[total].inputs[0]
    adds, count = net.nodes[total], net.nodes[by]
    if adds.operation != "sum" or count.operation != "constant" or count.type.size != 1:
        return None, []
    (size, *others), axes = net.type_of(adds.inputs[0]).shape, adds.attributes["axes"]
    wanted = size if node.operation == "divide" else np.asarray(1 / size, count.type.dtype)
    is_mean = not others and axes in ((-1,), (0,)) and count.attributes["value"].value == wanted
    return (total, between[::-1]) if is_mean else (None, [])


def is_read_by(
    net: Net, users: list[list[int]], between: list[int], total: int, readers: Collection[int]
) -> bool:
    """Tells whether a sum, and each of the nodes between it and its mean, is read by the next one alone, and
    the mean by nothing but the readers.
    """
    inner = all({*users[n]} <= {*between} for n in (total, *between[:-1]))
    return inner and {*users[between[-1]]} <= {*readers} and not {total, *between} & {*net.results}


def is_linear(net: Net, users: list[list[int]], number: int, readers: Collection[int]) -> bool:
    """Tells whether a vector is a product with a matrix of parameters, a vector of parameters, or a sum of
    such, each of which is read here alone.
    """
    node = net.nodes[number]
    if len(node.types) != 1 or len(node.type.shape) != 1:
        return False
    if node.type.extent == CONST:
        return True
    if number in net.results or not {*users[number]} <= {*readers}:
        return False
    if node.operation in SUMS:
        shapes = {net.type_of(n).shape for n in node.inputs}
        return shapes == {node.type.shape} and all(is_linear(net, users, n, {number}) for n in node.inputs)
    if node.operation != "matmul" or node.attributes:
        return False
    matrix = net.type_of(node.inputs[1])
    is_whole = net.nodes[value_read(net, node.inputs[1])].operation != "cast"
    return matrix.extent == CONST and len(matrix.shape) == 2 and is_whole


def without_mean(builder: Builder, number: int) -> int:
    """Adds a vector of the new net, which `is_linear`, without its mean; returns its number."""
    node = builder.nodes[number]
    if node.type.extent == CONST:
        return away_from_mean(builder, number)
    if node.operation in SUMS:
        return builder.copy(node, [without_mean(builder, n) for n in node.inputs])
    left, right = node.inputs
    return builder.copy(node, [left, away_from_mean(builder, right)])


def away_from_mean(builder: Builder, number: int) -> int:
    """Adds a vector or a matrix of parameters without the mean of each row; returns its number."""
    type_ = builder.type_of(number)
    count = builder.constant(np.asarray(type_.shape[-1], type_.dtype))
    mean = builder.add("sum", builder.add("divide", number, count), axes=(-1,))
    rank, shape = len(type_.shape) - 1, (*type_.shape[:-1], 1)
    return builder.add("subtract", number, builder.add("reshape", mean, rank=rank, shape=shape))
