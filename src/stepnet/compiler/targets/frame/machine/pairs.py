"""Products of int8 two at a time, by instructions that multiply 16-bit integers and add pairs of products.

rows k, k + 1 of eight columns    a0 a1 ... a7  b0 b1 ... b7
interleaved, as 16-bit integers   a0 b0 a1 b1 ... a7 b7
times x0 x1 x0 x1 ...             a0 x0 + b0 x1, a1 x0 + b1 x1, ...      exact in 32 bits
"""

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I8, I16, I32, lane_indices, vector_of
from stepnet.compiler.targets.frame.machine.instructions import FrameCode

WIDTH = 8
"""The 16-bit integers of a vector, and the columns of a row."""


def pair_of(code: FrameCode, first: ir.Value, second: ir.Value) -> ir.Value:
    """Writes code that makes a word of two integers of at most 16 bits, widened."""
    low = code.zext(code.sext(first, I16) if first.type != I16 else first, I32)
    return code.or_(low, code.shl(code.sext(second, I32), ir.Constant(I32, 16)))


def spread_pair(code: FrameCode, first: ir.Value, second: ir.Value) -> ir.Value:
    """Writes code that makes a vector of 16-bit integers: two numbers of int8, widened, in turn."""
    return code.bitcast(code.spread(pair_of(code, first, second), WIDTH // 2), vector_of(I16, WIDTH))


def pair_products(code: FrameCode, dot: str, pair: ir.Value, address: ir.Value) -> ir.Value:
    """Writes the products of a pair of integers with two rows of weights, added: eight sums of 32 bits.

    dot: the intrinsic of LLVM that multiplies and adds pairs. address: that of the rows, side by side.
    """
    rows = code.read(vector_of(I8, 2 * WIDTH), address, 1)
    order = [row * WIDTH + column for column in range(WIDTH) for row in range(2)]
    turned = code.shuffle_vector(rows, rows, ir.Constant(vector_of(I32, 2 * WIDTH), order))
    wide = code.sext(turned, vector_of(I16, 2 * WIDTH))
    sums = vector_of(I32, WIDTH // 2)
    halves = [code.function_call(dot, sums, [code.slice(wide, first, WIDTH), pair]) for first in (0, WIDTH)]
    return code.shuffle_vector(halves[0], halves[1], lane_indices(0, WIDTH))
