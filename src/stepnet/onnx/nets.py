"""Writes a net into a graph of ONNX, node by node, by the table of operations."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from stepnet.compiler.net.interpreter import evaluated
from stepnet.compiler.net.ir import Net, Node, ancestors
from stepnet.compiler.net.types import CONST, STEPS, Extent, is_derived, is_pairs
from stepnet.compiler.net.windows import is_own_axis
from stepnet.errors import ModelError
from stepnet.onnx.convolutions import Finder
from stepnet.onnx.copies import COPIES
from stepnet.onnx.extents import EXTENTS
from stepnet.onnx.operators import OPERATORS, Rule, WrittenOperation
from stepnet.onnx.scope import OnnxValue, Scope
from stepnet.onnx.windows import WINDOWS

NodeRule = Callable[[Scope, Node, Sequence[OnnxValue]], list[OnnxValue]]
"""A rule that writes a node with several results."""
NONE: Mapping[str, NodeRule] = {}
PAIRS = "attention between steps is not written"
NESTED = "ONNX has no nested sequences"
WHOLE_STEPS = "steps in reverse order, and sequences that a step reads whole, are not written"
OWN_STEPS = "an input has steps of its own, which are not written"
RULES: Mapping[str, Rule] = {**OPERATORS, **EXTENTS, **WINDOWS, **COPIES}


def refused(node: Node, reason: str) -> ModelError:
    """Makes the error for a node of a net that ONNX cannot express, with the line of the user's step."""
    line = f"\n  at {node.source}" if node.source else ""
    return ModelError(f"{node.operation} cannot be written as ONNX: {reason}{line}")


def check_extents(net: Net, deepest: Extent = STEPS) -> None:
    """Raises `ModelError` for a net with a value with more axes before its features than `deepest`, such as
    sequences and steps, has: such as values of sequences inside sequences, which ONNX does not have. Raises
    it for operations that read whole sequences and for inputs with other numbers of steps, too.
    """
    for node in net.nodes:
        known = [deepest[:depth] for depth in range(len(deepest) + 1)]
        fits = (own.extent in known or (deepest == STEPS and is_derived(own.extent)) for own in node.types)
        if node.operation == "arrange":
            raise refused(node, WHOLE_STEPS)
        if any(is_own_axis(own.extent[-1]) for own in node.types if own.extent):
            raise refused(node, f"its result is {', '.join(map(str, node.types))}: {OWN_STEPS}")
        if not all(fits):
            why = PAIRS if any(is_pairs(type_.extent) for type_ in node.types) else NESTED
            raise refused(node, f"its result is {', '.join(map(str, node.types))}: {why}")


def constants(net: Net, inputs: Mapping[int, OnnxValue]) -> dict[int, OnnxValue]:
    """Computes the values of a net that depend only on constants, to write them as arrays. Returns them by
    node number.

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
    known = {number: value for number, (value,) in values.items()}
    fused = Finder(net, known, bool(scope.lengths)).fused()
    nodes = [
        replace(node, inputs=(fused[number].operand,)) if number in fused else node
        for number, node in enumerate(net.nodes)
    ]
    needed = ancestors(nodes, net.results)
    for number, node in enumerate(nodes):
        if number in values or number not in needed:
            continue
        if node.operation == "result":
            values[number] = [values[node.inputs[0]][node.attributes["of"]]]
            continue
        operands = tuple(values[operand][0] for operand in node.inputs)
        try:
            if number in fused:
                values[number] = [fused[number].rule(WrittenOperation(scope, node, operands))]
            elif node.operation in rules:
                values[number] = rules[node.operation](scope, node, operands)
            elif node.operation in RULES:
                values[number] = [RULES[node.operation](WrittenOperation(scope, node, operands))]
            else:
                raise ModelError("there is no operator for it")
            values[number] = [scope.sampled(value) for value in values[number]]
        except ModelError as error:
            raise error if "cannot be written" in str(error) else refused(node, str(error)) from None
    return [values[number][0] for number in net.results]
