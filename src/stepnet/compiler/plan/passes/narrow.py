"""The products of recurrences with a low precision marked with the encoding of their weights.

    recur(x, h) precision=int8: h' = tanh(x @ W + h @ R)
      ->  recur(x, h) precision=int8: h' = tanh(matmul(x, W, weights=int8) + matmul(h, R, weights=int8))

A step of a few rows is bound by reading its parameters, and a step of many rows by multiply-adds. Weights of
two bytes or one reduce both to a half or a quarter. The pass runs after the passes that split products,
because a left side in int8 has one scale, and before those that move and join products, which keep the mark.

Parameters that are stored in bfloat16 stay so in products, without a precision and with the same results:

    recur(x, h): h' = tanh(h @ cast(R))      R bfloat16
      ->  recur(x, h): h' = tanh(matmul(h, cast(R), weights=stored))

Parameters that a precision names as exact are read as if it had no precision.
"""

from collections.abc import Callable, Collection

from stepnet.compiler.net.encodings import ENCODINGS, MOST_TERMS, Precision
from stepnet.compiler.net.ir import Builder, Net, Node
from stepnet.compiler.net.types import CONST
from stepnet.compiler.plan.passes.rewrite import rewritten
from stepnet.errors import InputError

STORED = "bfloat16"
"""The dtype of parameters that products read as they are stored."""


def narrow(net: Net) -> Net:
    """Marks products of recurrences with the encoding of their weights, to run in fewer bits: products of a
    low precision, and products whose parameters are stored in bfloat16.
    """
    return rewritten(net, marked) if any_low(net) or has_stored(net) else net


def has_stored(net: Net) -> bool:
    """Tells whether an input of a net, such as a parameter, is stored in bfloat16."""
    return any(net.type_of(number).dtype == STORED for number in net.inputs)


def any_low(net: Net, dtypes: Collection[str] = tuple(ENCODINGS)) -> bool:
    """Tells whether a recurrence of a net, or one inside the step of another, computes its products in one of
    these dtypes, such as int8 (by default, any that encodes weights in fewer bits).
    """
    recurs = [node.recur for node in net.nodes if node.operation == "recur"]
    marks = [recur.precision.dtype for recur in recurs if recur.precision is not None]
    return any(dtype in dtypes for dtype in marks) or any(any_low(recur.body, dtypes) for recur in recurs)


def marked(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
    """Rewrite rule: rebuilds a recurrence with the encoding of their weights (such as int8) as an attribute
    of its products, also in recurrences inside its step; None for other nodes. operands: the node's operands
    in the new net.
    """
    node = net.nodes[number]
    if node.operation != "recur":
        return None
    body, precision = rewritten(node.recur.body, marked), node.recur.precision
    if precision is not None and precision.is_low:
        body = in_precision(body, precision)
    if has_stored(body):
        body = with_weights(body, "stored", reads_stored)
    return builder.copy(node, operands, body=body)


def in_precision(body: Net, precision: Precision) -> Net:
    """Marks the products of a net, but not of inner recurrences, with the encoding of a low precision, except
    those whose parameters it names as exact.
    """

    def applies(net: Net, node: Node) -> bool:
        """Tells whether a node is a product that can be narrow, of a parameter that need not be exact."""
        if not can_be_narrow(net, node):
            return False
        source = viewed(net, node.inputs[1])
        if source.operation == "cast":
            source = viewed(net, source.inputs[0])
        return source.operation != "input" or source.name not in precision.exact

    return with_weights(body, precision.dtype, applies)


def with_weights(body: Net, dtype: str, applies: Callable[[Net, Node], bool]) -> Net:
    """Marks products of a net that have no encoding of their weights with one, but not those of inner
    recurrences. dtype: the encoding. applies: tells which products are marked.
    """

    def rule(builder: Builder, net: Net, number: int, operands: list[int]) -> int | None:
        """Rebuilds a product with the encoding of its weights as an attribute; None for other nodes."""
        node = net.nodes[number]
        is_marked = "weights" in node.attributes
        return builder.copy(node, operands, weights=dtype) if not is_marked and applies(net, node) else None

    return rewritten(body, rule, inside=False)


def can_be_narrow(net: Net, node: Node) -> bool:
    """Tells whether a node is a product that can be computed in fewer bits: of float32 values with float32
    parameters, and with so few terms that the sum of int8 products fits 32 bits.
    """
    if node.operation != "matmul" or node.type.extent == CONST:
        return False
    left, right = (net.type_of(operand) for operand in node.inputs)
    return left.dtype == right.dtype == "float32" and 0 < right.shape[0] <= MOST_TERMS


def reads_stored(net: Net, node: Node) -> bool:
    """Tells whether a node is a product with a parameter that is stored in bfloat16 and cast to float32. Its
    number of rows is even, as packed words have two numbers each.
    """
    if not can_be_narrow(net, node) or net.type_of(node.inputs[1]).shape[0] % 2:
        return False
    source = viewed(net, node.inputs[1])
    return source.operation == "cast" and net.type_of(source.inputs[0]).dtype == STORED


def viewed(net: Net, number: int) -> Node:
    """Returns the node that a node with this number is a view of, through others; itself if it is none."""
    node = net.nodes[number]
    while node.is_view:
        node = net.nodes[node.inputs[0]]
    return node


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
