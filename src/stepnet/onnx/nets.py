"""Writes a net into a graph of ONNX, node by node, by the table of operations."""

from collections.abc import Callable, Mapping, Sequence

from stepnet.compiler.net.interpret import evaluated
from stepnet.compiler.net.ir import Net, Node, ancestors
from stepnet.compiler.net.types import CONST, Extent, is_derived
from stepnet.errors import ModelError
from stepnet.onnx.extents import EXTENTS
from stepnet.onnx.operators import OPERATORS, Rule, WrittenOperation
from stepnet.onnx.scope import OnnxValue, Scope

NodeRule = Callable[[Scope, Node, Sequence[OnnxValue]], list[OnnxValue]]
"""A rule that writes a node with several results."""
NONE: Mapping[str, NodeRule] = {}
RULES: Mapping[str, Rule] = {**OPERATORS, **EXTENTS}


def refused(node: Node, reason: str) -> ModelError:
    """Makes the error for a node of a net that ONNX cannot express, with the line of the user's step."""
    line = f"\n  at {node.source}" if node.source else ""
    return ModelError(f"{node.operation} cannot be written as ONNX: {reason}{line}")


def check_extents(net: Net, known: Sequence[Extent]) -> None:
    """Raises `ModelError` for a net with a value at another extent (axes before the features) than those in
    `known`, such as values of sequences inside sequences, which ONNX does not have.
    """
    for node in net.nodes:
        if any(type_.extent not in known for type_ in node.types):
            derived = any(is_derived(type_.extent) for type_ in node.types)
            why = "other numbers of steps are not written" if derived else "ONNX has no nested sequences"
            raise refused(node, f"its result is {', '.join(map(str, node.types))}: {why}")


def constants(net: Net, inputs: Mapping[int, OnnxValue]) -> dict[int, OnnxValue]:
    """Computes the values of a net that depend only on constants, by node number, to write them as arrays.

    inputs: the values of the net's inputs, by node number.
    """
    folded = {number: value.known for number, value in inputs.items() if value.type.extent == CONST}
    for number, node in enumerate(net.nodes):
        fixed = node.operation not in ("input", "recur", "result") and node.types[0].extent == CONST
        if fixed and all(operand in folded for operand in node.inputs):
            folded |= {number: evaluated(net, {o: folded[o] for o in node.inputs}, [number])[number]}
    return {number: OnnxValue(net.nodes[number].types[0], array=array) for number, array in folded.items()}


def written(
    scope: Scope, net: Net, inputs: Mapping[int, OnnxValue], rules: Mapping[str, NodeRule] = NONE
) -> list[OnnxValue]:
    """Writes a net as ONNX: adds its nodes to a scope (an ONNX graph under construction); returns the
    results.

    inputs: the values of the net's inputs, and of other nodes that are written already, by node number.
    rules: the rules of further operations, such as "recur", by name. Raises `ModelError` for an operation
    that ONNX does not have.
    """
    values: dict[int, list[OnnxValue]] = {number: [value] for number, value in inputs.items()}
    values |= {number: [value] for number, value in constants(net, inputs).items()}
    needed = ancestors(net.nodes, net.results)
    for number, node in enumerate(net.nodes):
        if number in values or number not in needed:
            continue
        if node.operation == "result":
            values[number] = [values[node.inputs[0]][node.attributes["of"]]]
            continue
        operands = tuple(values[operand][0] for operand in node.inputs)
        try:
            if node.operation in rules:
                values[number] = rules[node.operation](scope, node, operands)
            elif node.operation in RULES:
                values[number] = [RULES[node.operation](WrittenOperation(scope, node, operands))]
            else:
                raise ModelError("there is no operator for it")
        except ModelError as error:
            raise error if "cannot be written" in str(error) else refused(node, str(error)) from None
    return [values[number][0] for number in net.results]
