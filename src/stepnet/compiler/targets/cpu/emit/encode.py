"""The machine code that encodes the left operands of products, row by row (`stepnet.compiler.net.encodings`).

    x, float32   ->   words in the microkernel's format; for int8 also the scale of the row

Padding after the last number of a row is encoded as zeros. The packed weights are zero there, but zero times
uninitialized memory might be NaN.
"""

import numpy as np
from llvmlite import ir

from stepnet.compiler.net.encodings import LARGEST, SMALLEST
from stepnet.compiler.targets.cpu.emit.stage import StageCode
from stepnet.compiler.targets.cpu.lower.loops import EncodeLoop
from stepnet.compiler.targets.cpu.products.arithmetic import Arithmetic, arithmetic, bytes_of, left_layout
from stepnet.compiler.targets.cpu.writing.code import I32, Code, width_of
from stepnet.compiler.targets.cpu.writing.storage_dtypes import INFINITY, bits_of, single_of

ROUNDER = 1.5 * 2.0**23
"""Added to a float32 of much smaller magnitude, this constant leaves its rounded integer in the low bits."""
ROUNDER_BITS, SMALLEST_BITS = (int(np.float32(number).view(np.int32)) for number in (ROUNDER, SMALLEST))
MAGNITUDE, NOT_A_NUMBER = 0x7FFFFFFF, 0x7FC00000


def emit_encode(stage: StageCode, loop: EncodeLoop) -> None:
    """Writes code that encodes left operands of products in int8 or bfloat16, for all rows of this thread."""
    EncodeCode(stage, loop).emit()


class EncodeCode:
    """Writer of the code that encodes the left operand of products in int8 or bfloat16, row by row."""

    def __init__(self, stage: StageCode, loop: EncodeLoop) -> None:
        """Chooses the arithmetic for the loop's encoding (int8 or bfloat16) of left operands."""
        self.stage, self.loop, self.code = stage, loop, stage.code
        self.kind: Arithmetic = arithmetic(loop.weights, "float32", stage.width, stage.code.processor)

    def emit(self) -> None:
        """Writes a loop over this thread's rows that encodes the numbers of each in int8 or bfloat16, as the
        left operand of a matrix product, and stores them. For int8, a first pass over a row finds its scale.
        """
        with self.stage.own_rows() as row:
            inverse = self.scale(row) if self.loop.scales is not None else None
            self.encode(row, inverse)

    @property
    def full_blocks(self) -> int:
        """Number of full blocks (vectors) of the elements of a row that is encoded."""
        return self.loop.size // self.stage.width

    @property
    def unrolled(self) -> int:
        """Number of blocks (vectors) per iteration of the loop that encodes a row: its unroll factor."""
        return next(size for size in (4, 2, 1) if self.full_blocks % size == 0)

    def blocks(self, first: ir.Value) -> list[ir.Value]:
        """Returns the indices of the blocks (vectors) of one iteration of an unrolled loop, from `first`."""
        return [self.code.add(first, self.code.number(ahead)) for ahead in range(self.unrolled)]

    def values(self, row: ir.Value, block: ir.Value, count: int | None = None) -> ir.Value:
        """Writes a load of vector number `block` of the value that is encoded, of one row (a sequence at one
        step); with `count`, elements after the first `count` are zeros.
        """
        code, width = self.code, self.stage.width
        values = self.stage.operand(self.loop.source, row, block, {})
        if count is None:
            return values
        return code.keep_first(values, count, width, code.splat(values.type, 0))

    # ---- the scale of int8

    def scale(self, row: ir.Value) -> ir.Value:
        """Writes code that stores the int8 scale of the value of a row (a sequence at one step), its largest
        magnitude / 127; returns the inverse of the scale.

        The magnitude is taken to be at least `SMALLEST`. The scale is NaN if a number of the row is not
        finite. The inverse is a vector, by which the row's elements are multiplied.
        """
        code, width, loop = self.code, self.stage.width, self.loop
        assert loop.scales is not None
        most = self.magnitudes(row)
        if remainder := loop.size % width:
            most = self.larger(most, self.values(row, code.number(self.full_blocks), remainder))
        most = largest_of(code, most)
        largest = single_of(code, most)
        finite = code.icmp_unsigned("<", most, code.splat(I32, INFINITY))
        scale = code.fdiv(largest, code.splat(largest.type, LARGEST))
        scale = code.select(finite, scale, single_of(code, code.splat(I32, NOT_A_NUMBER)))
        pointer = code.at(self.stage.rows.at(code, loop.scales.record, row), loop.scales.offset)
        code.write(scale, pointer, 4)
        return code.spread(code.fdiv(code.splat(largest.type, LARGEST), largest), width)

    def magnitudes(self, row: ir.Value) -> ir.Value:
        """Writes code that finds the largest magnitudes in the full vectors of a row's value, for the row's
        int8 scale; a row is a sequence at one step.

        Returns a vector with the largest magnitude at each vector element, as the bits of a float32.
        """
        code = self.code
        least = code.splat(ir.VectorType(I32, self.stage.width), SMALLEST_BITS)

        def iteration(first: ir.Value, most: list[ir.Value]) -> list[ir.Value]:
            """Writes the elementwise maximum of `most` and the magnitudes in the blocks of one iteration."""
            larger = most[0]
            for block in self.blocks(first):
                larger = self.larger(larger, self.values(row, block))
            return [larger]

        return code.carry(0, self.full_blocks, [least], iteration, step=self.unrolled)[0]

    def larger(self, most: ir.Value, values: ir.Value) -> ir.Value:
        """Computes the elementwise maximum of `most` and the magnitudes of `values`, as the bits of float32.

        As integers these are ordered like the magnitudes, with infinity and then NaN above all others.
        """
        code = self.code
        size = code.and_(bits_of(code, values), code.splat(most.type, MAGNITUDE))
        return code.intrinsic("umax", most.type, [most, size])

    # ---- words

    def encode(self, row: ir.Value, inverse: ir.Value | None) -> None:
        """Writes code that encodes the value of a row (a sequence at one step) and stores it, padded to whole
        packed words with zeros.

        inverse: 1 / scale of int8, in each element of a vector; None for bfloat16.
        """
        code, loop, width = self.code, self.loop, self.stage.width
        base = code.at(self.stage.rows.at(code, loop.target.record, row), loop.target.offset)
        block_bytes = width * bytes_of(self.kind.stored)

        def encoded(block: ir.Value, count: int | None = None) -> ir.Value:
            """Writes the encoding of the values of a block (a vector of the row), or of its first `count`."""
            values = self.values(row, block, count)
            return left_layout(code, self.kind, self.whole_numbers(values, inverse))

        def store(words: ir.Value, block: ir.Value) -> None:
            """Writes the store of the encoded values of one block (a vector of the row)."""
            code.write(words, code.at(base, code.mul(block, code.number(block_bytes))), 4)

        with code.loop(code.number(0), code.number(self.full_blocks), self.unrolled) as first:
            for block in self.blocks(first):
                store(encoded(block), block)
        next_block = self.full_blocks
        if remainder := loop.size % width:
            block = code.number(next_block)
            store(self.without_padding(encoded(block, remainder), remainder), block)
            next_block += 1
        zeros = code.splat(ir.VectorType(self.kind.stored, width), 0)
        while next_block * width < self.kind.padded(loop.size):
            store(zeros, code.number(next_block))
            next_block += 1

    def without_padding(self, words: ir.Value, count: int) -> ir.Value:
        """Returns the encoded values of a block with zeros after the first `count` of a vector. Zero is
        encoded as the shift, which only weights of zero may meet, but instructions for matrices read on.
        """
        if not self.kind.by_matrix:
            return words
        return self.code.keep_first(words, count, self.stage.width, self.code.splat(words.type, 0))

    def whole_numbers(self, values: ir.Value, inverse: ir.Value | None) -> ir.Value:
        """Computes int8 codes: values times `inverse`, rounded to int32, plus the shift to unsigned numbers.

        Adding the constant `ROUNDER` puts the rounded integer in the low bits of the float. Without `inverse`
        (bfloat16) values are unchanged.
        """
        code = self.code
        if inverse is None:
            return values
        near = code.fadd(code.fmul(values, inverse), code.splat(values.type, ROUNDER))
        bits = bits_of(code, near)
        return code.sub(bits, code.splat(bits.type, ROUNDER_BITS - self.kind.shift))


def largest_of(code: Code, values: ir.Value) -> ir.Value:
    """Computes the largest element of a vector of unsigned integers, as a scalar, halving it repeatedly."""
    width = width_of(values)
    while width > 1:
        width //= 2
        halves = code.slice(values, 0, width), code.slice(values, width, width)
        values = code.intrinsic("umax", halves[0].type, halves)
    return code.extract_element(values, ir.Constant(I32, 0))
