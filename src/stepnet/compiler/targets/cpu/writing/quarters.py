"""The argument reduction of sin, cos and tan: an angle as a multiple of π/2 and a remainder.

    x = quarter π/2 + high + low,  |high| <= π/4 or barely more

For |x| up to 2^20, π/2 is split into parts of 33 bits, so that quarter * part is exact (Cody and Waite,
Software Manual for the Elementary Functions, 1980). For larger |x|, the fraction of x 2/π is computed in
integers from the relevant bits of 2/π (Payne and Hanek, SIGNUM Newsletter 18, 1983). A function of the module
does that element by element; it is called only if a register holds such a number. The bits of an element do
not depend on the other elements.
"""

from fractions import Fraction
from functools import cache
from itertools import pairwise
from math import inf
from typing import NamedTuple

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import I1, I64, POINTER, Code, mangled, register_type, width_of
from stepnet.compiler.targets.cpu.writing.maths import as_integer, magnitude
from stepnet.compiler.targets.cpu.writing.powers import Pair, ordered_sum, times

LARGEST = 2.0**20
"""Up to this angle, the number of quarters times a part of π/2 is exact."""

PART_BITS = 33
I128 = ir.IntType(128)

DIGITS = 1400
"""The computed bits of π: the largest double is below 2^1024, and 190 further bits are relevant."""

ZEROS = 64
"""Zero bits ahead of those of 2/π: for the smallest arguments, the window begins before the binary point."""

WORDS = 21
FUNCTION, TABLE = "stepnet.quarters", "stepnet.two_over_pi"


class ReducedAngle(NamedTuple):
    """Angle as `quarter` π/2 + `high` + `low`; only the two lowest bits of `quarter` count."""

    quarter: ir.Value
    high: ir.Value
    low: ir.Value


def reduced_angle(code: Code, x: ir.Value, single: bool) -> ReducedAngle:
    """Writes code that reduces angles x, in float64, to a multiple of π/2 and a remainder, for sin, cos and
    tan. The slow method for angles beyond `LARGEST` runs only if one of the vector's elements is such an
    angle. single: whether the remainder is needed to float32 precision only, in `high`.
    """
    size = magnitude(code, x)
    large = code.fcmp_ordered(">", size, code.splat(x.type, LARGEST))
    large = code.and_(large, code.fcmp_ordered("<", size, code.splat(x.type, inf)))
    fast = (reduce_small_single if single else reduce_small)(code, x)
    any_large = large
    if isinstance(large.type, ir.VectorType):
        any_large = code.function_call(f"llvm.vector.reduce.or.{mangled(large.type)}", I1, [large])
    before = code.block
    with code.when(any_large):
        slow = reduce_large(code, x, fast)
        inside = code.block
    return ReducedAngle(*(phi_of_two(code, a, before, b, inside) for a, b in zip(fast, slow, strict=True)))


def phi_of_two(code: Code, value: ir.Value, block: ir.Block, other: ir.Value, inside: ir.Block) -> ir.Value:
    """Writes a phi node: `value` if control comes from `block`, `other` from `inside`."""
    phi = code.phi(value.type)
    phi.add_incoming(value, block)
    phi.add_incoming(other, inside)
    return phi


# ---- ordinary angles ---------------------------------------------------------------------------------------


def nearest_quarter(code: Code, x: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Writes code for the number n of quarter turns (π/2) nearest to x: an integer, and -n as a float."""
    # Adding this number rounds the other operand to an integer, which is in the low bits of the sum.
    rounder = code.splat(x.type, 1.5 * 2.0**52)
    shifted = code.fused(x, code.splat(x.type, float(2 / pi())), rounder)
    return as_integer(code, shifted), code.fsub(rounder, shifted)


def reduce_small(code: Code, x: ir.Value) -> ReducedAngle:
    """Writes code that reduces angles, in float64 and up to `LARGEST`, to a multiple of π/2 and a remainder.
    The results for larger ones are wrong. Float64 angles come as near as 2^-60 to such a multiple.
    """
    quarter, minus_quarter = nearest_quarter(code, x)
    first, second, third, rest = (code.splat(x.type, float(term)) for term in half_pi_parts(3))
    remainder = code.fused(minus_quarter, first, x)  # exact, as are the next two products
    remainder, lost = exact_sum(code, remainder, code.fmul(minus_quarter, second))
    remainder, lost_again = exact_sum(code, remainder, code.fmul(minus_quarter, third))
    low = code.fused(minus_quarter, rest, code.fadd(lost, lost_again))
    return ReducedAngle(quarter, *ordered_sum(code, remainder, low))


def reduce_small_single(code: Code, x: ir.Value) -> ReducedAngle:
    """Writes code that reduces angles, in float64 but converted from float32 and up to `LARGEST`, to a number
    of quarter turns and a remainder. At this precision the remainder is a single float64.
    """
    quarter, minus_quarter = nearest_quarter(code, x)
    first, rest = (code.splat(x.type, float(term)) for term in half_pi_parts(1))
    high = code.fused(minus_quarter, rest, code.fused(minus_quarter, first, x))
    return ReducedAngle(quarter, high, code.splat(x.type, 0.0))


def exact_sum(code: Code, a: ir.Value, b: ir.Value) -> Pair:
    """Writes code for a + b as a float and its exact rounding error, for any sizes (Knuth, TAOCP 4.2.2)."""
    total = code.fadd(a, b)
    of_b = code.fsub(total, a)
    return Pair(total, code.fadd(code.fsub(a, code.fsub(total, of_b)), code.fsub(b, of_b)))


# ---- large angles ------------------------------------------------------------------------------------------


def reduce_large(code: Code, x: ir.Value, fast: ReducedAngle) -> ReducedAngle:
    """Writes a call that reduces the large angles (beyond `LARGEST`) of a register again, exactly; returns
    all reduced angles.

    fast: all angles as reduced by the fast method, which is right for the small ones.
    """
    with code.goto_entry_block():
        slots = [code.alloca(value.type) for value in (x, *fast)]
    for value, slot in zip((x, *fast), slots, strict=True):
        code.store(value, slot)
    code.call(large_angle_function(code), [*slots, code.number(width_of(x))])
    return ReducedAngle(*(code.load(slot) for slot in slots[1:]))


def large_angle_function(code: Code) -> ir.Function:
    """Returns the LLVM function that reduces the large angles of an array, written at its first use in a
    module. Its arguments are addresses of arrays of 64-bit elements, and their length: the angles x, then the
    results quarter, high and low: x = quarter π/2 + high + low. Results are written only for finite angles
    beyond `LARGEST`; the others stay unchanged.
    """
    known = code.module.globals.get(FUNCTION)
    if known is not None:
        return known
    type_ = ir.FunctionType(ir.VoidType(), [POINTER] * 4 + [I64])
    function = ir.Function(code.module, type_, FUNCTION)
    function.linkage = "internal"
    x, *results, count = function.args
    inner = Code(function.append_basic_block("entry"), code.processor)
    with inner.loop(inner.number(0), count) as element:
        offset = inner.mul(element, inner.number(8))
        number = inner.read(register_type("float64", 1), inner.at(x, offset), 8)
        size = magnitude(inner, number)
        above = inner.fcmp_ordered(">", size, inner.splat(size.type, LARGEST))
        with inner.when(inner.and_(above, inner.fcmp_ordered("<", size, inner.splat(size.type, inf)))):
            for value, result in zip(reduce_one_large(inner, number), results, strict=True):
                inner.write(value, inner.at(result, offset), 8)
    inner.ret_void()
    return function


def reduce_one_large(code: Code, x: ir.Value) -> ReducedAngle:
    """Writes code that reduces one angle beyond `LARGEST` to a multiple of π/2 and a remainder. x = m 2^e,
    with an integer m of 53 bits. Bits of 2/π that times x are multiples of 4 are left out; of 192 bits from
    there on the product with m is taken modulo 4, and of that the first 128 bits.
    """
    bits = as_integer(code, x)
    exponent = code.and_(code.lshr(bits, code.number(52)), code.number(2047))
    fraction = code.or_(code.and_(bits, code.number(2**52 - 1)), code.number(2**52))
    m = code.zext(fraction, I128)
    first, second, third = (
        code.zext(word, I128) for word in window(code, code.sub(exponent, code.number(1077 - ZEROS)))
    )
    shift = ir.Constant(I128, 64)
    product = code.add(code.mul(m, second), code.lshr(code.mul(m, third), shift))
    product = code.add(code.shl(code.mul(m, first), shift), product)
    nearest = code.add(product, ir.Constant(I128, 2**125))
    quarter = code.trunc(code.lshr(nearest, ir.Constant(I128, 126)), I64)
    remainder, is_below = size_and_sign(code, code.shl(product, ir.Constant(I128, 2)))
    half_pi = pi() / 2
    high_part = float(half_pi)
    terms = Pair(code.splat(x.type, high_part), code.splat(x.type, float(half_pi - Fraction(high_part))))
    high, low = times(code, as_pair(code, remainder), terms)
    total = ordered_sum(code, high, low)
    is_negative = code.icmp_signed("<", bits, code.number(0))
    quarter = code.select(is_negative, code.neg(quarter), quarter)
    turned_back = code.xor(is_negative, is_below)
    return ReducedAngle(quarter, *(code.select(turned_back, code.fneg(term), term) for term in total))


def window(code: Code, first: ir.Value) -> list[ir.Value]:
    """Writes a load of 192 bits of the table of 2/π, from bit `first` on, as three words of 64 bits: they lie
    in four words of the table, and are shifted.
    """
    table = bits_of_two_over_pi(code.module)
    word = code.lshr(first, code.number(6))
    shift = code.and_(first, code.number(63))
    words = [code.read_number(table, code.add(word, code.number(index))) for index in range(4)]
    return [code.intrinsic("fshl", I64, [a, b, shift]) for a, b in pairwise(words)]


def size_and_sign(code: Code, value: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Writes code for the magnitude of a 128-bit integer, and for whether it is negative."""
    is_below = code.icmp_signed("<", value, ir.Constant(I128, 0))
    return code.select(is_below, code.neg(value), value), is_below


def as_pair(code: Code, value: ir.Value) -> Pair:
    """Writes code that divides a 128-bit integer, which is not 0, by 2^128. Returns the quotient as the sum
    of two float64: its leading 53 bits, and the 53 bits that follow.
    """
    zeros = code.function_call("llvm.ctlz.i128", I128, [value, ir.Constant(I1, 0)])
    first = code.shl(value, zeros)
    high = code.trunc(code.lshr(first, ir.Constant(I128, 75)), I64)
    low = code.and_(code.trunc(code.lshr(first, ir.Constant(I128, 22)), I64), code.number(2**53 - 1))
    type_ = register_type("float64", 1)
    scale = code.shl(code.sub(code.number(1023 - 53), code.trunc(zeros, I64)), code.number(52))
    unit = code.bitcast(scale, type_)
    lower = code.fmul(unit, code.splat(type_, 2.0**-53))
    return Pair(code.fmul(code.sitofp(high, type_), unit), code.fmul(code.sitofp(low, type_), lower))


def bits_of_two_over_pi(module: ir.Module) -> ir.Value:
    """Returns the module's table of the bits of 2/π, after `ZEROS` zero bits, in words of 64 bits, most
    significant first. It is added to the module at first use.
    """
    known = module.globals.get(TABLE)
    if known is not None:
        return known
    shift = 64 * WORDS - ZEROS
    two_over_pi = int(2 / pi() * 2**shift)
    words = [two_over_pi >> 64 * index & (2**64 - 1) for index in reversed(range(WORDS))]
    type_ = ir.ArrayType(I64, WORDS)
    table = ir.GlobalVariable(module, type_, TABLE)
    table.initializer = ir.Constant(type_, [ir.Constant(I64, word) for word in words])
    table.linkage, table.global_constant = "internal", True
    return table


# ---- π -----------------------------------------------------------------------------------------------------


@cache
def pi() -> Fraction:
    """Computes π to `DIGITS` bits: 16 arctan(1/5) - 4 arctan(1/239) (Machin, 1706)."""
    return Fraction(16 * arctan_of_inverse(5) - 4 * arctan_of_inverse(239), 2 ** (DIGITS + 32))


def arctan_of_inverse(n: int) -> int:
    """Computes arctan(1/n) 2^(DIGITS + 32) as an integer, by its power series. 32 bits more than wanted leave
    room for rounding errors.
    """
    power, total, k = 2 ** (DIGITS + 32) // n, 0, 0
    while power:
        total += (-1) ** k * (power // (2 * k + 1))
        power, k = power // n**2, k + 1
    return total


@cache
def half_pi_parts(count: int) -> tuple[Fraction, ...]:
    """Splits π/2 into `count` numbers of few bits, whose products with numbers of quarter turns are exact,
    and the rest. Their sum is π/2.
    """
    terms: list[Fraction] = []
    remainder, index = pi() / 2, PART_BITS - 1
    for _ in range(count):
        terms.append(Fraction(int(remainder * 2**index), 2**index))
        remainder, index = remainder - terms[-1], index + PART_BITS
    return (*terms, remainder)
