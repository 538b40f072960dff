"""Products of inner sequences with a one-column matrix rewritten as sums.

    scores = tanh(keys + query) @ v[k, 1]   ->   scores = sum(tanh(keys + query) * v)

A product tile is one vector register wide, and a single column would use one element of it. A sum runs along
the features, with the preceding pointwise work kept in registers.
"""

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.rewrite import rewritten


def columns(net: Net) -> Net:
    """Replaces products of inner sequences with one-column matrices by sums, which fill vector registers."""
    return rewritten(net, with_sums)


def with_sums(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: rebuilds a recurrence in whose body, the net of its step, products with one-column
    matrices are written as sums; returns its new number, None for other nodes. operands: the node's operands
    in the new net.
    """
    node = net.nodes[number]
    if node.operation != "recur":
        return None
    return builder.copy(node, operands, body=rewritten(node.recur.body, as_sum))


def as_sum(builder: Builder, body: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: adds the product of an inner sequence of floats (a sequence inside a step) and a
    one-column matrix as a sum; returns its number, None for other nodes. operands: the node's operands in the
    new body.
    """
    node = body.nodes[number]
    if node.operation != "matmul" or len(node.type.extent) < 2 or not node.type.is_float:
        return None
    left, right = (builder.type_of(operand) for operand in operands)
    if right.extent != CONST or right.shape[1] != 1 or left.dtype != right.dtype or not left.shape[-1]:
        return None
    vector = builder.add("reshape", operands[1], rank=2, shape=right.shape[:1])
    scaled = builder.add("multiply", operands[0], vector, source=node.source)
    total = builder.add("sum", scaled, axes=(-1,), source=node.source)
    return builder.add("reshape", total, rank=len(left.shape) - 1, shape=node.type.shape)
