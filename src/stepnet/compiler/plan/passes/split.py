"""Joined gates split into one block per gate.

    a = x @ W + b; i = sigmoid(a[:, :64]); g = tanh(a[:, 64:])
    ->  i = sigmoid(x @ W[:, :64] + b[:64]); g = tanh(x @ W[:, 64:] + b[64:])

A value that is only read in parts is computed in those parts: each gate then has the width of the memory, and
the gates of one unit are computed together in registers. Parts may be taken by slices, splits, reshapes or
transposes, also of interleaved gates.
"""

import math

from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.rewrite import rewritten, view_chain


def split(net: Net) -> Net:
    """Computes values that are read only in parts, such as joined gates, part by part, so that each part has
    the width of the memory; returns the new net.
    """
    while True:
        after = rewritten(net, pushed)
        if after == net:
            return net
        net = after


def pushed(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: replaces a view of a part of a value, such as one gate of a joined product, by the
    operation on the same part of the value's operands; returns the number of the result. Returns None for a
    node that is no view, and if the value is not read in parts only.

    operands: the operands of the node in the new net.
    """
    node = net.nodes[number]
    if not node.is_view or node.type.extent == CONST:
        return None
    root, _ = view_chain(net, number)
    if not read_in_parts(net, root) or node.type.size >= net.type_of(root).size:
        return None
    # The operand of the view may have been split already, so its source is looked up in the new net.
    source, ahead = view_chain(builder, operands[0])
    origin, chain = builder.nodes[source], [*ahead, node]
    if origin.operation == "matmul" and len(origin.type.shape) == 1:
        left, weight = origin.inputs
        columns = applied(builder, weight, chain, lead=1)
        flat = builder.add(
            "reshape",
            columns,
            rank=len(builder.type_of(columns).shape),
            shape=(builder.type_of(weight).shape[0], node.type.size),
        )
        product = builder.add("matmul", left, flat, source=origin.source)
        return builder.add("reshape", product, rank=1, shape=node.type.shape)
    if origin.kind == "pointwise":
        pieces = [applied(builder, as_wide(builder, piece, origin), chain) for piece in origin.inputs]
        return builder.copy(origin, pieces)
    return None


def read_in_parts(net: Net, root: int) -> bool:
    """Tells whether node `root`, a product or a pointwise value, is read only through views (such as slices)
    that together are no larger than it, so that computing it part by part costs no more.
    """
    node = net.nodes[root]
    if node.kind not in ("pointwise", "matmul") or len(node.types) != 1 or node.type.extent == CONST:
        return False
    users = net.users()
    total, open_ends, seen = 0, [root], 0
    while open_ends:
        end = open_ends.pop()
        ends = end in net.results or not all(net.nodes[user].is_view for user in users[end])
        if ends and end == root:
            return False
        if ends:
            total += net.type_of(end).size
            seen += 1
        open_ends += [user for user in set(users[end]) if net.nodes[user].is_view]
    return seen > 0 and total <= node.type.size


def as_wide(builder: Builder, operand: int, wide_node: Node) -> int:
    """Broadcasts an operand, if it is no scalar, to the feature shape of `wide_node`, the node that reads it,
    so that views of the node can be applied to it; returns the new number.
    """
    shape = builder.type_of(operand).shape
    if shape == wide_node.type.shape or (math.prod(shape) == 1 and builder.type_of(operand).extent == CONST):
        return operand
    return builder.add("broadcast", operand, rank=len(shape), shape=wide_node.type.shape)


def applied(builder: Builder, number: int, chain: list[Node], lead: int = 0) -> int:
    """Adds the views of a chain to the new net, each applied to the result of the one before and the first to
    node `number`, an operand of the node that they were views of; returns the last one's number.

    lead: the number of leading axes that the views leave as they are, such as the rows of a weight. If `lead`
        is 0, a constant of one element, which every view would only repeat, is reshaped to a scalar instead.
    """
    type_ = builder.type_of(number)
    if type_.extent == CONST and type_.size == 1 and not lead:
        return builder.add("reshape", number, rank=len(type_.shape), shape=())
    for node in chain:
        shape = builder.type_of(number).shape
        ahead = shape[:lead]
        attributes = dict(node.attributes)
        if node.operation == "slice":
            attributes["slices"] = tuple((0, size, 1) for size in ahead) + attributes["slices"]
        elif node.operation in ("reshape", "broadcast"):
            attributes |= {"rank": attributes["rank"] + lead, "shape": ahead + attributes["shape"]}
        elif node.operation == "transpose":
            attributes["order"] = tuple(range(lead)) + tuple(axis + lead for axis in attributes["order"])
        number = builder.add(node.operation, number, **attributes)
    return number
