"""Products of concatenated features taken apart.

    concatenate(x, h) @ W   ->   x @ W[:k] + h @ W[k:]

Many implementations have one matrix for input and memory. Taken apart, the product of the input no longer
waits for the memory, and can leave the loop.
"""

from stepnet.net.ir import Builder, Net
from stepnet.plan.passes.rewrite import rewritten


def part(net: Net) -> Net:
    """The net with every product of a concatenation written as a sum of products."""
    return rewritten(net, parted)


def parted(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """The sum of products that equals a node, if it is the product of a concatenation."""
    node = net.nodes[number]
    if node.operation != "matmul" or builder.nodes[operands[0]].operation != "concatenate":
        return None
    joined, weight = builder.nodes[operands[0]], operands[1]
    if joined.attributes["axis"] != -1:
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
