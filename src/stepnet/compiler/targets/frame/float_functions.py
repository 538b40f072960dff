"""Routines of floats: elementary functions, powers with constant exponents, and remainders.

A remainder is exact, as that of C's `fmod`. It is computed with the mantissas p and q as integers:

    p 2^d mod q = (p mod q) (2^d mod q) mod q        d: the difference of the exponents, from 0 on

where 2^d mod q is squared, and doubled, for each bit of d from the first on.
"""

from functools import cache
from math import nan
from typing import Any, NamedTuple, cast

from stepnet.compiler.targets.cpu.writing.elementary import ELEMENTARY
from stepnet.compiler.targets.cpu.writing.powers import power
from stepnet.compiler.targets.frame.angles import cos, sin, tan
from stepnet.compiler.targets.frame.program import Routine
from stepnet.compiler.targets.frame.recorder import FMODS, FrameRegister, Recorder

FUNCTIONS: dict[str, Any] = {**ELEMENTARY, "sin": sin, "cos": cos, "tan": tan}
"""The elementary functions by the names of their operations."""


class FloatForm(NamedTuple):
    """The form of a dtype. integer: the dtype of its bits. fraction_bits, exponent_bits: the bits of both
    parts. bias: the exponent of 1.
    """

    integer: str
    fraction_bits: int
    exponent_bits: int
    bias: int


FORMS = {"float32": FloatForm("int32", 23, 8, 127), "float64": FloatForm("int64", 52, 11, 1023)}


@cache
def routine_of(operation: str, dtype: str, exponent: float | None = None) -> Routine:
    """Returns the routine of an elementary function, or of a power with a constant exponent.

    >>> routine_of("sigmoid", "float32").name, len(routine_of("sigmoid", "float32").body)
    ('sigmoid_f32', 43)
    """
    code, x = Recorder(1), FrameRegister(0, dtype)
    name = f"{operation}_{dtype[0]}{dtype[-2:]}"
    if exponent is None:
        result = FUNCTIONS[operation](code, x)
    else:
        result = cast("Any", power)(code, x, exponent)
        name += "_" + f"{exponent:g}".replace("-", "minus_").replace(".", "_").replace("+", "")
    return code.routine(name, result)


@cache
def fmod_routine(dtype: str = "float32") -> Routine:
    """Returns the routine of x - trunc(x / y) y, which is exact.

    >>> fmod_routine().name, fmod_routine("float64").parameters
    ('fmod_f32', ('float64', 'float64'))
    """
    form, code = FORMS[dtype], Recorder(2)
    x, y = FrameRegister(0, dtype), FrameRegister(1, dtype)
    sizes = [code.record("absolute", dtype, each) for each in (x, y)]
    (above, first), (below, second) = (parts(code, each) for each in sizes)
    zero, one = code.constant("int64", 0), code.constant("int64", 1)
    divisor = code.select(code.icmp_signed("==", below, zero), one, below)
    rest, power = code.sub(first, second), code.srem(one, divisor)
    rest = code.select(code.icmp_signed("<", rest, zero), zero, rest)
    for place in reversed(range(form.exponent_bits)):
        bit = code.and_(code.lshr(rest, code.constant("int64", place)), one)
        power = product_modulo(code, power, code.shl(power, bit), divisor, dtype)
    left = product_modulo(code, code.srem(above, divisor), power, divisor, dtype)
    number, half = code.record("convert", dtype, left), code.lshr(second, one)
    lowest = form.bias + form.fraction_bits
    for part, down in ((half, lowest // 2), (code.sub(second, half), lowest - lowest // 2)):
        number = code.fmul(number, two_to(code, code.sub(part, code.constant("int64", down)), dtype))
    number = code.select(code.fcmp_ordered("<", *sizes), sizes[0], number)
    number = code.record("copysign", dtype, number, x)
    zero_or_nan = code.fsub(x, x)
    is_known = code.and_(
        code.fcmp_ordered("==", zero_or_nan, code.constant(dtype, 0.0)),
        code.fcmp_ordered(">", sizes[1], code.constant(dtype, 0.0)),
    )
    result = code.select(is_known, number, code.constant(dtype, nan))
    return code.routine(FMODS[dtype], result)


def product_modulo(
    code: Recorder, a: FrameRegister, b: FrameRegister, divisor: FrameRegister, dtype: str
) -> FrameRegister:
    """Records a b modulo a divisor, of mantissas of a dtype as whole numbers; b is below twice the divisor.

    Products of those of float64 wrap around. There a quotient in float64 is at most 5 away from the true one,
    so the difference from its product is small, and exact.
    """
    product = code.mul(a, b)
    if dtype == "float64":
        x, y, z = (code.record("convert", dtype, each) for each in (a, b, divisor))
        quotient = code.record("convert", "int64", code.fdiv(code.fmul(x, y), z))
        product = code.sub(product, code.mul(quotient, divisor))
    left = code.srem(product, divisor)
    if dtype == "float64":
        below = code.icmp_signed("<", left, code.constant("int64", 0))
        left = code.select(below, code.add(left, divisor), left)
    return left


def parts(code: Recorder, size: FrameRegister) -> tuple[FrameRegister, FrameRegister]:
    """Records the mantissa of a magnitude as a whole number, and its exponent, from 1 on: the number is the
    mantissa times 2^(exponent - bias - fraction bits).
    """
    form = FORMS[size.dtype]
    bits = code.record("bits", form.integer, size)
    bits = bits if form.integer == "int64" else code.record("convert", "int64", bits)
    exponent = code.lshr(bits, code.constant("int64", form.fraction_bits))
    fraction = code.and_(bits, code.constant("int64", 2**form.fraction_bits - 1))
    is_small = code.icmp_signed("==", exponent, code.constant("int64", 0))
    whole = code.or_(fraction, code.constant("int64", 2**form.fraction_bits))
    one = code.constant("int64", 1)
    return code.select(is_small, fraction, whole), code.select(is_small, one, exponent)


def two_to(code: Recorder, exponent: FrameRegister, dtype: str) -> FrameRegister:
    """Records 2^exponent in a dtype, which has it as a normal number."""
    form = FORMS[dtype]
    biased = code.add(exponent, code.constant("int64", form.bias))
    biased = biased if form.integer == "int64" else code.record("convert", form.integer, biased)
    bits = code.shl(biased, code.constant(form.integer, form.fraction_bits))
    return code.record("bits", dtype, bits)
