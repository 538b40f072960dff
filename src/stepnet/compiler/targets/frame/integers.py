"""Products of int8: as `compiler/net/encodings.py` defines them, in the same integers.

    x[k] = p[k] a    W[k, n] = q[k, n] b[n]      x @ W = (sum of p[k] q[k, n]) a b[n]

The weights are rounded here, and are a quarter of their size. The scale `a` of a vector is computed in each
frame from its largest element, so nothing is calibrated, and no vector is clipped.
"""

from math import inf, nan, prod

import numpy as np

from stepnet.compiler.net.encodings import LARGEST, SMALLEST, whole_numbers
from stepnet.compiler.targets.frame.drafts import Drafts, FrameValue, ProductDraft, ReductionDraft, Root
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder, absolute, extreme, rint

Array = np.ndarray


def quantized_product(drafts: Drafts, vectors: FrameValue, matrix: Array, name: str) -> FrameValue:
    """Adds the product of vectors with a matrix, both rounded to int8; returns its result in float32.

    vectors: [..., k]. matrix: [k, n]. name: the name of the matrix.
    """
    codes, scales = whole_numbers(matrix, 0)
    (inputs, outputs), before = matrix.shape, vectors.shape[:-1]
    rows, shape = prod(before), (*before, outputs)
    largest = largest_magnitude(drafts, vectors)
    factor = drafts.pointwise(largest.shape, "float32", [largest], factor_of)
    scale = drafts.pointwise(largest.shape, "float32", [largest], scale_of)
    encoded = drafts.pointwise(vectors.shape, "int8", [vectors, factor, scale], code_of)
    sums = Root("scratch", "int32", rows * outputs)
    table = Root("constant", "int8", matrix.size, name, name, codes.astype(np.int8))
    left = FrameValue(encoded.root, 0, (inputs, 1), (rows, inputs))
    result, sizes = FrameValue.of(sums, (rows, outputs)), (rows, inputs, outputs)
    drafts.add(ProductDraft(left, table, None, result, sizes, f"@ {name or 'weights'}"), sums)
    scale_name = f"{name}_scales" if name else ""
    column = Root("constant", "float32", outputs, scale_name, "", scales[0].astype(np.float32))
    operands = [FrameValue.of(sums, shape), scale, FrameValue.of(column, (outputs,))]
    return drafts.pointwise(shape, "float32", operands, scaled)


def largest_magnitude(drafts: Drafts, vectors: FrameValue) -> FrameValue:
    """Adds the largest magnitude of each vector; returns it, [..., 1]."""
    before, last = vectors.shape[:-1], vectors.shape[-1:]
    sizes = drafts.pointwise(vectors.shape, "float32", [vectors], magnitude)
    root = Root("scratch", "float32", prod(before))
    drafts.add(ReductionDraft("max", before, last, sizes, FrameValue.of(root, before), "largest"), root)
    return FrameValue.of(root, (*before, 1))


def magnitude(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
    """Records the magnitude of an element."""
    return absolute(code, *operands)


def bounded(code: Recorder, largest: FrameRegister) -> FrameRegister:
    """Records the largest magnitude of a vector, which is not too small to divide by."""
    return extreme(">")(code, largest, code.constant("float32", SMALLEST))


def factor_of(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
    """Records the number by which the elements of a vector become integers."""
    return code.fdiv(code.constant("float32", LARGEST), bounded(code, *operands))


def scale_of(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
    """Records the scale from a vector's integers to its elements: NaN if an element is not finite."""
    bound = bounded(code, *operands)
    is_finite = code.fcmp_ordered("<", bound, code.constant("float32", inf))
    known = code.select(is_finite, bound, code.constant("float32", nan))
    return code.fdiv(known, code.constant("float32", LARGEST))


def code_of(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
    """Records the integer of an element, given the factor and scale of its vector: 0 for a scale of NaN."""
    x, factor, scale = operands
    nearest = rint(code, code.fmul(x, factor))
    known = code.select(code.fcmp_ordered("==", scale, scale), nearest, code.constant("float32", 0.0))
    return code.record("convert", "int8", known)


def scaled(code: Recorder, operands: list[FrameRegister]) -> FrameRegister:
    """Records a sum of integers times the scales of its vector and of its column."""
    total, scale, column = operands
    return code.fmul(code.fmul(code.record("convert", "float32", total), scale), column)
