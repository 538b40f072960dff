"""Elementwise operators, as rows of the table.

Traced values have no axes of steps and sequences, so a rule deals only with features.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stepnet.compiler.trace import functions
from stepnet.compiler.trace.traced import Traced, apply
from stepnet.errors import ModelError
from stepnet.importers.activations import (
    elu,
    hard_sigmoid,
    hard_swish,
    leaky_relu,
    prelu,
    reciprocal,
    selu,
    thresholded_relu,
)
from stepnet.importers.call import Call, Rule
from stepnet.importers.placed import Placed, Unusable, applied, constant, joint_axes
from stepnet.importers.sizes import is_equal
from stepnet.importers.values import as_dtype

DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float32",
    11: "float64", 12: "uint32", 13: "uint64", 16: "float32",
}  # fmt: skip
"""The dtypes in which ONNX's types are computed, by number; float16 and bfloat16 are computed in float32."""
HALVES = {10: "float16", 16: "bfloat16"}
"""The types to which a Cast rounds although they are computed in float32."""


def pointwise(function: Callable[..., Any], **defaults: float) -> Rule:
    """The rule of an elementwise operator. defaults: those of the attributes that the function takes."""

    def rule(call: Call) -> Placed:
        options = {name: float(call.attributes.get(name, default)) for name, default in defaults.items()}
        return applied(partial(function, **options), *call.present)

    return rule


def folded(function: Callable[..., Any]) -> Rule:
    """The rule of an operator on any number of values: the function is applied from left to right."""

    def rule(call: Call) -> Placed:
        result, *others = call.present
        for value in others:
            result = applied(function, result, value)
        return result

    return rule


def divided(a: Any, b: Any) -> Any:
    """ONNX's quotient. For integers it is truncated towards 0, as in C."""
    if not (is_whole(a) and is_whole(b)):
        return a / b
    floor: Any = a // b
    if is_sizes(a) or is_sizes(b):
        return floor
    is_below: Any = ((a < 0) != (b < 0)) & (floor * b != a)
    return floor + is_below.astype(floor.dtype)


def is_sizes(value: Any) -> bool:
    """Whether a value is a constant that may hold sizes."""
    return not isinstance(value, Traced) and np.asarray(value).dtype.kind == "O"


def equal(a: Any, b: Any) -> Any:
    """Whether numbers or sizes are equal, elementwise."""
    if not (is_sizes(a) or is_sizes(b)):
        return np.equal(a, b)
    return np.asarray(np.frompyfunc(is_equal, 2, 1)(a, b), bool)


def is_whole(value: Any) -> bool:
    """Whether a value has integers or sizes."""
    return (
        np.asarray(value).dtype.kind in "iuO" if not isinstance(value, Traced) else value.dtype.kind in "iu"
    )


def clipped(call: Call) -> Placed:
    """The result of Clip: a value limited to two bounds."""
    result, dtype = call.x, dtype_of(call.x)
    bounds = (np.finfo(dtype).min, np.finfo(dtype).max) if dtype.kind == "f" else (None, None)
    low, high = call.number(1, "min", bounds[0]), call.number(2, "max", bounds[1])
    for bound, function in ((low, np.maximum), (high, np.minimum)):
        if bound is not None:
            result = applied(function, result, constant(np.asarray(bound, dtype_of(call.x))))
    return result


def dtype_of(value: Placed) -> np.dtype[Any]:
    """The dtype of a value."""
    return np.dtype(value.value.dtype)


def cast(call: Call) -> Placed:
    """The result of Cast."""
    if isinstance(call.x.value, Unusable):
        return call.x
    number = call.attributes.get("to")
    if number not in DTYPES:
        raise ModelError(f"it casts to ONNX's type {number}, which is not supported")
    if dtype_of(call.x).kind == "O":  # sizes, which are integers
        return call.x
    cast_value = as_type(call.x.value, DTYPES[number])
    if number in HALVES:
        cast_value = round_to_half(cast_value, call.x.value, HALVES[number])
    return call.x.with_value(cast_value)


def as_type(value: Any, dtype: str) -> Any:
    """A value in another dtype. As in ONNX, numbers that the dtype cannot hold have any result."""
    with np.errstate(all="ignore"):
        return value.astype(dtype)


def round_to_half(single: Any, value: Any, dtype: str) -> Any:
    """A value rounded to float16 or bfloat16, as float32.

    single: the value already cast to float32, which is used if the value is not floating-point.
    """
    if not isinstance(value, Traced):
        return as_type(as_type(value, dtype), "float32")
    source = value if value.type.is_float else single
    return apply("cast", apply("cast", source, dtype=dtype), dtype="float32")


def cast_like(call: Call) -> Placed:
    """The result of CastLike."""
    return call.x.with_value(as_type(call.x.value, dtype_of(call.operand(1)).name))


def power(call: Call) -> Placed:
    """Pow, which is of the dtype of what is raised."""
    base, exponent = call.operand(0), call.operand(1)
    dtype = dtype_of(base)
    if dtype.kind == "f":
        exponent = exponent.with_value(as_dtype(exponent.value, dtype))
    made = applied(np.power, base, exponent)
    return made.with_value(as_dtype(made.value, dtype))


def mean(call: Call) -> Placed:
    """Mean of several values."""
    return applied(
        np.true_divide, folded(np.add)(call), constant(np.asarray(len(call.present), dtype_of(call.x)))
    )


def gelu(call: Call) -> Placed:
    """Gelu, exact or by tanh."""
    approximate = call.attributes.get("approximate", "none") == "tanh"
    return applied(partial(functions.gelu, approximate=approximate), call.x)


def where(call: Call) -> Placed:
    """The result of Where. If the condition is known and uniform, as a mask is at a sequence's own steps, it
    is one of the two values.
    """
    condition, *values = call.operand(0), call.operand(1), call.operand(2)
    if condition.is_constant and np.size(condition.value):
        true = bool(np.all(condition.value))
        value = values[0] if true else values[1]
        if (true or not np.any(condition.value)) and value.axes == joint_axes([condition, *values]):
            return value.with_value(value.value)
    return applied(np.where, condition, *values)


def dropout(call: Call) -> Placed:
    """The result of Dropout at inference: the first operand."""
    training = call.optional(2)
    if training is not None and bool(training.array):
        raise ModelError("it trains: it drops numbers at random; export the model for inference")
    return call.x


def modulo(call: Call) -> Placed:
    """The result of Mod: the remainder with the sign of the divisor, or, with fmod=1, of the dividend."""
    if not call.attributes.get("fmod"):
        if dtype_of(call.x).kind == "f":
            raise ModelError("a Mod of floating-point numbers has the attribute fmod=1")
        return applied(np.remainder, call.operand(0), call.operand(1))

    return applied(signed_remainder, call.operand(0), call.operand(1))


def signed_remainder(a: Any, b: Any) -> Any:
    """The remainder with the sign of a, as C's fmod."""
    remainder: Any = np.remainder(np.abs(a), np.abs(b))
    is_negative: Any = a < 0
    return as_dtype(remainder * (1 - 2 * is_negative.astype(remainder.dtype)), remainder.dtype)


def same(call: Call) -> Placed:
    """The first operand."""
    return call.x


POINTWISE: dict[str, Rule] = {
    "Abs": pointwise(np.abs),
    "Add": pointwise(np.add),
    "And": pointwise(np.logical_and),
    "Atan": pointwise(np.arctan),
    "Cast": cast,
    "CastLike": cast_like,
    "Ceil": pointwise(np.ceil),
    "Clip": clipped,
    "Cos": pointwise(np.cos),
    "Cosh": pointwise(np.cosh),
    "Div": pointwise(divided),
    "Dropout": dropout,
    "Elu": pointwise(elu, alpha=1.0),
    "Equal": pointwise(equal),
    "Erf": pointwise(functions.erf),
    "Exp": pointwise(np.exp),
    "Floor": pointwise(np.floor),
    "Gelu": gelu,
    "Greater": pointwise(np.greater),
    "GreaterOrEqual": pointwise(np.greater_equal),
    "HardSigmoid": pointwise(hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": pointwise(hard_swish),
    "Identity": same,
    "LeakyRelu": pointwise(leaky_relu, alpha=0.01),
    "Less": pointwise(np.less),
    "LessOrEqual": pointwise(np.less_equal),
    "Log": pointwise(np.log),
    "Max": folded(np.maximum),
    "Mean": mean,
    "Min": folded(np.minimum),
    "Mod": modulo,
    "Mul": pointwise(np.multiply),
    "Neg": pointwise(np.negative),
    "Not": pointwise(np.logical_not),
    "Or": pointwise(np.logical_or),
    "PRelu": pointwise(prelu),
    "Pow": power,
    "Reciprocal": pointwise(reciprocal),
    "Relu": pointwise(functions.relu),
    "Round": pointwise(np.rint),
    "Selu": pointwise(selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Sigmoid": pointwise(functions.sigmoid),
    "Sign": pointwise(np.sign),
    "Sin": pointwise(np.sin),
    "Sinh": pointwise(np.sinh),
    "Softplus": pointwise(functions.softplus),
    "Softsign": pointwise(functions.softsign),
    "Sqrt": pointwise(np.sqrt),
    "Sub": pointwise(np.subtract),
    "Sum": folded(np.add),
    "Tan": pointwise(np.tan),
    "Tanh": pointwise(np.tanh),
    "ThresholdedRelu": pointwise(thresholded_relu, alpha=1.0),
    "Where": where,
    "Xor": pointwise(np.logical_xor),
}
"""The rule of each operator."""
