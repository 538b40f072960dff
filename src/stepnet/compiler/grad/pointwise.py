"""Adjoints of the pointwise operations, written as a table of derivatives.

d is the cotangent of the result y of operands a, b. A row gives the cotangents of the operands, or None for
one that has none. The caller (`sweep.py`) sums over broadcast axes.
"""

from collections.abc import Callable
from math import pi, sqrt

from stepnet.compiler.grad.value import Value
from stepnet.compiler.net.ir import Node

ONE_OPERAND: dict[str, Callable[[Value, Value, Value], Value]] = {
    "negative": lambda d, y, a: -d,
    "absolute": lambda d, y, a: d * a.apply("sign"),
    "sqrt": lambda d, y, a: d / y * 0.5,
    "exp": lambda d, y, a: d * y,
    "expm1": lambda d, y, a: d * (y + 1),
    "log": lambda d, y, a: d / a,
    "log1p": lambda d, y, a: d / (a + 1),
    "sin": lambda d, y, a: d * a.apply("cos"),
    "cos": lambda d, y, a: -(d * a.apply("sin")),
    "tan": lambda d, y, a: d * (y * y + 1),
    "arctan": lambda d, y, a: d / (a * a + 1),
    "sinh": lambda d, y, a: d * a.apply("cosh"),
    "cosh": lambda d, y, a: d * a.apply("sinh"),
    "tanh": lambda d, y, a: d * (1 - y * y),
    "sigmoid": lambda d, y, a: d * (y * (1 - y)),
    "erf": lambda d, y, a: d * ((-(a * a)).apply("exp") * (2 / sqrt(pi))),
}

TWO_OPERANDS: dict[str, Callable[[Value, Value, Value, Value], tuple[Value, Value]]] = {
    "add": lambda d, y, a, b: (d, d),
    "subtract": lambda d, y, a, b: (d, -d),
    "multiply": lambda d, y, a, b: (d * b, d * a),
    "divide": lambda d, y, a, b: (d / b, -(d / b * y)),
    "remainder": lambda d, y, a, b: (d, -(d * a.apply("floor_divide", b))),
    "maximum": lambda d, y, a, b: larger("greater", d, a, b),
    "minimum": lambda d, y, a, b: larger("less", d, a, b),
}


def larger(wins: str, d: Value, a: Value, b: Value) -> tuple[Value, Value]:
    """Returns the cotangents of a maximum's or minimum's operands: d for the selected one, half each for
    ties.

    d: the cotangent of the result. wins: the comparison by which an operand is selected, "greater" or "less".
    If one operand is a constant, it wins ties, so that relu has derivative 0 at 0.
    """
    mine, its = a.apply(wins, b), b.apply(wins, a)
    literal = [value.builder.nodes[value.number].operation == "constant" for value in (a, b)]
    if any(literal):
        return mine.where(d, 0), its.where(d, 0)
    half = a.apply("equal", b).where(d * 0.5, 0)
    return mine.where(d, half), its.where(d, half)


def where(node: Node, d: Value, y: Value, condition: Value, *_: Value) -> tuple[Value | None, ...]:
    """Returns the cotangents of a where's operands: None for the condition, and for each of the others the
    cotangent d of the result y where it was selected, 0 elsewhere.
    """
    return None, condition.where(d, 0), condition.where(d.constant(0), d)


def power(node: Node, d: Value, y: Value, a: Value) -> tuple[Value | None, ...]:
    """Returns the cotangent of a power's operand a, d p a**(p - 1) with the exponent p and the cotangent d of
    the result y; None (no contribution) for p = 0, as the formula fails where a is 0.
    """
    exponent: float = node.attributes["exponent"]
    if exponent == 0:
        return (None,)
    return (d * (a.apply("power", exponent=exponent - 1) * exponent),)


def cast(node: Node, d: Value, y: Value, a: Value) -> tuple[Value | None, ...]:
    """Returns d, the cotangent of the result y, cast to the dtype of operand a; None if that is no float."""
    return (d.cast(a.type.dtype) if a.type.is_float else None,)
