"""Sums of products in integers, with one rounding for all terms.

    y = sum of x_i @ W_i + b        x_i = p_i a_i    W_i[k, n] = q_i[k, n] b_i[n]
    y[n] 2^digits = (sum of (p_i @ q_i[n] + c_i[n]) M_i[n]) / 2^shift

a_i is the scale of x_i from samples, b_i[n] that of a column; M_i[n] are integers of 29 bits, and c_1 is b in
units of a_1 b_1[n]. The quotient is the nearest integer, of two the upper one, saturated.
"""

from collections.abc import Sequence
from math import floor, log2, prod

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame.drafts import FrameValue, ProductDraft, Root
from stepnet.compiler.targets.frame.fixed import LARGEST, WIDE, refitted, saturated, shifted, stored, wide
from stepnet.compiler.targets.frame.integer_operations import elementwise
from stepnet.compiler.targets.frame.integer_step import IntegerLowering, fraction, no_integers
from stepnet.compiler.targets.frame.products import is_deferred, terms_of
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder
from stepnet.errors import RefusedError

Array = np.ndarray
MULTIPLIER_DIGITS = 29
MOST_INPUTS = 2**15
SMALLEST = 2.0**-60
"""The least scale of a column, for one of zeros."""
MOST_CODE = 127
BETWEEN = 2**24
"""The largest magnitude of a sum of products to which other terms are added."""


def added(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers a sum, of which products are terms."""
    if is_deferred(lowering, number):
        return
    terms, constants, others = terms_of(lowering, number)
    if terms:
        lowering.values[number] = sum_of_integers(lowering, number, terms, constants, others)
    else:
        elementwise(lowering, number, node)


def matmul(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers the product of vectors with a matrix, unless it is a term of a sum."""
    if not is_deferred(lowering, number):
        left, matrix = node.inputs
        lowering.values[number] = sum_of_integers(lowering, number, [(left, matrix)], [], [])


def sum_of_integers(
    lowering: IntegerLowering,
    number: int,
    terms: Sequence[tuple[int, int]],
    constants: Sequence[Array],
    others: Sequence[FrameValue],
) -> FrameValue:
    """Adds a sum of products, with constants and other values; returns its result in int16.

    number: that of the sum. terms: the numbers of the value and the matrix of each product.
    """
    node, digits = lowering.step.net.nodes[number], lowering.digits(number)
    outputs = node.type.shape[-1]
    bias = np.broadcast_to(np.asarray(sum(constants, np.zeros(outputs)), np.float64), node.type.shape)
    if prod(bias.shape[:-1]) > 1 and (bias != bias.reshape(-1, outputs)[0]).any():
        raise RefusedError(
            no_integers(node, "its bias differs between rows; add it in an operation of its own")
        )
    first, operands, factors = bias.reshape(-1, outputs)[0], list[FrameValue](), list[Array]()
    names = [lowering.step.net.nodes[matrix].name for _, matrix in terms]
    for (left, matrix), name in zip(terms, names, strict=True):
        scale, sums, offsets = product_of_codes(lowering, node, left, matrix, first)
        factors.append(scale * 2.0**digits)
        operands += [sums, constant(f"{name}_bias", offsets)]
        first = np.zeros(outputs)
    room = MULTIPLIER_DIGITS - (len(terms) - 1).bit_length()
    shift = min(floor(room - log2(max(each.max() for each in factors))), 60)
    if shift < 1:
        raise RefusedError(no_integers(node, "its weights are too large for its results; scale them down"))
    operands += [
        constant(f"{name}_multipliers", np.rint(each * 2.0**shift))
        for name, each in zip(names, factors, strict=True)
    ]
    fractions = [fraction(each) for each in others]

    def record(code: Recorder, given: list[FrameRegister]) -> FrameRegister:
        """Records the sum of all terms times their multipliers, rounded, and the other values."""
        products, rest = given[: 3 * len(terms)], given[3 * len(terms) :]
        total = weighted_sum(code, products, len(terms))
        total = saturated(code, shifted(code, total, shift), BETWEEN if rest else LARGEST)
        if not rest:
            return code.record("convert", "int16", total)
        total = code.record("convert", "int32", total)
        for other, digits_of_other in zip(rest, fractions, strict=True):
            value = refitted(code, wide(code, other), digits_of_other, digits)
            total = code.add(total, saturated(code, value, BETWEEN))
        return stored(code, total)

    shape = node.type.shape
    return lowering.elementwise(number, shape, [*operands, *others], record)


def weighted_sum(code: Recorder, given: Sequence[FrameRegister], count: int) -> FrameRegister:
    """Records the sum of products times multipliers in int64.

    given: the sum of each product and its offset, one after the other, and then the multipliers. count: the
    number of products.
    """
    long = [code.record("convert", "int64", each) for each in given]
    terms = [
        code.mul(code.add(long[2 * place], long[2 * place + 1]), long[2 * count + place])
        for place in range(count)
    ]
    total = terms[0]
    for term in terms[1:]:
        total = code.add(total, term)
    return total


def constant(name: str, numbers: Array) -> FrameValue:
    """Returns an array of constants in int32."""
    array = np.ascontiguousarray(numbers).astype(np.int32)
    return FrameValue.of(Root("constant", "int32", array.size, name, "", array), array.shape)


def product_of_codes(
    lowering: IntegerLowering, node: Node, number: int, matrix: int, bias: Array
) -> tuple[Array, FrameValue, Array]:
    """Adds the product of the integers of a value with those of a matrix. Returns the scale of each column of
    the result, the sums, and a bias in units of these scales.
    """
    weights, name = lowering.known[matrix], lowering.step.net.nodes[matrix].name
    left, (inputs, outputs), shape = lowering.left(number), weights.shape, node.type.shape
    if inputs > MOST_INPUTS:
        raise RefusedError(no_integers(node, f"it adds {inputs} products; at most {MOST_INPUTS} fit int32"))
    scale = float(left.root.scale or 1)
    most = MOST_CODE if left.dtype == "int8" else LARGEST
    columns = column_scales(weights.astype(np.float64), most, np.abs(bias) / scale)
    codes = np.rint(weights / columns).astype(np.int8)
    rows = prod(shape[:-1])
    sums = Root("scratch", "int32", rows * outputs)
    table = Root("constant", "int8", weights.size, name, name, codes)
    vectors, sizes = FrameValue(left.root, left.offset, (inputs, 1), (rows, inputs)), (rows, inputs, outputs)
    draft = ProductDraft(
        vectors, table, None, FrameValue.of(sums, (rows, outputs)), sizes, f"@ {name or 'weights'}"
    )
    lowering.drafts.add(draft, sums)
    return scale * columns, FrameValue.of(sums, shape), np.rint(bias / (scale * columns))


def column_scales(weights: Array, most: int, bias: Array) -> Array:
    """Returns the scale of each column of a matrix, with which its integers fit int8, the sums of their
    products with integers up to `most` fit int32, and the bias in units of the scale has at most 30 bits.

    >>> column_scales(np.array([[1.27, 0.0], [-0.1, 0.0]]), 127, np.array([0.0, 2.0**20]))
    array([0.01      , 0.00097656])
    """
    magnitudes, room = np.abs(weights), (2**31 - 1) // most - (weights.shape[0] + 1) // 2
    parts = magnitudes.max(0, initial=0) / MOST_CODE, magnitudes.sum(0) / room, bias / WIDE
    return np.maximum(np.maximum.reduce(parts), SMALLEST)
