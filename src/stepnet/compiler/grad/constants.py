"""Constants that a body computes moved out of it.

    recur(x, W): x @ W[:, :4]   ->   A = W[:, :4]
                                     recur(x, A): x @ A

So every parameter of a body is an input of it or a number. This is needed because the adjoint of a body
returns sums for its inputs only.
"""

from stepnet.compiler.net.ir import Builder, Net
from stepnet.compiler.plan.passes.rewrite import rewritten, with_constants_outside
from stepnet.compiler.plan.passes.when import is_constant


def constants_outside(net: Net) -> Net:
    """Moves constants that bodies compute out of the bodies, because adjoints need constants as inputs."""
    return rewritten(net, with_computed_constants_outside)


def with_computed_constants_outside(
    builder: Builder, net: Net, number: int, operands: list[int]
) -> int | None:
    """Rewrite rule: rebuilds a recurrence such that the constants that its body (the net of a step) computes
    are computed outside and become operands. Returns the number of the new node; None for nodes that are no
    recurrences, which the caller copies.

    builder: makes the new net, with the constants. operands: the node's operands in it.
    """
    node = net.nodes[number]
    if node.operation != "recur":
        return None
    body = constants_outside(node.recur.body)
    computed = {
        n
        for n, inside in enumerate(body.nodes)
        if is_constant(inside) and inside.operation not in ("input", "constant")
    }
    return with_constants_outside(builder, node, body, computed, operands)
