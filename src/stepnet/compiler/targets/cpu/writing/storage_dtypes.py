"""Casts between float32 and the 16-bit storage dtypes, which registers hold as integers with their bits.

    bfloat16    the upper half of a float32                                 8 bits of exponent, 7 of mantissa
    float16     IEEE's half: by instruction, or by what is done to its bits 5 bits of exponent, 10 of mantissa

Both are rounded to the nearest number, of two the even one, once: a float64 goes by way of a float32 that
keeps, in its last bit, whether anything was lost. A NaN stays one, quiet and of its sign.
"""

from collections.abc import Callable

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I16, I32, Code, is_single, register_type, width_of
from stepnet.compiler.values.records import dataclass

ABSOLUTE, INFINITY = 0x7FFFFFFF, 0x7F800000


@dataclass(frozen=True)
class Stored:
    """Code of the casts of a 16-bit dtype: from its bits to float32, and from floats to its bits."""

    widened: Callable[[Code, ir.Value], ir.Value]
    rounded: Callable[[Code, ir.Value], ir.Value]


def like(value: ir.Value, element: ir.Type) -> ir.Type:
    """Returns the LLVM type with elements of the type `element`, as many as `value` has."""
    width = width_of(value)
    return element if width == 1 else ir.VectorType(element, width)


def bits_of(code: Code, value: ir.Value) -> ir.Value:
    """Writes code that takes the bits of float32, scalar or vector, as 32-bit integers."""
    return code.bitcast(value, like(value, I32))


def single_of(code: Code, bits: ir.Value) -> ir.Value:
    """Writes code that takes 32-bit integers, scalar or vector, as the bits of float32."""
    return code.bitcast(bits, register_type("float32", width_of(bits)))


def single(code: Code, value: ir.Value) -> ir.Value:
    """Writes code that converts floats to float32 for further rounding to 16 bits, with the result of a
    single rounding: float64 is rounded to odd (toward zero, then the last bit set if it is inexact; S. Boldo
    and G. Melquiond).
    """
    if is_single(value.type):
        return value
    near = code.fptrunc(value, register_type("float32", width_of(value)))
    back, bits = code.fpext(near, value.type), bits_of(code, near)
    one = code.splat(bits.type, 1)
    beyond = code.fcmp_ordered(
        ">", code.intrinsic("fabs", value.type, [back]), code.intrinsic("fabs", value.type, [value])
    )
    toward_zero = code.select(beyond, code.sub(bits, one), bits)
    exact = code.fcmp_unordered("==", back, value)
    return single_of(code, code.select(exact, bits, code.or_(toward_zero, one)))


def widened_bfloat16(code: Code, value: ir.Value) -> ir.Value:
    """Writes a cast of bfloat16, given as 16-bit integers, to float32: they become its upper half."""
    bits = code.zext(value, like(value, I32))
    return single_of(code, code.shl(bits, code.splat(bits.type, 16)))


def rounded_bfloat16(code: Code, value: ir.Value) -> ir.Value:
    """Writes a cast of floats to the nearest bfloat16, as 16-bit integers; NaN becomes the NaN of NumPy."""
    value = single(code, value)
    bits = bits_of(code, value)

    def number(constant: int) -> ir.Constant:
        """Makes a vector of this integer constant, with as many elements as the floats have."""
        return code.splat(bits.type, constant)

    odd = code.and_(code.lshr(bits, number(16)), number(1))
    near = code.add(bits, code.add(odd, number(0x7FFF)))
    sign = code.and_(bits, number(0x80000000))
    rounded = code.select(code.fcmp_unordered("uno", value, value), code.or_(sign, number(0x7FC00000)), near)
    return code.trunc(code.lshr(rounded, number(16)), like(value, I16))


def widened_float16(code: Code, value: ir.Value) -> ir.Value:
    """Writes a cast of float16, given as 16-bit integers, to float32: by an instruction if the processor has
    it, else by integer operations on normal, subnormal and special numbers.
    """
    if code.processor.has_half:
        half = code.bitcast(value, like(value, ir.HalfType()))
        return code.fpext(half, register_type("float32", width_of(value)))
    half = code.zext(value, like(value, I32))

    def number(constant: int) -> ir.Constant:
        """Makes a vector of this integer constant, with as many elements as the float16 have."""
        return code.splat(half.type, constant)

    size = code.and_(half, number(0x7FFF))
    sign = code.shl(code.and_(half, number(0x8000)), number(16))
    shifted = code.shl(size, number(13))
    normal = code.add(shifted, number((127 - 15) << 23))
    special = code.or_(shifted, number(INFINITY))
    is_signalling = code.icmp_unsigned(">", size, number(0x7C00))
    special = code.select(is_signalling, code.or_(special, number(0x400000)), special)
    count = code.sitofp(size, register_type("float32", width_of(value)))
    small = bits_of(code, code.fmul(count, code.splat(count.type, 2.0**-24)))
    absolute = code.select(code.icmp_unsigned("<", size, number(0x0400)), small, normal)
    absolute = code.select(code.icmp_unsigned("<", size, number(0x7C00)), absolute, special)
    return single_of(code, code.or_(absolute, sign))


def rounded_float16(code: Code, value: ir.Value) -> ir.Value:
    """Writes a cast of floats to the nearest float16, as 16-bit integers: by an instruction if the processor
    has it, else by integer operations on normal, subnormal and special numbers.
    """
    value = single(code, value)
    if code.processor.has_half:
        return code.bitcast(code.fptrunc(value, like(value, ir.HalfType())), like(value, I16))
    bits = bits_of(code, value)

    def number(constant: int) -> ir.Constant:
        """Makes a vector of this integer constant, with as many elements as the floats have."""
        return code.splat(bits.type, constant)

    size = code.and_(bits, number(ABSOLUTE))
    sign = code.and_(code.lshr(bits, number(16)), number(0x8000))
    odd = code.and_(code.lshr(size, number(13)), number(1))
    biased = code.sub(size, number((127 - 15) << 23))
    normal = code.lshr(code.add(biased, code.add(odd, number(0xFFF))), number(13))
    # Adding 0.5 rounds a subnormal float16 to its last bit, which is as large as the last bit of 0.5.
    small = code.fadd(single_of(code, size), code.splat(value.type, 0.5))
    small = code.sub(bits_of(code, small), number(0x3F000000))
    payload = code.and_(code.lshr(size, number(13)), number(0x3FF))
    special = code.select(
        code.icmp_unsigned(">", size, number(INFINITY)), code.or_(payload, number(0x7E00)), number(0x7C00)
    )
    absolute = code.select(code.icmp_unsigned("<", size, number((127 - 14) << 23)), small, normal)
    absolute = code.select(code.icmp_unsigned("<", size, number((127 + 16) << 23)), absolute, special)
    return code.trunc(code.or_(absolute, sign), like(value, I16))


STORED = {
    "float16": Stored(widened_float16, rounded_float16),
    "bfloat16": Stored(widened_bfloat16, rounded_bfloat16),
}
