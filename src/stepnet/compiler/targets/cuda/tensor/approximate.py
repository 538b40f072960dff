"""Elementary functions by the approximate instructions of a GPU, in place of those of the CPU engine.

    short   within some units of the last place, relative to the result: the instruction for powers of 2 is
            given what rounding its argument leaves
    fast    sigmoid and tanh within some units of the last place of 1

The instructions are within 2 ** -22 of a power of 2, within 2 ** -23 of a reciprocal and of a root, and
within two units of the last place of a quotient of any two numbers.
"""

from collections.abc import Callable, Mapping
from math import e, log, log2

import numpy as np
from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import Code
from stepnet.compiler.targets.cuda.functions import F32

LARGE = 128.0
"""From here on, a power of 2 is 0 or infinite."""
FEWEST = 2.0**-100
"""A number above this and below its reciprocal is divided by with a product."""
SMALL = 0.625
"""Below this |x|, tanh is a polynomial: the difference from 1 would lose its digits."""
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
"""The coefficients of (tanh(x) - x) / x^3 in x^2, from the Cephes library."""


def number(value: float) -> ir.Constant:
    """Returns a constant of float32."""
    return ir.Constant(F32, value)


def exp(code: Code, x: ir.Value, factor: float) -> ir.Value:
    """Writes the exponential of a multiple of x."""
    return code.function_call("exp2", F32, [code.fmul(x, number(factor * log2(e)))])


def power_of_e(code: Code, x: ir.Value, *factors: ir.Value) -> ir.Value:
    """Writes the exponential of x times some factors; x is multiplied by the logarithm first."""
    product = code.fmul(x, number(log2(e)))
    for factor in factors:
        product = code.fmul(product, factor)
    return code.function_call("exp2", F32, [product])


def exponential(code: Code, x: ir.Value) -> ir.Value:
    """Writes the exponential of x by the GPU's power of 2, within some units of its last place.

    exp(x) = 2^p exp(x - p log 2), where p is x log2(e) as rounded, and the second factor is 1 + its exponent.
    """
    product = code.fmul(x, number(log2(e)))
    high = float(np.float32(log(2.0)))
    left = code.fused(code.fneg(product), number(high), x)
    left = code.fused(code.fneg(product), number(log(2.0) - high), left)
    power = code.function_call("exp2", F32, [product])
    near = code.fused(power, left, power)
    is_small = code.fcmp_ordered("<", code.intrinsic("fabs", F32, [product]), number(LARGE))
    return code.select(is_small, near, power)


def sigmoid(code: Code, x: ir.Value) -> ir.Value:
    """Writes the sigmoid of x, 1 / (1 + exp(-x))."""
    return code.function_call("reciprocal", F32, [code.fadd(number(1.0), exp(code, x, -1))])


def short_sigmoid(code: Code, x: ir.Value) -> ir.Value:
    """Writes the sigmoid of x, whose digits are right where it is small too."""
    return code.function_call("reciprocal", F32, [code.fadd(number(1.0), exponential(code, code.fneg(x)))])


def tanh(code: Code, x: ir.Value) -> ir.Value:
    """Writes the hyperbolic tangent of x: a polynomial near 0, and 1 - 2 / (1 + exp(2x)) elsewhere."""
    square = code.fmul(x, x)
    series: ir.Value = number(TANH[0])
    for coefficient in TANH[1:]:
        series = code.fused(series, square, number(coefficient))
    near = code.fused(code.fmul(series, square), x, x)
    share = code.function_call("reciprocal", F32, [code.fadd(number(1.0), exp(code, x, 2))])
    far = code.fused(number(-2.0), share, number(1.0))
    small = code.fcmp_ordered("<", code.intrinsic("fabs", F32, [x]), number(SMALL))
    return code.select(small, near, far)


def quotient(code: Code, a: ir.Value, b: ir.Value) -> ir.Value:
    """Writes a / b: a product, where b is a number whose reciprocal is one too."""
    by = b.constant if isinstance(b, ir.Constant) else 0.0
    if FEWEST < abs(by) < 1 / FEWEST:
        return code.fmul(a, number(float(np.float32(1 / by))))
    return code.function_call("quotient", F32, [a, b])


def root(code: Code, x: ir.Value) -> ir.Value:
    """Writes the square root of x."""
    return code.function_call("root", F32, [x])


Function = Callable[..., ir.Value]
FUNCTIONS: Mapping[str, Mapping[str, Function]] = {
    "exact": {},
    "short": {
        "sigmoid": short_sigmoid,
        "tanh": tanh,
        "exp": exponential,
        "divide": quotient,
        "sqrt": root,
    },
    "fast": {"sigmoid": sigmoid, "tanh": tanh},
}
"""The functions of float32 that are written here, by the functions of a schedule and the operation. They take
the code, and a register for each operand.
"""
