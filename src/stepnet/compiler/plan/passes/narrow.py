"""The products of recurrences with a low precision marked with the encoding of their weights.

    recur(x, h) precision=int8: h' = tanh(x @ W + h @ R)
      ->  recur(x, h) precision=int8: h' = tanh(matmul(x, W, weights=int8) + matmul(h, R, weights=int8))

A step of a few rows is bound by reading its parameters, and a step of many rows by multiply-adds. Weights of
two bytes or one reduce both to a half or a quarter. The pass runs after the passes that split products,
because a left side in int8 has one scale, and before those that move and join products, which keep the mark.
"""

from collections.abc import Collection

from stepnet.compiler.net.encodings import ENCODINGS, MOST_TERMS
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.rewrite import rewritten
from stepnet.errors import InputError


def narrow(net: Net) -> Net:
    """Marks products of low-precision recurrences with their weights' encoding, to run in fewer bits."""
    return rewritten(net, marked) if any_low(net) else net


def any_low(net: Net, dtypes: Collection[str] = tuple(ENCODINGS)) -> bool:
    """Tells whether a recurrence of a net, at any level, computes its products in one of these dtypes, such
    as int8 (by default, any that encodes weights in fewer bits).
    """
    recurs = [node.recur for node in net.nodes if node.operation == "recur"]
    marks = [recur.precision.dtype for recur in recurs if recur.precision is not None]
    return any(dtype in dtypes for dtype in marks) or any(any_low(recur.body, dtypes) for recur in recurs)


def marked(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: rebuilds a recurrence with the encoding of their weights (such as int8) as an attribute
    of its products, also in inner recurrences; None for other nodes. operands: the node's operands in the new
    net.
    """
    node = net.nodes[number]
    if node.operation != "recur":
        return None
    body, precision = rewritten(node.recur.body, marked), node.recur.precision
    if precision is not None and precision.is_low:
        body = with_weights(body, precision.dtype)
    return builder.copy(node, operands, body=body)


def with_weights(body: Net, dtype: str) -> Net:
    """Marks the products of a net, but not of inner recurrences, with the encoding of their weights."""

    def rule(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
        """Rebuilds a product with the encoding of its weights as an attribute; None for other nodes."""
        node = net.nodes[number]
        return builder.copy(node, operands, weights=dtype) if can_be_narrow(net, node) else None

    return rewritten(body, rule, inside=False)


def can_be_narrow(net: Net, node: Node) -> bool:
    """Tells whether a node is a product that can be computed in fewer bits: of float32 values with float32
    parameters, and with so few terms that the sum of int8 products fits 32 bits.
    """
    if node.operation != "matmul" or node.type.extent == CONST:
        return False
    left, right = (net.type_of(operand) for operand in node.inputs)
    return left.dtype == right.dtype == "float32" and 0 < right.shape[0] <= MOST_TERMS


def narrow_weights(net: Net) -> int:
    """Counts the weights in the recurrences of a net that can be encoded in fewer bits."""
    return sum(weights_of(node.recur.body) for node in net.nodes if node.operation == "recur")


def weights_of(body: Net) -> int:
    """Counts the weights in the products of a step that can be encoded in fewer bits, each matrix once."""
    products = [node for node in body.nodes if can_be_narrow(body, node)]
    return sum({node.inputs[1]: body.type_of(node.inputs[1]).size for node in products}.values())


def check_narrow(net: Net) -> None:
    """Raises `InputError` for a recurrence in fewer bits without a float32 product, as for float64 inputs."""
    for node in net.nodes:
        precision = node.recur.precision if node.operation == "recur" else None
        if precision is not None and precision.is_low and not weights_of(node.recur.body):
            raise InputError(
                f"a recurrence is quantized to {precision.dtype}, but has no product of float32 values with "
                "parameters for inputs of these dtypes: give float32 inputs and parameters, or call the "
                "model that was quantized"
            )
