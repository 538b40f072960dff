"""ONNX's products of matrices: MatMul and Gemm.

A product with a constant matrix is over features. A product over the axis of steps is a sum over each
sequence.
"""

import numpy as np

from stepnet.errors import ModelError
from stepnet.graph.operators.call import Call, Rule
from stepnet.graph.operators.padding import behind, check_idle, is_all
from stepnet.graph.operators.placed import (
    Placed,
    applied,
    at_one_extent,
    check_room,
    constant,
    reshaped,
    stated_by,
    words,
)
from stepnet.graph.operators.sizes import FEATURE, SEQUENCES, STEPS
from stepnet.rnn.nested import reduce as over_steps


def matmul(call: Call) -> Placed:
    """The result of MatMul."""
    a, b = call.operand(0), call.operand(1)
    if len(a.axes) > 1 and len(b.axes) > 1 and (a.axes[-1], b.axes[-2]) == (STEPS, STEPS):
        check_masked(call, a, b)
    return product(a, b)


def check_masked(call: Call, a: Placed, b: Placed) -> None:
    """Raises `ModelError` for a sum of products over steps if neither factor is known to be 0 in padding."""
    if call.padded and not any(is_all(behind(value), 0) for value in (a, b)):
        check_idle(call, a, "sum")


def product(a: Placed, b: Placed) -> Placed:
    """The product of two values, over the last axis of the first and the second-last of the second."""
    if a.is_constant and b.is_constant and not (a.axes + b.axes).strip(FEATURE):
        check_room([*a.array.shape[:-1], *b.array.shape[:-2], *b.array.shape[-1:]])
        return constant(a.array @ b.array)
    if b.is_constant and len(b.axes) == 2:
        a.feature(len(a.axes) - 1)
        return a.with_value(a.value @ b.array)
    if a.is_constant or len(a.axes) < 2 or len(b.axes) < 2:
        raise ModelError(f"a product of [{words(a.axes)}] and [{words(b.axes)}] is not supported")
    inner = a.axes[-1], b.axes[-2]
    if inner == (STEPS, STEPS):
        return product_over_steps(a, b)
    if inner != (FEATURE, FEATURE) or b.axes[-1] != FEATURE:
        raise ModelError(
            f"a product of [{words(a.axes)}] and [{words(b.axes)}] is not supported: it must be over "
            "features or over steps, not over one with the other"
        )
    return product_of_rows(a, b)


def product_over_steps(a: Placed, b: Placed) -> Placed:
    """The product of [.., steps] and [steps, ..]: a sum over steps, as attention weighs values."""
    lead, other = a.axes[:-2], b.axes[:-2]
    if lead != other or lead not in (SEQUENCES, "") or b.axes[-1] != FEATURE or a.axes[-2] != FEATURE:
        raise ModelError(f"a product of [{words(a.axes)}] and [{words(b.axes)}] is not supported")
    left, right = reshaped(a.value, (*a.features, 1)), reshaped(b.value, (1, *b.features))
    return Placed(over_steps(left * right, "sum"), lead + FEATURE * 2, stated_by((a, b)))


def product_of_rows(a: Placed, b: Placed) -> Placed:
    """The product, for each row, of its vector [k] or vectors [i, k] and its matrix [k, j]."""
    vectors, matrices = a.axes.strip(FEATURE), b.axes.strip(FEATURE)
    if len(a.features) not in (1, 2) or len(b.features) != 2 or not vectors.startswith(matrices):
        raise ModelError(f"a product of [{words(a.axes)}] and [{words(b.axes)}] is not supported")
    ones = (1,) * (len(a.features) - 1)
    x, y = at_one_extent([reshaped(a.value, (*a.features, 1)), reshaped(b.value, (*ones, *b.features))])
    return Placed(np.sum(x * y, axis=-2), a.axes, stated_by((a, b)))


def gemm(call: Call) -> Placed:
    """The result of Gemm: alpha A B + beta C, where A and B may be transposed."""
    a, b, c = call.operand(0), call.operand(1), call.optional(2)
    alpha, beta = (call.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    if call.attributes.get("transA"):
        a = constant(a.array.T)
    if call.attributes.get("transB"):
        b = constant(b.array.T)
    result = product(a, constant(b.array * np.asarray(alpha, b.array.dtype)) if alpha != 1 else b)
    if c is None:
        return result
    scaled = c if beta == 1 else applied(np.multiply, c, constant(np.asarray(beta, b.array.dtype)))
    return applied(np.add, result, scaled)


PRODUCTS: dict[str, Rule] = {"Gemm": gemm, "MatMul": matmul}
"""The rule of each operator."""
