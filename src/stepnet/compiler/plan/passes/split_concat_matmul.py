"""Products of concatenations written as sums of products.

    concatenate(x, h) @ W   ->   x @ W[:k] + h @ W[k:]

Many implementations have one matrix for input and memory. Once the product is split, the product of the input
no longer waits for the memory, and can leave the loop. A concatenation is kept if it is a result of the net
and its pieces are known at the same time: splitting would gain nothing.
"""

from functools import partial

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.passes.rewrite import at_every_level, rewritten
from stepnet.compiler.plan.passes.when import When


def split_concat_matmul(net: Net) -> Net:
    """Rewrites products of concatenations as sums of products, of which some can leave the loop."""
    return at_every_level(net, lambda inner, known: rewritten(inner, partial(parted, known), inside=False))


def parted(known: list[When], builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: writes the product of a concatenation with a matrix as a sum of products, one for each
    operand of the concatenation. Returns the number of the sum; None for other nodes, and where the sum would
    gain nothing (`stays_whole`).

    known: the time at which each value is known. operands: the node's operands in the new net.
    """
    node = net.nodes[number]
    if node.operation != "matmul" or builder.nodes[operands[0]].operation != "concatenate":
        return None
    joined, weight = builder.nodes[operands[0]], operands[1]
    if joined.attributes["axis"] != -1 or stays_whole(known, net, node.inputs[0]):
        return None
    width = builder.type_of(weight).shape[1]
    total, start = None, 0
    for piece in joined.inputs:
        stop = start + builder.type_of(piece).shape[-1]
        if stop > start:
            block = builder.add("slice", weight, slices=((start, stop, 1), (0, width, 1)))
            product = builder.add("matmul", piece, block, source=node.source)
            total = product if total is None else builder.add("add", total, product)
        start = stop
    return total


def stays_whole(known: list[When], net: Net, number: int) -> bool:
    """Tells whether splitting products of the concatenation `number` gains nothing: it does if the
    concatenation is a result of the net, which is stored in any case, and if its operands all become known at
    one time.
    """
    pieces = net.nodes[number].inputs
    return number in net.results and len({known[piece] for piece in pieces}) == 1
