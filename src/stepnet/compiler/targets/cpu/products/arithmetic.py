"""The arithmetic of the microkernel: a table with a row for each encoding of weights and instruction set.

    packed word       terms of k    left side, per word    multiplied by                   accumulators
    float, integer    1             1 number               multiply-add                    the same dtype
    2 x bfloat16      2             2 x bfloat16           vdpbf16ps (x86)                 float32
                                    2 x bfloat16           bfmlalt, then bfmlalb (Arm)
                                    2 x float32            two multiply-adds
                                    2 numbers, plain       two multiply-adds, in order
    4 x int8          4             4 x uint8, shifted     vpdpbusd, tdpbusd (x86)         int32
                                    4 x int8               sdot (Arm)
                                    4 x int16              two of pmaddwd, and additions
                                    4 x int32              four multiply-adds
                                    4 numbers, plain       four multiply-adds, in order            float32

A word has 32 bits in both encodings, and a left side has as many words as there are packed rows. So tiles and
loops are the same for all rows of the table. Each row adds the terms in a fixed order, whatever the tile.
`ROWS` says which row a processor with some feature takes; another instruction set is another row there.

vdpbf16ps adds the second product of a pair before the first and rounds after each addition. bfmlalt and
bfmlalb are multiply-adds of the second and of the first numbers of pairs, so they do the same, as two other
multiply-adds do. All give the same bits, except for subnormal numbers, which vdpbf16ps flushes to zero. Sums
of int8 are exact in every row.

Arm's bfdot and bfmmla would give other bits: they add both products of a pair before they add the sum, round
to odd, and flush subnormal numbers. usdot has no use: both sides are signed, and sdot needs no shift.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from llvmlite import ir

from stepnet.compiler.targets.cpu.machine.processor import Processor
from stepnet.compiler.targets.cpu.products.arm_instructions import multiply_long_pairs, multiply_signed_quads
from stepnet.compiler.targets.cpu.products.constants import HEADS, WORDS
from stepnet.compiler.targets.cpu.writing.code import I8, I16, I32, Code, is_float, register_type, width_of
from stepnet.compiler.targets.cpu.writing.storage_dtypes import (
    like,
    rounded_bfloat16,
    single_of,
    widened_bfloat16,
)
from stepnet.compiler.values.records import dataclass

F32 = ir.FloatType()


@dataclass(frozen=True)
class Arithmetic:
    """Row of the table of arithmetics of the microkernel (the machine code of products).

    It says how left operands and weights are stored and multiplied.

    terms: the number of values of k in a packed word.
    word, sums: the element types of packed vectors and of accumulators.
    stored: the type of an element of the left operand in memory.
    order: for each position of a word of the left operand, which of its elements is stored there.
    number: the type that is broadcast to a vector, `vectors_per_word` times per word.
    unpacked: splits a vector of words into a vector for each part.
    multiply_add: adds the product of a broadcast part and such a vector to an accumulator.
    shift: added to the integers of the left operand to make them unsigned.
    by_matrix: whether instructions for matrices multiply 16 rows (see `matrix`). Left operands then have
        zeros after the last word, up to whole groups of 16 words.
    """

    terms: int
    word: ir.Type
    sums: ir.Type
    stored: ir.Type
    order: tuple[int, ...]
    number: ir.Type
    vectors_per_word: int
    unpacked: Callable[[Code, ir.Value], list[ir.Value]]
    multiply_add: Callable[[Code, ir.Value, ir.Value, ir.Value], ir.Value]
    shift: int = 0
    by_matrix: bool = False

    def word_count(self, terms: int) -> int:
        """Returns the number of packed words, of `self.terms` elements each, for `terms` elements of k."""
        return -(-terms // self.terms)

    def left_size(self, terms: int, width: int) -> int:
        """Returns the bytes in memory of a left operand (the row that a matrix is multiplied by) of `terms`
        elements, padded to full vectors of `width` elements and to all that one instruction multiplies
        together.
        """
        return max(-(-terms // width) * width, self.padded(terms)) * bytes_of(self.stored)

    def padded(self, terms: int) -> int:
        """Rounds `terms` up to what one instruction multiplies: a word, or 16 words by matrices."""
        together = self.terms * (WORDS if self.by_matrix else 1)
        return -(-terms // together) * together

    @property
    def heads(self) -> int:
        """The number of vectors that precede the packed words (elements that one instruction multiplies
        together) of each gate (one of the products computed together, as for a GRU): for int8 one of initial
        sums and one of scales; 0 for other encodings (a word of int8 has 4 terms).
        """
        return HEADS if self.terms == 4 else 0

    @property
    def word_bytes(self) -> int:
        """The bytes of a word of packed parameters, which holds `terms` elements of the summed axis k."""
        return bytes_of(self.word)

    @property
    def left_bytes(self) -> int:
        """The bytes of a word of the left operand, which holds `terms` elements of the summed axis k."""
        return self.vectors_per_word * bytes_of(self.number)


def bytes_of(type_: ir.Type) -> int:
    """Returns the bytes of a value of a scalar LLVM type."""
    return type_.width // 8 if isinstance(type_, ir.IntType) else 8 if isinstance(type_, ir.DoubleType) else 4


def arithmetic(weights: str | None, dtype: str, width: int, processor: Processor) -> Arithmetic:
    """Chooses the arithmetic of products: how left operands and weights are stored and multiplied.

    weights: the encoding, "int8", "bfloat16", "stored" or "stored_int8"; None for plain values of `dtype`.
    width: the number of words in a vector.
    processor: the processor, whose instructions for bfloat16 and int8 are used if there are any.
    """
    if weights is None:
        return plain(dtype)
    return next(row.arithmetic for row in ROWS if row.applies(weights, 32 * width, processor))


# ---- plain values ------------------------------------------------------------------------------------------


def unchanged_words(code: Code, words: ir.Value) -> list[ir.Value]:
    """Returns a list of the packed words: a word of plain values has one value, so nothing is unpacked."""
    return [words]


def multiply_add(code: Code, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Computes a * b + c for vectors or scalars of floats (fused, if possible) or integers."""
    return code.fused(a, b, c) if is_float(a) else code.add(code.mul(a, b), c)


def plain(dtype: str) -> Arithmetic:
    """Makes the arithmetic of products of plain (not encoded) values of a dtype, one value per word."""
    number = register_type(dtype, 1)
    return Arithmetic(1, number, number, number, (0,), number, 1, unchanged_words, multiply_add)


# ---- bfloat16 ----------------------------------------------------------------------------------------------


def multiply_pairs(code: Code, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Adds the two products of each pair of bfloat16 (32-bit words of a and b) to c, by one instruction."""
    name = f"llvm.x86.avx512bf16.dpbf16ps.{32 * width_of(c)}"
    return code.function_call(name, c.type, [c, a, b])


def widened_pair(code: Code, words: ir.Value) -> list[ir.Value]:
    """Splits a vector of bfloat16 pairs: the second elements, then the first ones, as vectors of float32.

    It is the order in which vdpbf16ps, the instruction for pairs, adds: so both give the same bits.
    """
    upper = code.and_(words, code.splat(words.type, 0xFFFF0000))
    lower = code.shl(words, code.splat(words.type, 16))
    return [single_of(code, upper), single_of(code, lower)]


def widened_in_order(code: Code, words: ir.Value) -> list[ir.Value]:
    """Splits a vector of bfloat16 pairs: the first elements, then the second ones, as vectors of float32. So
    terms are added in the order in which plain float32 parameters would be.
    """
    return widened_pair(code, words)[::-1]


# ---- int8 --------------------------------------------------------------------------------------------------

MULTIPLY_ADD = {
    128: "llvm.x86.sse2.pmadd.wd",
    256: "llvm.x86.avx2.pmadd.wd",
    512: "llvm.x86.avx512.pmaddw.d.512",
}
"""The instruction that multiplies int16 and adds pairs of products, by the bits of a vector."""


def multiply_quads(code: Code, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Adds the four products of each word, uint8 (a) by int8 (b), to the int32 sums c, by one instruction."""
    name = f"llvm.x86.avx512.vpdpbusd.{32 * width_of(c)}"
    return code.function_call(name, c.type, [c, a, b])


def split_quad(code: Code, words: ir.Value) -> list[ir.Value]:
    """Splits words of four int8 into elements 0 and 2, and 1 and 3, as int16, whose pairs x86 multiplies."""
    halves = code.bitcast(words, ir.VectorType(I16, 2 * width_of(words)))
    eight = code.splat(halves.type, 8)
    return [code.ashr(code.shl(halves, eight), eight), code.ashr(halves, eight)]


def multiply_halves(code: Code, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
    """Adds the two products of each pair of int16 (32-bit words of a and b) to the int32 sums c."""
    name = MULTIPLY_ADD[32 * width_of(c)]
    return code.add(c, code.function_call(name, c.type, [code.bitcast(a, b.type), b]))


def widened_quad(code: Code, words: ir.Value) -> list[ir.Value]:
    """Splits a vector of words (32 bits) of four int8 into their four elements, as four vectors of int32. It
    is for processors without an instruction that multiplies such words.
    """
    last = code.splat(words.type, 24)
    shifted = [code.shl(words, code.splat(words.type, 24 - 8 * index)) for index in range(3)]
    return [*(code.ashr(value, last) for value in shifted), code.ashr(words, last)]


def quad_of_floats(code: Code, words: ir.Value) -> list[ir.Value]:
    """Splits a vector of 32-bit words of four int8 into four vectors of float32, in order."""
    return [code.sitofp(numbers, like(numbers, F32)) for numbers in widened_quad(code, words)]


PAIRS = Arithmetic(2, I32, F32, I16, (0, 1), I32, 1, unchanged_words, multiply_pairs)
LONG_PAIRS = Arithmetic(2, I32, F32, I16, (0, 1), I32, 1, unchanged_words, multiply_long_pairs)
WIDENED_PAIRS = Arithmetic(2, I32, F32, F32, (1, 0), F32, 2, widened_pair, multiply_add)
STORED_PAIRS = Arithmetic(2, I32, F32, F32, (0, 1), F32, 2, widened_in_order, multiply_add)
QUADS = Arithmetic(4, I32, I32, I8, (0, 1, 2, 3), I32, 1, unchanged_words, multiply_quads, 128)
MATRIX_QUADS = replace(QUADS, by_matrix=True)
SIGNED_QUADS = Arithmetic(4, I32, I32, I8, (0, 1, 2, 3), I32, 1, unchanged_words, multiply_signed_quads)
SPLIT_QUADS = Arithmetic(4, I32, I32, I16, (0, 2, 1, 3), I32, 2, split_quad, multiply_halves)
WIDENED_QUADS = Arithmetic(4, I32, I32, I32, (0, 1, 2, 3), I32, 4, widened_quad, multiply_add)
STORED_QUADS = Arithmetic(4, I32, F32, F32, (0, 1, 2, 3), F32, 4, quad_of_floats, multiply_add)


@dataclass(frozen=True)
class Row:
    """Row of the table of arithmetics by instruction set.

    weights: the encoding of weights. arithmetic: how products of such weights are computed.
    feature: the feature that the processor must have, by LLVM's name; "" for none.
    bits: the sizes of vectors for which there is an instruction; None for any.
    processors: LLVM's names of the processors that the row is for; None for any.
    """

    weights: str
    arithmetic: Arithmetic
    feature: str = ""
    bits: Collection[int] | None = None
    processors: Collection[str] | None = None

    def applies(self, weights: str, bits: int, processor: Processor) -> bool:
        """Tells whether this row may compute products of such weights on a processor with these vectors."""
        has_bits = self.bits is None or bits in self.bits
        is_meant = self.processors is None or processor.cpu in self.processors
        has_feature = not self.feature or processor.has(self.feature)
        return self.weights == weights and has_bits and is_meant and has_feature


ARM_BITS = 128, 256, 512
"""The sizes of vectors of NEON and SVE for which code is generated."""
SLOW_PAIRS = "cooperlake", "sapphirerapids", "emeraldrapids", "graniterapids", "graniterapids-d"
"""Processors on which vdpbf16ps takes longer than two multiply-adds: about three times on Emerald Rapids."""
ROWS = (
    Row("bfloat16", WIDENED_PAIRS, processors=SLOW_PAIRS),
    Row("bfloat16", PAIRS, "avx512bf16", MULTIPLY_ADD),
    Row("bfloat16", LONG_PAIRS, "bf16", ARM_BITS),
    Row("bfloat16", WIDENED_PAIRS),
    Row("int8", MATRIX_QUADS, "amx-int8", (512,)),
    Row("int8", QUADS, "avx512vnni", MULTIPLY_ADD),
    Row("int8", QUADS, "avxvnni", (128, 256)),
    Row("int8", SIGNED_QUADS, "sve", (256, 512)),
    Row("int8", SIGNED_QUADS, "dotprod", (128,)),
    Row("int8", SPLIT_QUADS, "x86-64", MULTIPLY_ADD),
    Row("int8", WIDENED_QUADS),
    Row("stored", STORED_PAIRS),
    Row("stored_int8", STORED_QUADS),
)
"""The table of arithmetics by encoding and instruction set. The first row that applies is taken."""


# ---- packing of rows ---------------------------------------------------------------------------------------


def pack_words(code: Code, kind: Arithmetic, values: Sequence[ir.Value], *, is_left: bool) -> ir.Value:
    """Writes code that packs rows into words (what one multiplication takes): the elements of two rows as
    pairs of bfloat16, or a single row unchanged, if a word has one element (`kind.terms` is 1). Returns the
    words.

    values: the elements of each row, as a vector or scalar.
    is_left: whether the words are those of a left operand, which some arithmetics store as float32.
    """
    if kind.terms == 1:
        return values[0]
    low, high = (rounded_bfloat16(code, value) for value in values)
    if is_left and kind.stored == F32:
        return alternating(code, widened_bfloat16(code, high), widened_bfloat16(code, low))
    low, high = (code.zext(half, like(half, I32)) for half in (low, high))
    return code.or_(low, code.shl(high, code.splat(high.type, 16)))


def alternating(code: Code, first: ir.Value, second: ir.Value) -> ir.Value:
    """Interleaves the elements of two vectors or scalars of float32: first, second, first, ..."""
    width = width_of(first)
    if width == 1:
        first, second = (code.bitcast(value, ir.VectorType(F32, 1)) for value in (first, second))
    order = [index + side * width for index in range(width) for side in range(2)]
    return code.shuffle_vector(first, second, ir.Constant(ir.VectorType(I32, len(order)), order))


NARROW = {bits: f"llvm.x86.avx512bf16.cvtneps2bf16.{bits}" for bits in (256, 512)}
"""The instruction that rounds float32 to bfloat16, by the bits of a vector. It flushes subnormals to zero."""


# ---- left sides --------------------------------------------------------------------------------------------


def left_layout(code: Code, kind: Arithmetic, values: ir.Value) -> ir.Value:
    """Converts a vector of a left operand to the form in which it is stored in memory, with the elements of
    each word in `kind.order`.

    values: float32, which is rounded to bfloat16 if the left side is encoded, or the integers of int8 as
        int32.
    """
    if is_float(values) and kind.stored == I16:
        name = NARROW.get(32 * width_of(values)) if kind is PAIRS else None
        half = ir.VectorType(I16, width_of(values))
        values = code.function_call(name, half, [values]) if name else rounded_bfloat16(code, values)
    elif kind is WIDENED_PAIRS:
        values = widened_bfloat16(code, rounded_bfloat16(code, values))
    elif kind.stored != I32:
        values = code.trunc(values, ir.VectorType(kind.stored, width_of(values)))
    if kind.order == tuple(range(kind.terms)):
        return values
    order = [first + index for first in range(0, width_of(values), kind.terms) for index in kind.order]
    return code.shuffle_vector(values, values, ir.Constant(ir.VectorType(I32, len(order)), order))
