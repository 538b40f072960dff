"""Products of vectors with matrices as loops: a sum of products adds up in place."""

from collections.abc import Sequence
from math import prod

import numpy as np

from stepnet.compiler.net.encodings import rounded
from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame.drafts import (
    FrameValue,
    ProductDraft,
    Root,
)
from stepnet.compiler.targets.frame.forms import elementwise
from stepnet.compiler.targets.frame.integers import quantized_product
from stepnet.compiler.targets.frame.recorder import (
    FrameRegister,
    Recorder,
)
from stepnet.compiler.targets.frame.step import ModelStep
from stepnet.compiler.targets.frame.step_lowering import StepLowering, refusal
from stepnet.errors import RefusedError

Array = np.ndarray
Term = tuple[int, int, str | None]
"""A product: the numbers of the value and of the matrix, and the encoding of the weights or None."""
HALVES_OF = {"stored": (False, True), "bfloat16": (True, True), None: (False, False)}
"""The encodings of products in float32: whether the value, and whether the matrix, is rounded to bfloat16."""


def multiplied(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers the product of vectors with a matrix, unless it is a term of a sum."""
    if node.attributes.get("weights") == "int8":
        vectors, matrix = lowering.value(node.inputs[0]), lowering.known[node.inputs[1]]
        name = lowering.name(node.inputs[1])
        lowering.values[number] = quantized_product(lowering.drafts, vectors, matrix, name)
        return
    check_weights(node)
    if not is_deferred(lowering, number):
        left, matrix = node.inputs
        term = left, matrix, node.attributes.get("weights")
        lowering.values[number] = sum_of_products(lowering, node, [term])


def added(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers a sum. Products among its terms begin with the sum of the terms so far: first the constants,
    then each product, then the other values.
    """
    if is_deferred(lowering, number):
        return
    products, constants, others = terms_of(lowering, number)
    if not products:
        elementwise(lowering, number, node)
        return
    total: FrameValue | None = None
    if constants:
        sums = sum(constants[1:], constants[0])
        root = Root("constant", node.type.dtype, sums.size, "bias", "", np.ascontiguousarray(sums))
        total = FrameValue.of(root, sums.shape)
    elif others:
        total = others.pop(0)
    result = sum_of_products(lowering, node, products, total)
    for other in others:
        result = lowering.drafts.pointwise(node.type.shape, node.type.dtype, [result, other], sum_of_two)
    lowering.values[number] = result


def sum_of_two(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
    """Records the sum of two numbers of one dtype."""
    return code.fadd(*operands)


def to_bfloat16(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
    """Records a float32 rounded to the nearest bfloat16, of two the even one; NaN as it is."""
    (x,) = operands
    upper, below, one, half = (code.constant("int32", value) for value in (-(2**16), 16, 1, 0x7FFF))
    bits = code.record("bits", "int32", x)
    odd = code.and_(code.lshr(bits, below), one)
    near = code.and_(code.add(bits, code.add(odd, half)), upper)
    is_number = code.fcmp_ordered("==", x, x)
    return code.select(is_number, code.record("bits", "float32", near), x)


def is_deferred(lowering: StepLowering, number: int) -> bool:
    """Tells whether a node is a product, or a sum with one, that is only a term of one other sum of its type:
    then that sum adds its terms.
    """
    net = lowering.step.net
    node, users = net.nodes[number], [user for user in lowering.users[number] if user in lowering.needed]
    if node.operation not in ("matmul", "add") or number in lowering.known or number in ended(lowering.step):
        return False
    if len(users) != 1 or not node.type.is_float or node.attributes.get("weights") not in HALVES_OF:
        return False
    user = net.nodes[users[0]]
    if user.operation != "add" or user.types != node.types or user.inputs.count(number) != 1:
        return False
    return node.operation == "matmul" or any(is_deferred(lowering, operand) for operand in node.inputs)


def terms_of(lowering: StepLowering, number: int) -> tuple[list[Term], list[Array], list[FrameValue]]:
    """Returns the terms of a sum: its products, its constants, and the other values in its
    dtype.
    """
    net, dtype = lowering.step.net, lowering.step.net.type_of(number).dtype
    products, constants, others = list[Term](), list[Array](), list[FrameValue]()
    for operand in net.nodes[number].inputs:
        node = net.nodes[operand]
        if operand in lowering.known:
            constants.append(lowering.known[operand].astype(dtype))
        elif not is_deferred(lowering, operand):
            others.append(lowering.value(operand))
        elif node.operation == "matmul":
            left, matrix = node.inputs
            products.append((left, matrix, node.attributes.get("weights")))
        else:
            for terms, own in zip((products, constants, others), terms_of(lowering, operand), strict=True):
                terms += own  # type: ignore[operator] # of the same kind
    return products, constants, others


def sums_of_products(lowering: StepLowering, number: int, node: Node) -> None:
    """Lowers several sums of products of the same vectors."""
    check_weights(node)
    (lefts, matrices), weights = node.sides, node.attributes.get("weights")
    lowering.several[number] = [
        sum_of_products(
            lowering,
            node,
            [(left, matrix, weights) for left, matrix in zip(lefts, matrices[first:], strict=False)],
        )
        for first in range(0, len(matrices), len(lefts))
    ]


def check_weights(node: Node) -> None:
    """Raises `RefusedError` for a product of floats whose weights are encoded in int8."""
    if (weights := node.attributes.get("weights")) not in HALVES_OF:
        raise RefusedError(refusal(node, f"its weights are {weights}; quantize the model to int8, or not"))


def ended(step: ModelStep) -> set[int]:
    """Returns the numbers of the outputs and the memories after a step."""
    return {*(each.number for each in step.outputs), *(each.after for each in step.memories)}


def sum_of_products(
    lowering: StepLowering, node: Node, terms: Sequence[Term], start: FrameValue | None = None
) -> FrameValue:
    """Adds a sum of products of values with constant matrices; returns its result.

    node: the node whose value it is. terms: its products. start: the first value of the sum; None for zeros.
    """
    shape, dtype = node.types[0].shape, node.types[0].dtype
    if not node.types[0].is_float:
        raise RefusedError(refusal(node, "its numbers are integers; cast them to float32"))
    rows, outputs = prod(shape[:-1]), shape[-1]
    if start is not None:
        start = rows_of(lowering, lowering.as_dtype(start, dtype).broadcast(shape), rows)
    root = Root("scratch", dtype, rows * outputs)
    result = FrameValue.of(root, (rows, outputs))
    for left, matrix, encoding in terms:
        weights, name = lowering.known[matrix], lowering.name(matrix)
        value, inputs = lowering.as_dtype(lowering.value(left), dtype), weights.shape[0]
        rounds_value, rounds_weights = HALVES_OF[encoding]
        if rounds_value:
            value = lowering.drafts.pointwise(value.shape, dtype, [value], to_bfloat16, "to bfloat16")
        if rounds_weights:
            weights = rounded(weights)
        x = lowering.drafts.contiguous(value)
        vectors = FrameValue(x.root, x.offset, (inputs, 1), (rows, inputs))
        table = lowering.table(weights.astype(dtype), name)
        sizes, about = (rows, inputs, outputs), f"@ {name or 'weights'}"
        lowering.drafts.add(ProductDraft(vectors, table, start, result, sizes, about), root)
        start = result
    return FrameValue.of(root, shape)


def rows_of(lowering: StepLowering, value: FrameValue, rows: int) -> FrameValue:
    """Returns a value [..., n] as a view [rows, n] whose last stride is 1, a copy if need be."""
    last = value.shape[-1:]
    if value.strides[-1] == 1 or value.shape[-1] == 1:
        if rows == 1 or not any(value.strides[:-1]):
            return FrameValue(value.root, value.offset, (0, 1), (rows, *last))
        if value.is_contiguous:
            return FrameValue(value.root, value.offset, (last[0], 1), (rows, *last))
    root = Root("scratch", value.dtype, prod(value.shape), scale=value.root.scale)
    lowering.drafts.copy(value, FrameValue.of(root, value.shape))
    return FrameValue.of(root, (rows, *last))
