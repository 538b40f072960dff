"""ONNX's operators: a map from their names to the operators of `importers`, one row per operator.

    Add                       add
    LeakyRelu alpha=0.01      leaky_relu, with the attribute as its slope
    Transpose perm            shaping.transpose, with the order of the axes

A row of an elementwise operator names a row of the table in `importers/pointwise.py`. Any other row has a
rule that reads the operands and attributes of a node, in every version of the operator, and calls functions
of `importers`, which know no format.
"""

from collections.abc import Callable, Mapping
from math import prod

import numpy as np

from stepnet.compiler.values.records import dataclass
from stepnet.errors import ModelError
from stepnet.importers import padding, pointwise, reductions, selecting, shaping
from stepnet.importers.axes import features_of, symbols_in
from stepnet.importers.padding import Special
from stepnet.importers.placed import Placed, constant
from stepnet.importers.pointwise import OPERATORS
from stepnet.importers.products import matmul
from stepnet.onnx import quantized, sequences, shapes
from stepnet.onnx.attention import attention
from stepnet.onnx.branches import branch
from stepnet.onnx.call import OnnxCall, Rule
from stepnet.onnx.channels import batch_norm, channels_normalised, einsummed, layer_norm, over_places
from stepnet.onnx.convolving import average_pool, conv, conv_transpose, max_pool
from stepnet.onnx.loops import loop
from stepnet.onnx.orders import no_sort, product_of_sizes
from stepnet.onnx.products import activated, fused_matmul, gemm
from stepnet.onnx.recurrent import recurrence
from stepnet.onnx.scans import scan

DTYPES = {
    1: "float32", 2: "uint8", 3: "int8", 4: "uint16", 5: "int16", 6: "int32", 7: "int64", 9: "bool",
    10: "float32", 11: "float64", 12: "uint32", 13: "uint64", 16: "float32",
}  # fmt: skip
"""The dtypes in which ONNX's types are computed, by number; float16 and bfloat16 are computed in float32."""
COMPARING = {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
"""The operators that compare numbers, such as lengths with step numbers for a mask of steps."""
HALVES = {10: "float16", 16: "bfloat16"}
"""The types to which a Cast rounds although they are computed in float32."""


@dataclass(frozen=True)
class OnnxOperator:
    """Row of the table of ONNX's operators: how to compute the results of a node.

    rule: computes the results.
    fact: finds facts about the results at padding steps (after a sequence's end) if only some operands have
        facts.
    counts: whether an operand may be the number of steps, as a symbolic size.
    alone: whether each sequence is computed as a batch of one, where onnxruntime's result depends on the
        batch.
    """

    rule: Rule
    fact: Special | None = None
    counts: bool = False
    alone: bool = False


def elementwise(operator: str, **attributes: float) -> OnnxOperator:
    """Makes the entry of an elementwise operator in the table that says how ONNX's operators are computed.

    operator: its name in `importers.pointwise`. attributes: ONNX's attributes with their defaults, in the
    order of the function's parameters.
    """

    def rule(call: OnnxCall) -> Placed:
        """Computes an elementwise node by the operator `operator`, with its attributes or their defaults."""
        numbers = [float(call.attributes.get(name, default)) for name, default in attributes.items()]
        return pointwise.elementwise(operator, *call.present, numbers=numbers)

    return OnnxOperator(rule, OPERATORS[operator].fact, OPERATORS[operator].counts)


def variadic(operator: str, counts: bool = False) -> OnnxOperator:
    """Makes the entry of an operator of any number of operands, as Max, in the table that says how ONNX's
    operators are computed.

    operator: its name in `importers.pointwise`, where it takes two. counts: whether it may compute with the
    number of steps.
    """
    return OnnxOperator(lambda call: pointwise.folded(operator, call.present), counts=counts)


def of_operands(function: Callable[..., Placed], count: int, fact: Special | None = None) -> OnnxOperator:
    """Makes the entry of an operator without attributes, which may compute with the number of steps, in the
    table that says how ONNX's operators are computed. function: computes its result from `count` operands.

    fact: computes what is known of the result in padding (after a sequence's end).
    """
    return OnnxOperator(lambda call: function(*map(call.operand, range(count))), fact, counts=True)


# ---- elementwise -------------------------------------------------------------------------------------------


def gelu(call: OnnxCall) -> Placed:
    """Computes the result of a Gelu node, exactly or approximated by tanh."""
    by_tanh = call.attributes.get("approximate", "none") == "tanh"
    return pointwise.elementwise("gelu", call.x, numbers=[by_tanh])


def gelu_of_sum(call: OnnxCall) -> Placed:
    """Computes the result of onnxruntime's BiasGelu, with the exact Gaussian distribution, or FastGelu, with
    an approximation by tanh: the gelu of the sum of the operands.
    """
    return pointwise.elementwise(
        "gelu", pointwise.folded("add", call.present), numbers=[call.op == "FastGelu"]
    )


def quick_gelu(call: OnnxCall) -> Placed:
    """Computes the result of onnxruntime's QuickGelu: x times the sigmoid of alpha x."""
    alpha = constant(np.float32(call.attributes.get("alpha", 1.702)))
    inner = pointwise.elementwise("sigmoid", pointwise.elementwise("multiply", call.x, alpha))
    return pointwise.elementwise("multiply", call.x, inner)


def cast(call: OnnxCall) -> Placed:
    """Computes the result of a Cast node. Numbers cast to float16 or bfloat16 are rounded to these, but
    stored as float32. Raises `ModelError` for a type that is not supported.
    """
    number = call.attributes.get("to")
    if number not in DTYPES:
        raise ModelError(f"it casts to ONNX's type {number}, which is not supported")
    return pointwise.cast(call.x, DTYPES[number], HALVES.get(number, ""))


def modulo(call: OnnxCall) -> Placed:
    """Computes the result of a Mod node: a remainder, with the sign of the divisor, or of the dividend for
    fmod=1. Raises `ModelError` for floating-point numbers without fmod.
    """
    if not call.flag("fmod") and pointwise.dtype_of(call.x).kind == "f":
        raise ModelError("a Mod of floating-point numbers has the attribute fmod=1")
    name = "signed_remainder" if call.flag("fmod") else "remainder"
    return pointwise.elementwise(name, call.operand(0), call.operand(1))


def dropout(call: OnnxCall) -> Placed:
    """Computes Dropout at inference: its first operand. Raises `ModelError` in training mode."""
    training = call.optional(2)
    if training is not None and bool(training.array):
        raise ModelError("it trains: it drops numbers at random; export the model for inference")
    return call.x


# ---- over axes ---------------------------------------------------------------------------------------------


def reduction(how: str) -> OnnxOperator:
    """Makes the entry of a reduction over axes in the table that says how ONNX's operators are computed. how:
    its name in `importers.reductions`, such as "mean".
    """

    def rule(call: OnnxCall) -> Placed:
        """Computes the result of an ONNX reduction; a node without axes reduces all of them, or none if
        noop_with_empty_axes is set.
        """
        x, axes = call.x, call.integers(1, "axes")
        if axes is None and call.flag("noop_with_empty_axes"):
            return x
        axes = range(len(x.axes)) if axes is None else axes
        return reductions.reduce(x, axes, how, call.flag("keepdims", True), call.like, call.padded)

    return OnnxOperator(rule)


OverAxis = Callable[[Placed, int, bool], Placed]


def over_axis(function: OverAxis) -> OnnxOperator:
    """Makes the entry of Softmax or LogSoftmax in the table that says how ONNX's operators are computed.
    function: takes (operand, axis, whether there is padding).

    Before opset 13 a node is over an axis and all following ones, which must be features.
    """

    def rule(call: OnnxCall) -> Placed:
        """Computes the result of an ONNX Softmax or LogSoftmax; before opset 13, its axis and all following
        ones are joined to one.
        """
        x, axis = call.x, call.axis(-1 if call.opset >= 13 else 1)
        if call.opset >= 13 or axis == len(x.axes) - 1:
            return function(x, axis, call.padded)
        if symbols_in(x.axes[axis:]):
            raise ModelError(f"a softmax of opset {call.opset} over several axes is not supported")
        together = x.shaped((*x.axes[:axis], (prod(features_of(x.axes[axis:])),)))
        return function(together, axis, call.padded).shaped(x.axes)

    return OnnxOperator(rule)


def cumsum(call: OnnxCall) -> Placed:
    """Computes a CumSum along an axis: sums of each number and those before it, or after it (reverse), or
    without it (exclusive).
    """
    (axis,) = call.integers(1, "axis") or [0]
    reverse, exclusive = call.flag("reverse"), call.flag("exclusive")
    return reductions.cumulate(call.x, call.x.axis(axis), reverse, exclusive, call.like, call.padded)


def argmax(call: OnnxCall) -> Placed:
    """Computes an ArgMax: the first of the largest numbers; raises `ModelError` if the last is asked for."""
    if call.flag("select_last_index"):
        raise ModelError("of equal numbers it takes the last (select_last_index=1), which is not supported")
    return reductions.argmax(call.x, call.axis(0), call.flag("keepdims", True))


ONNX: Mapping[str, OnnxOperator] = {
    "DynamicQuantizeLinear": OnnxOperator(quantized.dynamic_quantize_linear, alone=True),
    "If": OnnxOperator(branch),
    "DequantizeLinear": OnnxOperator(quantized.dequantize_linear),
    "QuantizeLinear": OnnxOperator(quantized.quantize_linear),
    "QLinearMatMul": OnnxOperator(quantized.qlinear_matmul),
    "MatMulInteger": OnnxOperator(quantized.matmul_integer),
    "QLinearConv": OnnxOperator(quantized.qlinear_conv),
    "ConvInteger": OnnxOperator(quantized.conv_integer),
    "Abs": elementwise("absolute"),
    "Add": elementwise("add"),
    "Acos": elementwise("arccos"),
    "Acosh": elementwise("arccosh"),
    "And": elementwise("logical_and"),
    "ArgMax": OnnxOperator(argmax),
    "Asin": elementwise("arcsin"),
    "Asinh": elementwise("arcsinh"),
    "Atan": elementwise("arctan"),
    "Atanh": elementwise("arctanh"),
    "Attention": OnnxOperator(attention),
    "BatchNormalization": OnnxOperator(batch_norm),
    "Cast": OnnxOperator(cast, padding.converted),
    "CastLike": OnnxOperator(lambda call: pointwise.cast(call.x, pointwise.dtype_of(call.operand(1)).name)),
    "Ceil": elementwise("ceil"),
    "Clip": OnnxOperator(lambda call: pointwise.clip(call.x, call.number(1, "min"), call.number(2, "max"))),
    "Concat": OnnxOperator(shapes.concat),
    "Constant": OnnxOperator(shapes.constant_),
    "ConstantOfShape": OnnxOperator(shapes.constant_of_shape),
    "AveragePool": OnnxOperator(average_pool),
    "Conv": OnnxOperator(conv),
    "ConvTranspose": OnnxOperator(conv_transpose),
    "MaxPool": OnnxOperator(max_pool),
    "Cos": elementwise("cos"),
    "Cosh": elementwise("cosh"),
    "CumSum": OnnxOperator(cumsum),
    "Div": elementwise("quotient"),
    "Dropout": OnnxOperator(dropout),
    "Einsum": OnnxOperator(einsummed),
    "Elu": elementwise("elu", alpha=1.0),
    "Equal": elementwise("equal"),
    "Erf": elementwise("erf"),
    "Exp": elementwise("exp"),
    "Expand": OnnxOperator(shapes.expand, padding.moved),
    "Flatten": OnnxOperator(shapes.flatten, padding.moved),
    "Floor": elementwise("floor"),
    "GRU": OnnxOperator(recurrence),
    "Gather": OnnxOperator(lambda call: selecting.gather(call.x, call.operand(1), call.axis(0), call.padded)),
    "Gelu": OnnxOperator(gelu),
    "Gemm": OnnxOperator(gemm),
    "Greater": elementwise("greater"),
    "GreaterOrEqual": elementwise("greater_equal"),
    "GroupNormalization": OnnxOperator(
        lambda call: channels_normalised(call, int(call.attributes.get("num_groups", 0)))
    ),
    "HardSigmoid": elementwise("hard_sigmoid", alpha=0.2, beta=0.5),
    "HardSwish": elementwise("hard_swish"),
    "Identity": OnnxOperator(lambda call: call.x),
    "InstanceNormalization": OnnxOperator(lambda call: channels_normalised(call, call.x.sizes[1])),
    "LSTM": OnnxOperator(recurrence),
    "LayerNormalization": OnnxOperator(layer_norm),
    "LeakyRelu": elementwise("leaky_relu", alpha=0.01),
    "Less": elementwise("less"),
    "LessOrEqual": elementwise("less_equal"),
    "Log": elementwise("log"),
    "LogSoftmax": over_axis(reductions.log_softmax),
    "Loop": OnnxOperator(loop),
    "MatMul": OnnxOperator(lambda call: matmul(call.operand(0), call.operand(1), call.padded)),
    "Max": variadic("maximum", counts=True),
    "Mean": OnnxOperator(lambda call: pointwise.mean(*call.present)),
    "Min": variadic("minimum", counts=True),
    "Mod": OnnxOperator(modulo, counts=True),
    "Mul": elementwise("multiply"),
    "Neg": elementwise("negative"),
    "Not": elementwise("logical_not"),
    "Or": elementwise("logical_or"),
    "PRelu": elementwise("leaky_relu"),
    "Pad": OnnxOperator(shapes.pad),
    "Pow": of_operands(pointwise.power, 2),
    "RNN": OnnxOperator(recurrence),
    "Range": OnnxOperator(
        lambda call: shaping.arange(call.operand(0), call.operand(1), call.operand(2), call.like)
    ),
    "Reciprocal": elementwise("reciprocal"),
    "ReduceProd": OnnxOperator(product_of_sizes),
    "ScatterElements": OnnxOperator(no_sort),
    "TopK": OnnxOperator(no_sort),
    "GlobalAveragePool": OnnxOperator(lambda call: over_places(call, "mean")),
    "GlobalMaxPool": OnnxOperator(lambda call: over_places(call, "max")),
    "ReduceMax": reduction("max"),
    "ReduceMean": reduction("mean"),
    "ReduceMin": reduction("min"),
    "ReduceSum": reduction("sum"),
    "Relu": elementwise("relu"),
    "Reshape": OnnxOperator(shapes.reshape, padding.moved),
    "Round": elementwise("rint"),
    "Scan": OnnxOperator(scan),
    "ConcatFromSequence": OnnxOperator(sequences.concat_from_sequence),
    "SequenceAt": OnnxOperator(sequences.sequence_at),
    "SequenceConstruct": OnnxOperator(lambda call: sequences.list_of(call.present)),
    "SequenceEmpty": OnnxOperator(lambda call: sequences.list_of()),
    "SequenceInsert": OnnxOperator(sequences.sequence_insert),
    "Selu": elementwise("selu", alpha=1.67326319217681884765625, gamma=1.05070102214813232421875),
    "Shape": OnnxOperator(
        lambda call: shaping.shape_of_axes(
            call.x, call.attributes.get("start", 0), call.attributes.get("end")
        )
    ),
    "Sigmoid": elementwise("sigmoid"),
    "Sign": elementwise("sign"),
    "Sin": elementwise("sin"),
    "Sinh": elementwise("sinh"),
    "Slice": OnnxOperator(shapes.slice_),
    "Size": OnnxOperator(shapes.size),
    "Softmax": over_axis(reductions.softmax),
    "Softplus": elementwise("softplus"),
    "Softsign": elementwise("softsign"),
    "Split": OnnxOperator(shapes.split),
    "Sqrt": elementwise("sqrt"),
    "Squeeze": OnnxOperator(lambda call: shaping.squeeze(call.x, call.integers(1, "axes")), padding.moved),
    "Sub": elementwise("subtract"),
    "Sum": variadic("add"),
    "Tan": elementwise("tan"),
    "Tanh": elementwise("tanh"),
    "ThresholdedRelu": elementwise("thresholded_relu", alpha=1.0),
    "Transpose": OnnxOperator(
        lambda call: shaping.transpose(call.x, call.attributes.get("perm", range(len(call.x.axes))[::-1])),
        padding.moved,
    ),
    "Unsqueeze": OnnxOperator(
        lambda call: shaping.unsqueeze(call.x, call.integers(1, "axes") or []), padding.moved
    ),
    "Where": of_operands(pointwise.where, 3, padding.chosen),
    "Xor": elementwise("logical_xor"),
}
"""The rows of all supported operators of ONNX, by name."""

MICROSOFT: Mapping[str, OnnxOperator] = {
    "BiasGelu": OnnxOperator(gelu_of_sum),
    "DynamicQuantizeLSTM": OnnxOperator(quantized.dynamic_quantize_lstm, alone=True),
    "DynamicQuantizeMatMul": OnnxOperator(quantized.dynamic_quantize_matmul, alone=True),
    "FastGelu": OnnxOperator(gelu_of_sum),
    "FusedConv": OnnxOperator(activated(conv)),
    "FusedGemm": OnnxOperator(activated(gemm)),
    "FusedMatMul": OnnxOperator(fused_matmul),
    "Gelu": OnnxOperator(gelu),
    "MatMulIntegerToFloat": OnnxOperator(quantized.matmul_integer_to_float),
    "QuickGelu": OnnxOperator(quick_gelu),
}
"""The rows of operators of onnxruntime, to which it optimizes and quantizes models."""
DOMAINS: Mapping[str, Mapping[str, OnnxOperator]] = {"": ONNX, "ai.onnx": ONNX, "com.microsoft": MICROSOFT}
"""The operators by the domain of their names."""


def row_of(domain: str, op: str) -> OnnxOperator | None:
    """Returns the row of an operator; None for one that is not supported."""
    return DOMAINS.get(domain, {}).get(op)
