"""Sigmoid and tanh by the approximate instructions of a GPU, for comparison with those of the CPU engine."""

from math import log2

from llvmlite import ir

from stepnet.compiler.targets.cpu.writing.code import Code
from stepnet.compiler.targets.cuda.functions import F32

SMALL = 0.625
"""Below this |x|, tanh is a polynomial: the difference from 1 would lose its digits."""
TANH = (-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1)
"""The coefficients of (tanh(x) - x) / x^3 in x^2, from the Cephes library."""


def number(value: float) -> ir.Constant:
    """Returns a constant of float32."""
    return ir.Constant(F32, value)


def exp(code: Code, x: ir.Value, factor: float) -> ir.Value:
    """Writes the exponential of a multiple of x."""
    return code.function_call("exp2", F32, [code.fmul(x, number(factor * log2(2.718281828459045)))])


def sigmoid(code: Code, x: ir.Value) -> ir.Value:
    """Writes the sigmoid of x, 1 / (1 + exp(-x))."""
    return code.function_call("reciprocal", F32, [code.fadd(number(1.0), exp(code, x, -1))])


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


APPROXIMATE = {"sigmoid": sigmoid, "tanh": tanh}
