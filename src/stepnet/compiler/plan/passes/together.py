"""Products of several vectors with one matrix, for engines that read a matrix once for all of them.

    x[0] @ W | x[1] @ W | x[2] @ W   ->   x[3, k] @ W

It takes back what `legalise` did, in the steps of recurrences: as for the beams of a beam search.
"""

from math import prod

import numpy as np

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.passes.rewrite import rewritten_steps, view_chain


def together(net: Net) -> Net:
    """Joins products of one matrix with vectors that lie side by side in a value into one product each."""
    return rewritten_steps(net, joined)


def joined(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: adds one product in place of a concatenation of products; None for other nodes. operands:
    the node's operands in the new net.
    """
    nodes = [builder.nodes[operand] for operand in operands]
    if net.nodes[number].operation != "concatenate" or any(node.operation != "matmul" for node in nodes):
        return None
    first, rights = nodes[0], {node.inputs[1] for node in nodes}
    is_alike = len(rights) == 1 and all(node.attributes == first.attributes for node in nodes)
    lefts = [view_chain(builder, node.inputs[0])[0] for node in nodes]
    if not is_alike or len({*lefts}) > 1 or len(nodes) < 2 or len(first.type.shape) != 1:
        return None
    root, shape, width = lefts[0], builder.type_of(lefts[0]).shape, first.type.shape[0]
    places = [places_of(builder, node.inputs[0]) for node in nodes]
    if not np.array_equal(np.concatenate([np.ravel(each) for each in places]), np.arange(prod(shape))):
        return None
    count, length = len(nodes), prod(shape) // len(nodes)
    if shape != (count, length):
        root = builder.add("reshape", root, rank=len(shape), shape=(count, length))
    product = builder.add("matmul", root, first.inputs[1], source=first.source, **first.attributes)
    return builder.add("reshape", product, rank=2, shape=(count * width,))


def places_of(builder: Builder, number: int) -> np.ndarray:
    """Returns the flat places, in the value that views show, of the elements of node `number`, behind slices
    and reshapes; of -1 behind other views.
    """
    root, views = view_chain(builder, number)
    shape = builder.type_of(root).shape
    places = np.arange(prod(shape)).reshape(shape)
    for view in views:
        if view.operation == "slice":
            places = places[tuple(slice(*each) for each in view.attributes["slices"])]
        elif view.operation == "reshape":
            places = places.reshape(view.type.shape)
        else:
            return np.full(view.type.shape, -1)
    return places
