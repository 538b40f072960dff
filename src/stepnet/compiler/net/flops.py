"""The floating-point operations of nodes, by the table of operations."""

from stepnet.compiler.net.ir import Net


def flops(net: Net, number: int) -> int:
    """Counts the floating-point operations of a node each time it runs, such as per step; a multiply-add
    counts as two. An inner recurrence counts with one of its steps.
    """
    node = net.nodes[number]
    if node.kind == "matmul":
        lefts, rights = node.sides
        sizes = [net.type_of(left).size for left in lefts]
        return sum(
            2 * sizes[at % len(sizes)] * net.type_of(right).shape[1] for at, right in enumerate(rights)
        )
    if node.operation == "recur":
        return sum(flops(node.recur.body, inner) for inner in range(len(node.recur.body.nodes)))
    if node.operation == "contract":
        left = net.type_of(node.inputs[0])
        return 2 * node.type.size * (left.size // max(1, left.shape[-1]))
    if node.kind == "reduce":
        return node.row.flops * net.type_of(node.inputs[0]).size
    return node.row.flops * sum(type_.size for type_ in node.types)
