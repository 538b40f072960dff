"""ONNX's products of matrices, and operators that onnxruntime has fused with an activation."""

from typing import Any

import numpy as np

from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import padding, pointwise, shaping
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.layout.files.onnx.node import FUNCTIONS
from stepnet.onnx.call import OnnxCall, Rule


def gemm(call: OnnxCall) -> Placed:
    """Computes the result of a Gemm node: alpha A B + beta C. C may be missing. A matrix that is transposed
    must be a constant, and so must B if alpha is not 1.
    """
    a, b, c = call.operand(0), call.operand(1), call.optional(2)
    alpha, beta = (call.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    a = constant(a.array.T) if call.flag("transA") else a
    b = constant(b.array.T) if call.flag("transB") else b
    b = constant(b.array * np.asarray(alpha, b.array.dtype)) if alpha != 1 else b
    result = matmul(a, b, call.padded)
    if c is None:
        return result
    factor = constant(np.asarray(beta, b.array.dtype))
    scaled = c if beta == 1 else pointwise.elementwise("multiply", c, factor)
    return pointwise.elementwise("add", result, scaled)


def fused_matmul(call: OnnxCall) -> Placed:
    """Computes onnxruntime's FusedMatMul: alpha A B, with the last axes of both transposed if stated."""
    if call.flag("transBatchA") or call.flag("transBatchB"):
        raise ModelError(
            "it transposes the axes of a batch (transBatchA, transBatchB): that is not supported"
        )
    a, b = (
        shaping.swapped(call.operand(at)) if call.flag(name) else call.operand(at)
        for at, name in enumerate(("transA", "transB"))
    )
    result, alpha = matmul(a, b, call.padded), call.attributes.get("alpha", 1.0)
    factor = constant(np.asarray(alpha, pointwise.dtype_of(result)))
    return result if alpha == 1 else pointwise.elementwise("multiply", result, factor)


def activated(rule: Rule) -> Rule:
    """Makes the function that computes a fused operator of onnxruntime: another operator, followed by an
    activation that its attributes name.

    rule: computes the other operator. The activation may be Clip or any that a recurrent node may have.
    """

    def fused(call: OnnxCall) -> Placed:
        """Computes an operator, and applies the activation that its attributes name; raises `ModelError` for
        an unknown one.
        """
        (result,) = padding.as_list(rule(call))
        name: Any = call.attributes.get("activation", "")
        numbers = [float(number) for number in call.attributes.get("activation_params") or ()]
        numbers += [
            float(call.attributes[key])
            for key in ("activation_alpha", "activation_beta")
            if key in call.attributes
        ]
        if name == "Clip":
            return pointwise.clip(result, *numbers)
        if name not in FUNCTIONS:
            raise ModelError(
                f"its activation {short_repr(name)} is not supported: {', '.join(FUNCTIONS)} are"
            )
        return pointwise.elementwise(FUNCTIONS[name], result, numbers=numbers)

    return fused
