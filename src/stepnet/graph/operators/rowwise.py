"""ONNX's operators on single numbers, products, and what is done over features or over steps: a table.

Steps and sequences are no axes of the arrays here, so a rule has features alone to do with; what is done over
steps is a reduction of `sn.reduce`.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.graph.operators.activations import elu, hard_sigmoid, hard_swish, leaky_relu, reciprocal, selu
from stepnet.graph.operators.call import Call
from stepnet.graph.operators.placed import (
    AxesError,
    Placed,
    Unusable,
    applied,
    at_one_extent,
    check_room,
    constant,
    reshaped,
    stated_by,
    words,
)
from stepnet.graph.operators.sizes import FEATURE, SEQUENCES, STEPS, TOKENS, is_equal
from stepnet.rnn.nested import reduce as over_steps
from stepnet.rnn.nested import softmax_over_steps
from stepnet.trace import functions
from stepnet.trace.traced import Traced

Rule = Callable[[Call], Placed]
DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 5: "int16", 6: "int32", 7: "int64", 9: "bool", 10: "float32",
    11: "float64", 12: "uint32", 13: "uint64", 16: "float32",
}  # fmt: skip
"""The dtypes of ONNX's types; two bytes of a float are computed in four."""


def pointwise(function: Callable[..., Any], **defaults: float) -> Rule:
    """The rule of an operator on single numbers. defaults: of the attributes that the function takes."""

    def rule(call: Call) -> Placed:
        options = {name: float(call.attributes.get(name, usual)) for name, usual in defaults.items()}
        return applied(partial(function, **options), *call.present)

    return rule


def folded(function: Callable[..., Any]) -> Rule:
    """The rule of an operator on any number of values, two at a time."""

    def rule(call: Call) -> Placed:
        made, *others = call.present
        for value in others:
            made = applied(function, made, value)
        return made

    return rule


def divided(a: Any, b: Any) -> Any:
    """ONNX's quotient, which is that of C for whole numbers."""
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
    """Whether numbers are equal, or sizes."""
    if not (is_sizes(a) or is_sizes(b)):
        return np.equal(a, b)
    return np.asarray(np.frompyfunc(is_equal, 2, 1)(a, b), bool)


def is_whole(value: Any) -> bool:
    """Whether a value is of whole numbers, or of sizes."""
    return (
        np.asarray(value).dtype.kind in "iuO" if not isinstance(value, Traced) else value.dtype.kind in "iu"
    )


def clipped(call: Call) -> Placed:
    """Clip: numbers between two bounds."""
    low, high = call.number(1, "min"), call.number(2, "max")
    made = call.x
    for bound, function in ((low, np.maximum), (high, np.minimum)):
        if bound is not None:
            made = applied(function, made, constant(np.asarray(bound, dtype_of(call.x))))
    return made


def dtype_of(value: Placed) -> np.dtype[Any]:
    """The dtype of a value."""
    return np.dtype(value.value.dtype)


def cast(call: Call) -> Placed:
    """Cast."""
    if isinstance(call.x.value, Unusable):
        return call.x
    number = call.attributes.get("to")
    if number not in DTYPES:
        raise ModelError(f"it casts to ONNX's type {number}, which is not supported")
    if dtype_of(call.x).kind == "O":  # sizes, which are whole numbers
        return call.x
    return call.x.with_value(call.x.value.astype(DTYPES[number]))


def cast_like(call: Call) -> Placed:
    """CastLike."""
    return call.x.with_value(call.x.value.astype(dtype_of(call.operand(1))))


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
    """Where."""
    return applied(np.where, *call.present)


# ---- products ----------------------------------------------------------------------------------------------


def matmul(call: Call) -> Placed:
    """MatMul."""
    return product(call.operand(0), call.operand(1))


def product(a: Placed, b: Placed) -> Placed:
    """The product of two values over the last axis of the first, and the last but one of the second."""
    if a.is_constant and b.is_constant:
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
            f"a product of [{words(a.axes)}] and [{words(b.axes)}] is not supported: of steps with steps"
        )
    return product_of_rows(a, b)


def product_over_steps(a: Placed, b: Placed) -> Placed:
    """The sum over the steps of products: [.., steps] with [steps, ..], as attention weighs values."""
    lead, other = a.axes[:-2], b.axes[:-2]
    if lead != other or lead not in (SEQUENCES, "") or b.axes[-1] != FEATURE or a.axes[-2] != FEATURE:
        raise ModelError(f"a product of [{words(a.axes)}] and [{words(b.axes)}] is not supported")
    left, right = reshaped(a.value, (*a.features, 1)), reshaped(b.value, (1, *b.features))
    return Placed(over_steps(left * right, "sum"), lead + FEATURE * 2, stated_by((a, b)))


def product_of_rows(a: Placed, b: Placed) -> Placed:
    """A row's own vector [k], or vectors [i, k], times its own matrix [k, j]."""
    vectors, own = a.axes.strip(FEATURE), b.axes.strip(FEATURE)
    if len(a.features) not in (1, 2) or len(b.features) != 2 or not vectors.startswith(own):
        raise ModelError(f"a product of [{words(a.axes)}] and [{words(b.axes)}] is not supported")
    ones = (1,) * (len(a.features) - 1)
    x, y = at_one_extent([reshaped(a.value, (*a.features, 1)), reshaped(b.value, (*ones, *b.features))])
    return Placed(np.sum(x * y, axis=-2), a.axes, stated_by((a, b)))


def gemm(call: Call) -> Placed:
    """Gemm: alpha A B + beta C, of which A or B may be transposed."""
    a, b, c = call.operand(0), call.operand(1), call.optional(2)
    alpha, beta = (call.attributes.get(name, 1.0) for name in ("alpha", "beta"))
    if call.attributes.get("transA"):
        a = constant(a.array.T)
    if call.attributes.get("transB"):
        b = constant(b.array.T)
    made = product(a, constant(b.array * np.asarray(alpha, b.array.dtype)) if alpha != 1 else b)
    if c is None:
        return made
    scaled = c if beta == 1 else applied(np.multiply, c, constant(np.asarray(beta, b.array.dtype)))
    return applied(np.add, made, scaled)


# ---- over features or steps --------------------------------------------------------------------------------


def softmax(call: Call) -> Placed:
    """Softmax: over a feature, or over the steps of each sequence."""
    axis = softmax_axis(call)
    if call.x.axes[axis] == STEPS:
        check_no_padding(call)
        return call.x.with_value(softmax_over_steps(call.x.value))
    place = call.x.feature(axis)
    return call.x.with_value(functions.softmax(call.x.value, axis=place))


def softmax_axis(call: Call) -> int:
    """The axis of a softmax. Before opset 13 it was over this axis and all behind it."""
    axis = call.x.axis(int(call.attributes.get("axis", -1 if call.opset >= 13 else 1)))
    if call.opset < 13 and axis != len(call.x.axes) - 1:
        raise ModelError(f"a softmax of opset {call.opset} over several axes is not supported")
    return axis


def log_softmax(call: Call) -> Placed:
    """LogSoftmax over a feature."""
    axis = softmax_axis(call)
    place, x = call.x.feature(axis), call.x.value
    shifted = x - np.max(x, axis=place, keepdims=True)
    return call.x.with_value(shifted - np.log(np.sum(np.exp(shifted), axis=place, keepdims=True)))


REDUCTIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "ReduceSum": ("sum", np.sum),
    "ReduceMean": ("mean", np.mean),
    "ReduceMax": ("max", np.max),
    "ReduceMin": ("min", np.min),
}


def reduction(call: Call) -> Placed:
    """A reduction over features, or over the steps of each sequence."""
    x, (how, function) = call.x, REDUCTIONS[call.op]
    stated = call.whole(1, "axes")
    if stated is None and call.attributes.get("noop_with_empty_axes"):
        return x
    axes = sorted(x.axis(axis) for axis in (range(len(x.axes)) if stated is None else stated))
    kept = bool(call.attributes.get("keepdims", 1))
    if {SEQUENCES, TOKENS} & {x.axes[axis] for axis in axes}:
        raise ModelError("it is over all sequences: each sequence is run by itself")
    value, places = x.value, tuple(x.feature(axis) for axis in axes if x.axes[axis] == FEATURE)
    if places:
        value = function(value, axis=places, keepdims=kept)
    gone = FEATURE if kept else ""
    letters = [gone if axis in axes else letter for axis, letter in enumerate(x.axes)]
    if STEPS in [x.axes[axis] for axis in axes]:
        check_no_padding(call)
        value = -over_steps(-value, "max") if how == "min" else over_steps(value, how)
        if kept:
            value = with_one(value, "".join(letters), x.axes.index(STEPS))
    return x.with_value(as_dtype(value, dtype_of(x)), "".join(letters))


def as_dtype(value: Any, dtype: np.dtype[Any]) -> Any:
    """A value with the dtype that ONNX gives it: that of an operand, where NumPy's is wider."""
    return value if np.dtype(value.dtype) == dtype else value.astype(dtype)


def with_one(value: Any, axes: str, axis: int) -> Any:
    """A value with a feature of size one at an axis, which is among its axes already."""
    place, features = axes[:axis].count(FEATURE), list(value.type.shape)
    return reshaped(value, (*features[:place], 1, *features[place:]))


def check_no_padding(call: Call) -> None:
    """Raises `ModelError` for an operator over steps where padding would be among them."""
    if call.padded:
        raise ModelError(
            "it is over all steps, padding included, in a model whose recurrences have sequence_lens: "
            "stepnet has no padding to count"
        )


def argmax(call: Call) -> Placed:
    """ArgMax over a feature."""
    if call.attributes.get("select_last_index"):
        raise ModelError("of equal numbers it takes the last, which is not supported")
    x, axis = call.x, call.x.axis(int(call.attributes.get("axis", 0)))
    made, place = np.argmax(x.value, axis=x.feature(axis)), axis
    if not call.attributes.get("keepdims", 1):
        return x.with_value(made, x.axes[:place] + x.axes[place + 1 :])
    features = [1 if at - len(x.features) == x.feature(axis) else size for at, size in enumerate(x.features)]
    return x.with_value(reshaped(made, features))


def layer_normalization(call: Call) -> Placed:
    """LayerNormalization over the last features."""
    x, axis = call.x, call.x.axis(int(call.attributes.get("axis", -1)))
    places = tuple(range(x.feature(axis), 0))
    if STEPS in x.axes[axis:] or SEQUENCES in x.axes[axis:]:
        raise AxesError("it normalises more than features")
    centred = x.value - np.mean(x.value, axis=places, keepdims=True)
    variance = np.mean(centred * centred, axis=places, keepdims=True)
    made = x.with_value(centred / np.sqrt(variance + float(call.attributes.get("epsilon", 1e-5))))
    made = applied(np.multiply, made, call.operand(1))
    shift = call.optional(2)
    return made if shift is None else applied(np.add, made, shift)


def batch_normalization(call: Call) -> Placed:
    """BatchNormalization as it is when a model runs: a scale and a shift of each channel."""
    if call.attributes.get("training_mode"):
        raise ModelError("it trains: its mean and variance are those of the batch")
    scale, shift, mean, variance = (call.operand(place).array for place in range(1, 5))
    factor = scale / np.sqrt(variance + np.asarray(call.attributes.get("epsilon", 1e-5), variance.dtype))
    x = call.x
    x.feature(1)
    ones = (1,) * (len(x.axes) - 2)
    scaled = applied(np.multiply, x, constant(factor.reshape(-1, *ones)))
    return applied(np.add, scaled, constant((shift - mean * factor).reshape(-1, *ones)))


def dropout(call: Call) -> Placed:
    """Dropout as it is when a model runs: the first operand."""
    training = call.optional(2)
    if training is not None and bool(training.array):
        raise ModelError("it trains: it drops numbers by chance")
    return call.x


def same(call: Call) -> Placed:
    """The first operand."""
    return call.x


OPERATIONS: dict[str, Rule] = {
    "Abs": pointwise(np.abs),
    "Add": pointwise(np.add),
    "And": pointwise(np.logical_and),
    "ArgMax": argmax,
    "Atan": pointwise(np.arctan),
    "BatchNormalization": batch_normalization,
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
    "Gemm": gemm,
    "Greater": pointwise(np.greater),
    "GreaterOrEqual": pointwise(np.greater_equal),
    "HardSigmoid": pointwise(hard_sigmoid, alpha=0.2, beta=0.5),
    "HardSwish": pointwise(hard_swish),
    "Identity": same,
    "LayerNormalization": layer_normalization,
    "LeakyRelu": pointwise(leaky_relu, alpha=0.01),
    "Less": pointwise(np.less),
    "LessOrEqual": pointwise(np.less_equal),
    "Log": pointwise(np.log),
    "LogSoftmax": log_softmax,
    "MatMul": matmul,
    "Max": folded(np.maximum),
    "Mean": mean,
    "Min": folded(np.minimum),
    "Mul": pointwise(np.multiply),
    "Neg": pointwise(np.negative),
    "Not": pointwise(np.logical_not),
    "Or": pointwise(np.logical_or),
    "PRelu": pointwise(leaky_relu),
    "Pow": power,
    "Reciprocal": pointwise(reciprocal),
    "Relu": pointwise(functions.relu),
    "Round": pointwise(np.rint),
    "Selu": pointwise(selu, alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Sigmoid": pointwise(functions.sigmoid),
    "Sign": pointwise(np.sign),
    "Sin": pointwise(np.sin),
    "Sinh": pointwise(np.sinh),
    "Softmax": softmax,
    "Softplus": pointwise(functions.softplus),
    "Softsign": pointwise(functions.softsign),
    "Sqrt": pointwise(np.sqrt),
    "Sub": pointwise(np.subtract),
    "Sum": folded(np.add),
    "Tan": pointwise(np.tan),
    "Tanh": pointwise(np.tanh),
    "Where": where,
    "Xor": pointwise(np.logical_xor),
    **dict.fromkeys(REDUCTIONS, reduction),
}
"""The rule of each operator."""
