"""sin, cos and tan of frames: angles of any size are reduced without a branch, in integers.

    x = m 2^q      x 2/pi = (m W) 2^(2 - bits) modulo 4
    W: bits of 2/pi, from the one of weight 2^(1 - q) on

Bits of 2/pi ahead of W give multiples of 4 quarter turns, and those behind it less than the result shows
(Payne and Hanek, SIGNUM Newsletter 18, 1983). W is shifted out of a table of words in registers. The rest
is as in `cpu/writing/trigonometry.py`.
"""

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, cast

from stepnet.compiler.targets.cpu.writing.powers import Pair, ordered_sum, times
from stepnet.compiler.targets.cpu.writing.quarters import ReducedAngle, pi
from stepnet.compiler.targets.cpu.writing.trigonometry import (
    cosine_of,
    has_bit,
    sine_of,
    total,
    unless_tiny,
)
from stepnet.compiler.targets.frame.recorder import FrameRegister, Recorder

WORD = 2**32 - 1


class AngleFormat(NamedTuple):
    """Sizes of the reduction of a dtype.

    fraction_bits, bias: of the dtype. zeros: the zero bits ahead of those of 2/pi, a multiple of 32, where
    the smallest angles begin that are not their own sine. words: those of W, of 32 bits.
    """

    fraction_bits: int
    bias: int
    zeros: int
    words: int

    @property
    def most(self) -> int:
        """The largest first bit of W."""
        return self.bias - self.fraction_bits - 2 + self.zeros

    @property
    def table(self) -> list[int]:
        """The words of 2/pi after the zeros, the most significant one first."""
        count = self.most // 32 + self.words + 1
        whole = int(2 / pi() * 2 ** (32 * count - self.zeros))
        return [whole >> 32 * place & WORD for place in reversed(range(count))]


FORMATS = {"float32": AngleFormat(23, 127, 64, 3), "float64": AngleFormat(52, 1023, 96, 6)}


class Words:
    """Whole numbers of 64 bits, as a recorder computes them. code: the recorder."""

    def __init__(self, code: Recorder) -> None:
        """Takes the recorder."""
        self.code = code

    def number(self, value: int) -> FrameRegister:
        """Records a constant."""
        return self.code.constant("int64", value)

    def low(self, x: FrameRegister) -> FrameRegister:
        """Records the lowest 32 bits of a number."""
        return self.code.and_(x, self.number(WORD))

    def right(self, x: FrameRegister, count: int) -> FrameRegister:
        """Records a shift to the right that fills with zeros."""
        return self.code.lshr(x, self.number(count))

    def total(self, terms: Sequence[FrameRegister]) -> FrameRegister:
        """Records a sum."""
        first, *rest = terms
        for term in rest:
            first = self.code.add(first, term)
        return first


def reduced(code: Recorder, x: FrameRegister) -> ReducedAngle:
    """Records the quarter turns of an angle, and the rest as a sum of two floats of its dtype."""
    format_, words = FORMATS[x.dtype], Words(code)
    integer = "int32" if x.dtype == "float32" else "int64"
    bits = code.record("convert", "int64", code.record("bits", integer, code.record("absolute", x.dtype, x)))
    exponent = words.right(bits, format_.fraction_bits)
    mantissa = code.and_(bits, words.number(2**format_.fraction_bits - 1))
    mantissa = code.or_(mantissa, words.number(2**format_.fraction_bits))
    first = code.add(exponent, words.number(format_.zeros - 2 - format_.bias - format_.fraction_bits))
    for sign, limit in (("<", 0), (">", format_.most)):
        beyond = code.icmp_signed(sign, first, words.number(limit))
        first = code.select(beyond, words.number(limit), first)
    product = low_product(words, mantissa, window(words, first, format_))
    top = code.add(product[0], words.number(2**29))
    is_below, quarter = code.fcmp_ordered("<", x, code.constant(x.dtype, 0.0)), words.right(top, 30)
    quarter = code.select(is_below, code.neg(quarter), quarter)
    rest = code.sub(code.and_(top, words.number(2**30 - 1)), words.number(2**29))
    pair = FRACTIONS[x.dtype](words, [rest, *product[1:]])
    high, low = (code.select(is_below, code.fneg(each), each) for each in pair)
    return ReducedAngle(*cast("Any", (quarter, high, low)))


def window(words: Words, first: FrameRegister, format_: AngleFormat) -> list[FrameRegister]:
    """Records the words of W, the most significant one first. first: the place of its first bit."""
    code, found = words.code, [words.number(word) for word in format_.table]
    place = words.right(first, 5)
    for step in (32, 16, 8, 4, 2, 1):
        if step < len(found):
            has = code.icmp_signed("!=", code.and_(place, words.number(step)), words.number(0))
            needed = min(format_.words + step, len(found))
            found = [
                code.select(has, found[at + step], found[at]) if at + step < len(found) else found[at]
                for at in range(needed)
            ]
    shift = code.and_(first, words.number(31))
    back = code.sub(words.number(32), shift)
    return [
        words.low(code.or_(code.shl(found[at], shift), code.lshr(found[at + 1], back)))
        for at in range(format_.words)
    ]


def low_product(
    words: Words, mantissa: FrameRegister, factor: Sequence[FrameRegister]
) -> list[FrameRegister]:
    """Records the lowest words of a product, the most significant one first. factor: words likewise."""
    code, parts = words.code, [words.low(mantissa), words.right(mantissa, 32)]
    columns = [list[FrameRegister]() for _ in (*factor, *parts, 0)]
    for place, word in enumerate(reversed(factor)):
        for shift, part in enumerate(parts):
            product = code.mul(word, part)
            columns[place + shift].append(words.low(product))
            columns[place + shift + 1].append(words.right(product, 32))
    made, carry = list[FrameRegister](), words.number(0)
    for column in columns[: len(factor)]:
        sum_ = words.total([*column, carry])
        made.append(words.low(sum_))
        carry = words.right(sum_, 32)
    return made[::-1]


def in_single(words: Words, parts: Sequence[FrameRegister]) -> tuple[FrameRegister, FrameRegister]:
    """Records a fraction of a quarter turn as an angle, the sum of two float32: it is multiplied by pi/2 in
    integers. parts: words of the fraction; the first word has 30 digits and a sign.
    """
    code, (rest, next_, *_) = words.code, parts
    half_pi = int(pi() / 2 * 2**61)
    first, second = words.number(half_pi >> 32), words.number(half_pi & WORD)
    crossed = code.add(code.mul(rest, second), code.mul(next_, first))
    crossed = code.record("right_shift", "int64", crossed, words.number(29))
    angle = code.add(code.shl(code.mul(rest, first), words.number(3)), crossed)
    high = code.record("convert", "float32", angle)
    left = code.sub(angle, code.record("convert", "int64", high))
    unit = code.constant("float32", 2.0**-62)
    return code.fmul(high, unit), code.fmul(code.record("convert", "float32", left), unit)


def in_double(words: Words, parts: Sequence[FrameRegister]) -> tuple[FrameRegister, FrameRegister]:
    """Records a fraction of a quarter turn as an angle, the sum of two float64. parts: as for `in_single`."""
    code, (rest, a, b, c, d, *_) = words.code, parts

    def number(value: FrameRegister, digits: int) -> FrameRegister:
        """Records a whole number of at most 53 bits with digits behind the point, as a float."""
        return code.fmul(code.record("convert", "float64", value), code.constant("float64", 2.0**-digits))

    def joined(high: FrameRegister, bits: int, *low: tuple[FrameRegister, int]) -> FrameRegister:
        """Records the lowest bits of a number ahead of others, each with the place of its lowest bit."""
        start = code.and_(high, words.number(2**bits - 1))
        start = code.shl(start, words.number(52 - bits))
        return words.total([start, *(shifted_by(words, each, count) for each, count in low)])

    first = number(code.add(code.shl(rest, words.number(22)), words.right(a, 10)), 52)
    second = number(joined(a, 10, (b, 10), (c, -22)), 104)
    third = number(joined(c, 22, (d, -2)), 156)
    pair = cast("Any", ordered_sum)(code, first, second)
    pair = cast("Any", ordered_sum)(code, pair.high, code.fadd(pair.low, third))
    rest_of_pi = pi() / 2 - Fraction(float(pi() / 2))
    half_pi = [code.constant("float64", float(each)) for each in (pi() / 2, rest_of_pi)]
    made = cast("Any", times)(code, pair, Pair(*cast("Any", half_pi)))
    return made.high, made.low


def shifted_by(words: Words, x: FrameRegister, count: int) -> FrameRegister:
    """Records a number shifted to the left, or by a negative count to the right."""
    return words.code.shl(x, words.number(count)) if count >= 0 else words.right(x, -count)


FRACTIONS: dict[str, Callable[..., tuple[FrameRegister, FrameRegister]]] = {
    "float32": in_single,
    "float64": in_double,
}


def shifted_sine(code: Recorder, x: FrameRegister, quarter_turns: int) -> FrameRegister:
    """Records sin(x + quarter_turns pi/2); NaN for an x that is not finite."""
    written, angle = cast("Any", code), reduced(code, x)
    quarter = code.add(cast("Any", angle.quarter), code.constant("int64", quarter_turns))
    sine, cosine = (total(written, of(written, angle, False)) for of in (sine_of, cosine_of))
    value: Any = code.select(cast("Any", has_bit)(code, quarter, 1), cast("Any", cosine), cast("Any", sine))
    value = code.select(cast("Any", has_bit)(code, quarter, 2), code.fneg(value), value)
    return finite_only(code, x, value)


def finite_only(code: Recorder, x: FrameRegister, value: FrameRegister) -> FrameRegister:
    """Records a number; NaN where x is not finite."""
    nothing = code.fsub(x, x)
    is_finite = code.fcmp_ordered("==", nothing, code.constant(x.dtype, 0.0))
    return code.select(is_finite, value, nothing)


def sin(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the sine of an angle."""
    return cast("Any", unless_tiny)(code, x, shifted_sine(code, x, 0))


def cos(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the cosine of an angle."""
    return shifted_sine(code, x, 1)


def tan(code: Recorder, x: FrameRegister) -> FrameRegister:
    """Records the tangent of an angle: sin / cos of the rest, or after odd numbers of quarters -cos / sin."""
    written, angle = cast("Any", code), reduced(code, x)
    sine, cosine = (cast("Any", total(written, of(written, angle, False))) for of in (sine_of, cosine_of))
    odd = cast("Any", has_bit)(code, angle.quarter, 1)
    above, below = code.select(odd, code.fneg(cosine), sine), code.select(odd, sine, cosine)
    return cast("Any", unless_tiny)(code, x, finite_only(code, x, code.fdiv(above, below)))
