"""Sums of products in integers, with one rounding for all terms.

    y = sum of x_i @ W_i + b        x_i = p_i a_i    W_i[k, n] = q_i[k, n] b_i[n]
    y[n] 2^digits = (sum of (p_i @ q_i[n] + c_i[n]) 2^shift_i M_i[n] / 2^32) / 2^guard

a_i is the scale of x_i from samples, b_i[n] that of a column; M_i[n] are integers of 31 bits, and c_1 is b
in units of a_1 b_1[n]. Terms have `guard` digits behind the point of y, as many as fit; their sum is rounded
to the nearest integer, of two the upper one, and saturated.

A sum of which only slices are read, as those of gates, is computed slice by slice: the int32 sums of one
slice then lie where those of the slice before did.
"""

from collections.abc import Sequence
from itertools import pairwise
from math import frexp, prod

import numpy as np

from stepnet.compiler.net.ir import Node
from stepnet.compiler.targets.frame import forms
from stepnet.compiler.targets.frame.drafts import FrameValue, ProductDraft, Root
from stepnet.compiler.targets.frame.fixed import refitted, saturated, shifted, stored, wide
from stepnet.compiler.targets.frame.integer_operations import elementwise
from stepnet.compiler.targets.frame.integer_step import IntegerLowering, fraction, no_integers
from stepnet.compiler.targets.frame.products import Term, ended, is_deferred, terms_of
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder
from stepnet.compiler.targets.frame.sparse import sparse_matrix
from stepnet.compiler.values.records import dataclass
from stepnet.errors import RefusedError

Array = np.ndarray
MOST_INPUTS = 2**15
SMALLEST = 2.0**-60
"""The least scale of a column, for one of zeros."""
MOST_CODE = 127
MOST_OFFSET = 2**14
"""The largest bias of a column over the largest integer of the vectors: a column of zeros with a bias would
leave the others no digits.
"""
BETWEEN = 2**24
"""The largest magnitude of a sum of products to which other terms are added."""
FEWEST_COLUMNS = 16
"""The fewest columns of a part of a sum: for fewer its code takes more than its sums save."""


@dataclass(frozen=True)
class SumTerm:
    """A product of a sum, in integers.

    left: the vectors p. codes: the matrix q. offsets: the bias c of each column. scales: the scales of the
    sums, a b of each column. name: the name of the matrix.
    """

    left: FrameValue
    codes: Array
    offsets: Array
    scales: Array
    name: str

    @property
    def bound(self) -> int:
        """The largest magnitude that its sums may have."""
        most = -int(np.iinfo(self.left.dtype).min)
        return int(
            (most * np.abs(self.codes.astype(np.int64)).sum(0) + np.abs(self.offsets.astype(np.int64))).max()
        )


def added(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers a sum, of which products are terms."""
    if is_deferred(lowering, number):
        return
    products, constants, others = terms_of(lowering, number)
    if products:
        sum_of_integers(lowering, number, products, constants, others)
    else:
        elementwise(lowering, number, node)


def matmul(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers the product of vectors with a matrix, unless it is a term of a sum."""
    if not is_deferred(lowering, number):
        left, matrix = node.inputs
        sum_of_integers(lowering, number, [(left, matrix, None)], [], [])


def sliced(lowering: IntegerLowering, number: int, node: Node) -> None:
    """Lowers a slice: a view, or a part of a sum that is computed in parts."""
    parts = lowering.parts.get(node.inputs[0])
    if parts is None:
        forms.sliced(lowering, number, node)
    else:
        lowering.values[number] = parts[columns_of(node)]


def sum_of_integers(
    lowering: IntegerLowering,
    number: int,
    products: Sequence[Term],
    constants: Sequence[Array],
    others: Sequence[FrameValue],
) -> None:
    """Lowers a sum of products, with constants and other values, to int16.

    number: the number of the sum. products: those of values with matrices.
    """
    node, digits = lowering.step.net.nodes[number], lowering.digits(number)
    outputs, terms = node.type.shape[-1], list[SumTerm]()
    bias = np.broadcast_to(np.asarray(sum(constants, np.zeros(outputs)), np.float64), node.type.shape)
    first = bias.reshape(-1, outputs)[0]
    if prod(bias.shape[:-1]) > 1 and (bias != first).any():
        raise RefusedError(
            no_integers(node, "its bias differs between rows; add it in an operation of its own")
        )
    for left, matrix, _ in products:
        terms.append(term_of(lowering, node, left, matrix, np.zeros(outputs) if terms else first))
    factors = [term.scales * 2.0**digits for term in terms]
    bounds, largest = [term.bound for term in terms], [float(each.max()) for each in factors]
    shifts, guard = digits_of_terms(bounds, largest)
    if guard < 0:
        raise RefusedError(no_integers(node, "its weights are too large for its results; scale them down"))
    multipliers = [
        constant(
            f"{term.name}_multipliers", np.minimum(np.rint(each * 2.0 ** (32 + guard - shift)), 2**31 - 1)
        )
        for term, each, shift in zip(terms, factors, shifts, strict=True)
    ]
    fractions, given = [fraction(each) for each in others], [*multipliers, *others]

    def record(code: Recorder, given: list[FrameRegister]) -> FrameRegister:
        """Records the sum of all terms times their multipliers, rounded, and the other values."""
        count = len(terms)
        total, rest = weighted_sum(code, given[:count], given[count : 2 * count], shifts), given[2 * count :]
        total = shifted(code, total, guard)
        if rest:
            total = saturated(code, total, BETWEEN)
        for other, digits_of_other in zip(rest, fractions, strict=True):
            value = refitted(code, wide(code, other), digits_of_other, digits)
            total = code.add(total, saturated(code, value, BETWEEN))
        return stored(code, total)

    parts = dict[tuple[int, int], FrameValue]()
    for columns in parts_of(lowering, number, terms):
        shape = (*node.type.shape[:-1], columns[1] - columns[0])
        sums = [product_of_codes(lowering, term, columns, shape) for term in terms]
        rest = [part_of(each.broadcast(node.type.shape), columns) for each in given]
        parts[columns] = lowering.elementwise(number, shape, [*sums, *rest], record)
    if [*parts] == [(0, outputs)]:
        lowering.values[number] = parts[0, outputs]
    else:
        lowering.parts[number] = parts


def parts_of(lowering: IntegerLowering, number: int, terms: Sequence[SumTerm]) -> list[tuple[int, int]]:
    """Lists the columns of a sum that are computed together, each part by its first and its end: the slices
    that are read if nothing else is and they do not overlap, or all columns.
    """
    net, step = lowering.step.net, lowering.step
    users = [net.nodes[user] for user in lowering.users[number] if user in lowering.needed]
    whole = [(0, net.type_of(number).shape[-1])]
    if number in ended(step) or any(not takes_columns(user, net.type_of(number).shape) for user in users):
        return whole
    parts = sorted({columns_of(user) for user in users})
    overlap = any(before[1] > after[0] for before, after in pairwise(parts))
    if overlap or min(last - first for first, last in parts) < FEWEST_COLUMNS:
        return whole
    return whole if any(sparse_matrix(term.codes) is not None for term in terms) else parts


def takes_columns(node: Node, shape: tuple[int, ...]) -> bool:
    """Tells whether a node is a slice of the last axis of a shape, of columns that lie together."""
    if node.operation != "slice":
        return False
    *others, (_, _, step) = node.attributes["slices"]
    return step == 1 and node.type.shape[:-1] == shape[:-1] and all(each[2] == 1 for each in others)


def columns_of(node: Node) -> tuple[int, int]:
    """Returns the first column of a slice of columns, and the end."""
    first = node.attributes["slices"][-1][0]
    return first, first + node.type.shape[-1]


def part_of(value: FrameValue, columns: tuple[int, int]) -> FrameValue:
    """Returns a part of a value along its last axis. columns: the first one and the end."""
    first, last = columns
    offset = value.offset + first * value.strides[-1]
    return FrameValue(value.root, offset, value.strides, (*value.shape[:-1], last - first))


def digits_of_terms(bounds: Sequence[int], factors: Sequence[float]) -> tuple[list[int], int]:
    """Returns by how many digits each sum of products is shifted to the left before it is multiplied, and how
    many digits behind the point of the result the products have, as many as int32 holds.

    bounds: the largest magnitude of each sum. factors: the largest number that each one is multiplied by.

    >>> digits_of_terms([2**19], [0.3])
    ([11], 11)
    """
    shifts = [31 - bound.bit_length() for bound in bounds]
    largest = sum(bound * factor for bound, factor in zip(bounds, factors, strict=True))
    room = [shift - 1 - frexp(factor)[1] for shift, factor in zip(shifts, factors, strict=True)]
    return shifts, min(*room, 29 - frexp(largest)[1])


def weighted_sum(
    code: Recorder, sums: Sequence[FrameRegister], multipliers: Sequence[FrameRegister], shifts: Sequence[int]
) -> FrameRegister:
    """Records the sum of products times multipliers, each shifted to the left before."""
    total: FrameRegister | None = None
    for value, multiplier, shift in zip(sums, multipliers, shifts, strict=True):
        raised = code.shl(value, code.constant("int32", shift)) if shift else value
        term = code.high_product(raised, multiplier)
        total = term if total is None else code.add(total, term)
    assert total is not None
    return total


def constant(name: str, numbers: Array) -> FrameValue:
    """Returns an array of constants in int32."""
    array = np.ascontiguousarray(numbers).astype(np.int32)
    return FrameValue.of(Root("constant", "int32", array.size, name, "", array), array.shape)


def term_of(lowering: IntegerLowering, node: Node, number: int, matrix: int, bias: Array) -> SumTerm:
    """Returns the product of a value with a matrix, and a bias, in integers. node: the node of the sum."""
    weights, name = lowering.known[matrix], lowering.step.net.nodes[matrix].name
    left, inputs = lowering.left(number), weights.shape[0]
    if inputs > MOST_INPUTS:
        raise RefusedError(no_integers(node, f"it adds {inputs} products; at most {MOST_INPUTS} fit int32"))
    scale, most = float(left.root.scale or 1), -int(np.iinfo(left.dtype).min)
    columns = column_scales(weights.astype(np.float64), most, np.abs(bias) / scale)
    codes = np.rint(weights / columns).astype(np.int8)
    offsets = np.rint(bias / (scale * columns)).astype(np.int32)
    return SumTerm(left, codes, offsets, scale * columns, name)


def product_of_codes(
    lowering: IntegerLowering, term: SumTerm, columns: tuple[int, int], shape: tuple[int, ...]
) -> FrameValue:
    """Adds the product of some columns of a term; returns its sums. columns: the first one and the end.
    shape: the shape of the sums.
    """
    (first, last), left, name = columns, term.left, term.name
    codes = np.ascontiguousarray(term.codes[:, first:last])
    (inputs, outputs), rows = codes.shape, prod(shape[:-1])
    sums = Root("scratch", "int32", rows * outputs)
    table = Root("constant", "int8", codes.size, name, name, codes)
    vectors, sizes = FrameValue(left.root, left.offset, (inputs, 1), (rows, inputs)), (rows, inputs, outputs)
    start = None
    if term.offsets.any():
        values = constant(f"{name}_bias", term.offsets)
        start = FrameValue(values.root, first, (0, 1), (rows, outputs))  # of one column, too
    result, about = FrameValue.of(sums, (rows, outputs)), f"@ {name or 'weights'}"
    if codes.shape != term.codes.shape:
        about += f"[:, {first}:{last}]"
    lowering.drafts.add(ProductDraft(vectors, table, start, result, sizes, about), sums)
    return FrameValue.of(sums, shape)


def column_scales(weights: Array, most: int, bias: Array) -> Array:
    """Returns the scale of each column of a matrix, with which its integers fit int8, and the sums of their
    products with integers up to `most` and of the bias fit int32.

    bias: its magnitudes, in units of the integers.

    >>> column_scales(np.array([[1.27, 0.0], [-0.1, 0.0]]), 128, np.array([0.0, 2.0**20]))
    array([0.01, 0.5 ])
    """
    magnitudes, room = np.abs(weights), 2**31 - 2 - most * ((weights.shape[0] + 1) // 2)
    own, sums = magnitudes.max(0, initial=0) / MOST_CODE, (magnitudes.sum(0) * most + bias) / room
    return np.maximum.reduce([own, sums, bias / (most * MOST_OFFSET), np.full(own.shape, SMALLEST)])
