"""The remainder of two floats for a GPU, exact as that of C's fmod: LLVM's own is rounded.

x = a 2^i and y = b 2^j with integers a and b of a mantissa's bits. For i >= j the remainder is (a 2^(i-j)
mod b) 2^j, where the power of two is multiplied to `a` in pieces, and each product is reduced modulo b.
"""

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I64, Code
from stepnet.compiler.targets.cpu.writing.maths import as_integer, precision_of
from stepnet.compiler.targets.cuda.writer import SCALAR

REMAINDERS = {"fmodf": ir.FloatType(), "fmod": ir.DoubleType()}
"""The type of each of C's functions, by its name."""


def remainder(name: str) -> str:
    """Returns `fmod` or `fmodf` as LLVM code: the remainder of x / y, with the sign of x; NaN for y = 0, for
    an infinite x, and for NaN.
    """
    module, type_ = ir.Module(), REMAINDERS[name]
    function = ir.Function(module, ir.FunctionType(type_, [type_, type_]), name)
    code = Code(function.append_basic_block("entry"), SCALAR)
    precision = precision_of(type_)
    size = 8 * np.dtype(precision.dtype).itemsize
    hidden, infinity = 1 << precision.fraction_bits, (2 * precision.bias + 1) << precision.fraction_bits
    all_bits = [
        code.zext(as_integer(code, x), I64) if size < 64 else as_integer(code, x) for x in function.args
    ]
    sizes = [code.and_(bits, code.number((1 << (size - 1)) - 1)) for bits in all_bits]
    x_infinite = code.icmp_unsigned(">=", sizes[0], code.number(infinity))
    y_wrong = code.or_(
        code.icmp_unsigned(">", sizes[1], code.number(infinity)),
        code.icmp_unsigned("==", sizes[1], code.number(0)),
    )
    nothing = code.fsub(code.fmul(*function.args), code.fmul(*function.args))
    undefined = code.fdiv(nothing, nothing)
    code.return_when(code.or_(x_infinite, y_wrong), undefined)
    code.return_when(code.icmp_unsigned("<", *sizes), function.args[0])
    (a, i), (b, j) = (parts(code, bits, hidden, precision.fraction_bits) for bits in sizes)

    def step(left: ir.Value, rest: ir.Value) -> list[ir.Value]:
        """Writes a multiplication by as much of the power of two as fits, modulo b; returns both anew."""
        bits = code.smaller(left, code.number(63 - precision.fraction_bits - 1))
        return [code.sub(left, bits), code.urem(code.shl(rest, bits), b)]

    rest = code.urem(a, b)
    before, head, after = code.block, code.append_basic_block("turn"), code.append_basic_block("reduced")
    difference = code.sub(i, j)
    code.cbranch(code.icmp_signed(">", difference, code.number(0)), head, after)
    code.position_at_end(head)
    left, reduced = code.phi(I64), code.phi(I64)
    results = step(left, reduced)
    for phi, first, then in zip((left, reduced), (difference, rest), results, strict=True):
        phi.add_incoming(first, before)
        phi.add_incoming(then, code.block)
    code.cbranch(code.icmp_signed(">", results[0], code.number(0)), head, after)
    code.position_at_end(after)
    whole = code.phi(I64)
    whole.add_incoming(rest, before)
    whole.add_incoming(results[1], head)
    found = joined(code, whole, j, hidden, precision.fraction_bits)
    sign = code.and_(all_bits[0], code.number(1 << (size - 1) if size < 64 else -(1 << 63)))
    bits = code.or_(found, sign)
    code.ret(code.bitcast(code.trunc(bits, precision.integer) if size < 64 else bits, type_))
    return str(module)


def parts(code: Code, bits: ir.Value, hidden: int, fraction_bits: int) -> tuple[ir.Value, ir.Value]:
    """Writes code that takes the bits of |x| apart: the mantissa as an integer, and the exponent, from 1 on,
    which subnormal numbers have too.
    """
    exponent = code.lshr(bits, code.number(fraction_bits))
    fraction = code.and_(bits, code.number(hidden - 1))
    normal = code.icmp_unsigned("!=", exponent, code.number(0))
    mantissa = code.select(normal, code.or_(fraction, code.number(hidden)), fraction)
    return mantissa, code.select(normal, exponent, code.number(1))


def joined(code: Code, mantissa: ir.Value, exponent: ir.Value, hidden: int, fraction_bits: int) -> ir.Value:
    """Writes code for the bits of the float with a mantissa below 2 `hidden` and an exponent as `parts` has
    them: the mantissa is shifted up, as far as the exponent goes down to 1.
    """
    zeros = code.function_call("llvm.ctlz.i64", I64, [mantissa, ir.Constant(ir.IntType(1), 0)])
    to_hidden = code.sub(zeros, code.number(63 - fraction_bits))
    shift = code.smaller(to_hidden, code.sub(exponent, code.number(1)))
    shifted = code.shl(mantissa, shift)
    normal = code.icmp_unsigned(">=", shifted, code.number(hidden))
    biased = code.select(normal, code.sub(exponent, shift), code.number(0))
    top = code.shl(biased, code.number(fraction_bits))
    return code.or_(top, code.and_(shifted, code.number(hidden - 1)))
