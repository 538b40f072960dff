"""TensorFlow Lite's operators: a map from their names to the operators of `importers`, one row per operator.

    ADD with the fused activation RELU   -->   add, relu
    LEAKY_RELU alpha=0.1                 -->   leaky_relu, with the option as its number
    FULLY_CONNECTED                      -->   a product with the transposed weights, perhaps a sum

A row of an elementwise operator names a row of the table in `importers/pointwise.py`. Any other row has a
rule that reads the options of an operator by the numbers of their fields, and calls functions of `importers`,
which know no format.

Source: the tables of options in tensorflow/compiler/mlir/lite/schema/schema.fbs of TensorFlow 2.21, and
tensorflow/lite/kernels/.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.axes import ONE, TIME
from stepnet.importers.convolving import convolve, window_of
from stepnet.importers.placed import Placed, Unusable, constant
from stepnet.importers.products import matmul
from stepnet.importers.recurrent import as_sequences
from stepnet.importers.sizes import product
from stepnet.layout.files.recurrent import RecurrentLayer
from stepnet.layout.files.tflite.flatbuffer import Table
from stepnet.layout.files.tflite.names import ACTIVATIONS

FUSED: Mapping[str, str] = {"NONE": "linear", "RELU": "relu", "RELU6": "clip6", "TANH": "tanh"}
"""The operators of `importers.pointwise` for the fused activations that are supported."""


@dataclass(frozen=True)
class ReversedSteps(Unusable):
    """Placeholder for a value whose steps are in reverse order, which recurrences and reversals read.

    source: the value in the order of the steps.
    """

    source: Placed


def reversed_steps(x: Placed) -> Placed:
    """Returns the placeholder for a value with its steps in reverse order; the value itself of one."""
    if isinstance(x.value, ReversedSteps):
        return x.value.source
    reason = "the steps of sequences are reversed, which only recurrences may read"
    return x.with_value(ReversedSteps(reason, x))


@dataclass(frozen=True)
class TfliteCall:
    """Operator of a TFLite model with its operands, as its rule takes it.

    operands: its operands in order; None for a missing one. options: its options, if it has any.
    dtype: that of its first result. like: a value per step, whose steps are counted.
    recurrent: of a recurrent operator the layer that runs. time_major: whether its first axis is the steps.
    """

    operands: tuple[Placed | None, ...]
    options: Table | None
    dtype: str
    like: Traced
    recurrent: RecurrentLayer | None = None
    time_major: bool = False

    def operand(self, index: int = 0) -> Placed:
        """Returns an operand by index; raises `ModelError` if it is missing."""
        found = self.operands[index] if index < len(self.operands) else None
        if found is None:
            raise ModelError(f"its operand {index} is missing")
        return found

    @property
    def x(self) -> Placed:
        """The first operand."""
        return self.operand()

    def option(self, field: int, kind: str, default: Any = 0) -> Any:
        """Returns an option by the number of its field. kind: its type, as for `struct`."""
        return default if self.options is None else self.options.get(field, kind, default)

    def listed(self) -> list[int]:
        """Returns the first option, a list of whole numbers; an empty one without options."""
        return list[int]() if self.options is None else [int(n) for n in self.options.vector(0, "<i4")]

    def numbers(self, index: int) -> list[int]:
        """Returns the whole numbers of a constant operand."""
        return [int(number) for number in np.ravel(self.operand(index).array)]

    def activated(self, result: Placed, field: int = 0) -> Placed:
        """Applies the fused activation to a result; field: that of the options which names it."""
        code: int = self.option(field, "b")
        name = dict(enumerate(ACTIVATIONS)).get(code, str(code))
        if name not in FUSED:
            raise ModelError(f"its fused activation {name} is not supported")
        return result if name == "NONE" else pointwise.elementwise(FUSED[name], result)


Rule = Callable[[TfliteCall], Placed | Sequence[Placed]]


def elementwise(operator: str, *fields: tuple[int, Any]) -> Rule:
    """Makes the rule of an operator that is elementwise in all of its operands.

    operator: its name in `importers.pointwise`. fields: the options that are its numbers: the field of each,
    and its default.
    """
    return lambda call: pointwise.elementwise(
        operator,
        *(call.operand(index) for index in range(len(call.operands))),
        numbers=[call.option(field, "f", usual) for field, usual in fields],
    )


def fused(operator: str) -> Rule:
    """Makes the rule of an operator of two operands with a fused activation as its first option."""
    return lambda call: call.activated(pointwise.elementwise(operator, call.operand(0), call.operand(1)))


def gelu(call: TfliteCall) -> Placed:
    """Computes the result of GELU, exactly or approximated by tanh."""
    return pointwise.elementwise("gelu", call.x, numbers=[bool(call.option(0, "?", False))])


def squared_difference(call: TfliteCall) -> Placed:
    """Computes the result of SQUARED_DIFFERENCE, (x - y) squared."""
    return pointwise.elementwise("square", pointwise.elementwise("subtract", call.x, call.operand(1)))


def select(call: TfliteCall) -> Placed:
    """Computes the result of SELECT_V2: a choice between two operands by a condition."""
    return pointwise.where(call.operand(0), call.operand(1), call.operand(2))


def cast(call: TfliteCall) -> Placed:
    """Computes the result of CAST: the operand in another dtype."""
    return pointwise.cast(call.x, call.dtype)


def same(call: TfliteCall) -> Placed:
    """Returns the operand: it is the rule of DEQUANTIZE, by which half precision becomes float32."""
    if call.x.value.dtype != np.float32:
        raise ModelError("its operand is quantized")
    return call.x


# ---- products ----------------------------------------------------------------------------------------------


def fully_connected(call: TfliteCall) -> Placed:
    """Computes the result of FULLY_CONNECTED: a product with weights [out, in], perhaps a bias."""
    x, bias = call.x, call.operands[2] if len(call.operands) > 2 else None
    if len(x.axes) > 2 and not call.option(2, "?", False):
        x = shaping.reshape(x, [product(x.sizes[:-1]), x.sizes[-1]])
    result = matmul(x, shaping.swapped(call.operand(1)), padded=False)
    return call.activated(result if bias is None else pointwise.elementwise("add", result, bias))


def batch_product(call: TfliteCall) -> Placed:
    """Computes the result of BATCH_MATMUL, a product of matrices, each of which may be transposed."""
    a, b = (
        shaping.swapped(call.operand(index)) if call.option(index, "?", False) else call.operand(index)
        for index in (0, 1)
    )
    return matmul(a, b, padded=False)


def convolution(call: TfliteCall) -> Placed:
    """Computes the result of CONV_2D of pictures of one row [batch, 1, steps, features], a convolution over
    the steps. Its weights are [out, 1, kernel, in].
    """
    x, weight, bias = call.x, call.operand(1), call.operands[2] if len(call.operands) > 2 else None
    if len(x.axes) != 4 or x.axes[1] != ONE or weight.features[1:2] != (1,):
        raise ModelError("a convolution of a model is over steps alone")
    size, dilation = weight.features[2], call.option(4, "i", 1)
    same = "upper" if call.option(0, "b") == 0 else ""
    window = window_of(size, call.option(1, "i"), dilation, 0, 0, same)
    own = constant(weight.array[:, 0].transpose(0, 2, 1))
    result = convolve(shaping.swapped(shaping.squeeze(x, [1])), own, bias, window, 1)
    return call.activated(shaping.unsqueeze(shaping.swapped(result), [1]), field=3)


# ---- axes --------------------------------------------------------------------------------------------------


def reduction(how: str) -> Rule:
    """Makes the rule of a reduction over constant axes. how: its name in `importers.reductions`."""
    return lambda call: reductions.reduce(
        call.x, call.numbers(1), how, bool(call.option(0, "?", False)), like=call.like
    )


def softmax(call: TfliteCall) -> Placed:
    """Computes the result of SOFTMAX over the last axis."""
    if call.option(0, "f", 0.0) != 1:
        raise ModelError(f"its beta is {call.option(0, 'f', 0.0):g}: only 1 is supported")
    return reductions.softmax(call.x, call.x.axis(-1))


def log_softmax(call: TfliteCall) -> Placed:
    """Computes the result of LOG_SOFTMAX over the last axis."""
    return reductions.log_softmax(call.x, call.x.axis(-1))


def cumulated(call: TfliteCall) -> Placed:
    """Computes the result of CUMSUM: the sum of each number and those before it along an axis."""
    exclusive, backward = (bool(call.option(field, "?", False)) for field in (0, 1))
    return reductions.cumulate(call.x, call.x.axis(call.numbers(1)[0]), backward, exclusive, call.like)


def reversal(call: TfliteCall) -> Placed:
    """Returns the placeholder for the result of REVERSE_V2 over the steps."""
    if [call.x.axes[call.x.axis(axis)] for axis in call.numbers(1)] != [TIME]:
        raise ModelError("it reverses another axis than the steps")
    return reversed_steps(call.x)


def transpose(call: TfliteCall) -> Placed:
    """Computes the result of TRANSPOSE: the axes in another order, also of reversed steps."""
    x, order = call.x, call.numbers(1)
    if isinstance(x.value, ReversedSteps):
        return reversed_steps(shaping.transpose(x.value.source, order))
    return shaping.transpose(x, order)


def reshape(call: TfliteCall) -> Placed:
    """Computes the result of RESHAPE: the operand in another shape, of a constant operand or the options."""
    target: list[Any] = (
        list(np.ravel(call.operand(1).array)) if len(call.operands) > 1 else list(call.listed())
    )
    for place, (size, own) in enumerate(zip(target, call.x.sizes, strict=False)):
        if own != size:
            break
        target[place] = own  # a batch of one sequence is the batch, and no feature
    return shaping.reshape(call.x, target)


def expand_dims(call: TfliteCall) -> Placed:
    """Computes the result of EXPAND_DIMS: the operand with a new axis of size one."""
    return shaping.unsqueeze(call.x, call.numbers(1))


def concatenation(call: TfliteCall) -> Placed:
    """Computes the result of CONCATENATION: the operands joined along an axis; also of reversed steps."""
    values = [call.operand(index) for index in range(len(call.operands))]
    axis, sources = call.option(0, "i"), [x.value for x in values]
    if all(isinstance(value, ReversedSteps) for value in sources):
        joined = [value.source for value in sources if isinstance(value, ReversedSteps)]
        return reversed_steps(selecting.concatenate(joined, axis))
    return call.activated(selecting.concatenate([usable(x) for x in values], axis), field=1)


def usable(x: Placed) -> Placed:
    """Returns a value; raises `ModelError` for a placeholder, with its reason."""
    if isinstance(x.value, Unusable):
        raise ModelError(x.value.reason)
    return x


def gather(call: TfliteCall) -> Placed:
    """Computes the result of GATHER: elements along an axis at indices, as of an embedding."""
    if call.option(1, "i"):
        raise ModelError("its batch_dims is not 0")
    return selecting.gather(call.x, call.operand(1), call.x.axis(call.option(0, "i")))


def strided_slice(call: TfliteCall) -> Placed:
    """Computes the result of STRIDED_SLICE: of features, or the first or last step of sequences, which may be
    reversed.
    """
    begins, ends, steps = (call.numbers(index) for index in (1, 2, 3))
    begin_mask, end_mask, *others, shrink = (call.option(field, "i") for field in range(5))
    if any(others) or call.option(5, "?", False) or not len(begins) == len(ends) == len(steps):
        raise ModelError("it has an ellipsis, a new axis, an offset, or numbers that do not fit")
    x = call.x
    for axis in reversed(range(len(begins))):
        bit, size = 1 << axis, x.sizes[axis]
        begin = 0 if begin_mask & bit else begins[axis]
        end = selecting.HIGHEST[0] if end_mask & bit or size == ends[axis] else ends[axis]
        if shrink & bit:
            x = at(x, axis, begins[axis])
        elif (begin, end, steps[axis]) != (0, selecting.HIGHEST[0], 1):
            x = selecting.slice_axis(usable(x), axis, begin, end, steps[axis])
    return x


def at(x: Placed, axis: int, index: int) -> Placed:
    """Takes one element of a feature, or the first or last step of sequences, which may be reversed."""
    if isinstance(x.value, ReversedSteps) and index in (0, -1):
        return at(x.value.source, axis, -1 - index)
    return selecting.gather(usable(x), constant(np.asarray(index)), axis)


def slice_(call: TfliteCall) -> Placed:
    """Computes the result of SLICE: parts of features from a begin on, of stated sizes; -1 is the rest."""
    x = call.x
    for axis, (begin, size) in enumerate(zip(call.numbers(1), call.numbers(2), strict=True)):
        if begin or (size != -1 and x.sizes[axis] != size):
            end = selecting.HIGHEST[0] if size == -1 else begin + size
            x = selecting.slice_axis(x, axis, begin, end)
    return x


def split(call: TfliteCall) -> list[Placed]:
    """Computes the results of SPLIT: equal parts of the second operand along an axis."""
    x, count = call.operand(1), max(call.option(0, "i"), 1)
    axis = x.axis(call.numbers(0)[0])
    return selecting.split(x, axis, [x.sizes[axis] // count] * count)


def pack(call: TfliteCall) -> Placed:
    """Computes the result of PACK: operands joined along a new axis."""
    axis = call.option(1, "i")
    values = [call.operand(index) for index in range(len(call.operands))]
    return selecting.concatenate([shaping.unsqueeze(value, [axis]) for value in values], axis)


def product_of_sizes(call: TfliteCall) -> Placed:
    """Computes the result of REDUCE_PROD of sizes, which may be symbolic."""
    keep = bool(call.option(0, "?", False))
    total = constant(shaping.sizes_array([product(np.ravel(call.x.array))]))
    return total if keep else shaping.squeeze(total, [0])


def shape(call: TfliteCall) -> Placed:
    """Computes the result of SHAPE: the sizes of the operand's axes, which may be symbolic."""
    return shaping.shape_of_axes(call.x)


# ---- recurrences -------------------------------------------------------------------------------------------


def recurrence(call: TfliteCall) -> Placed:
    """Computes the result of a recurrent operator over sequences; of reversed ones, a reversed result."""
    layer, x = call.recurrent, call.x
    assert layer is not None
    backward = isinstance(x.value, ReversedSteps)
    if isinstance(x.value, ReversedSteps):
        layer, x = layer.turned(), x.value.source
    x = as_sequences(x, batch_first=not call.time_major)
    outputs, _ = layer.run(x.value, returned=False)
    result = x.lettered(outputs, x.letters)
    return reversed_steps(result) if backward else result


TFLITE: Mapping[str, Rule] = {
    "ABS": elementwise("absolute"),
    "ADD": fused("add"),
    "BATCH_MATMUL": batch_product,
    "CAST": cast,
    "CEIL": elementwise("ceil"),
    "CONCATENATION": concatenation,
    "CONV_2D": convolution,
    "COS": elementwise("cos"),
    "CUMSUM": cumulated,
    "DEQUANTIZE": same,
    "DIV": fused("divide"),
    "ELU": lambda call: pointwise.elementwise("elu", call.x, numbers=[1.0]),
    "EQUAL": elementwise("equal"),
    "EXP": elementwise("exp"),
    "EXPAND_DIMS": expand_dims,
    "FLOOR": elementwise("floor"),
    "FULLY_CONNECTED": fully_connected,
    "GATHER": gather,
    "GELU": gelu,
    "GREATER": elementwise("greater"),
    "GREATER_EQUAL": elementwise("greater_equal"),
    "HARD_SWISH": elementwise("hard_swish"),
    "LEAKY_RELU": elementwise("leaky_relu", (0, 0.0)),
    "LESS": elementwise("less"),
    "LESS_EQUAL": elementwise("less_equal"),
    "LOG": elementwise("log"),
    "LOGICAL_AND": elementwise("logical_and"),
    "LOGICAL_OR": elementwise("logical_or"),
    "LOGISTIC": elementwise("sigmoid"),
    "LOG_SOFTMAX": log_softmax,
    "MAXIMUM": elementwise("maximum"),
    "MEAN": reduction("mean"),
    "MINIMUM": elementwise("minimum"),
    "MUL": fused("multiply"),
    "NEG": elementwise("negative"),
    "NOT_EQUAL": elementwise("not_equal"),
    "PACK": pack,
    "POW": lambda call: pointwise.power(call.operand(0), call.operand(1)),
    "REDUCE_MAX": reduction("max"),
    "REDUCE_MIN": reduction("min"),
    "REDUCE_PROD": product_of_sizes,
    "RELU": elementwise("relu"),
    "RELU_N1_TO_1": lambda call: pointwise.clip(call.x, -1, 1),
    "RESHAPE": reshape,
    "REVERSE_V2": reversal,
    "ROUND": elementwise("rint"),
    "RSQRT": elementwise("rsqrt"),
    "SELECT_V2": select,
    "SHAPE": shape,
    "SIGN": elementwise("sign"),
    "SIN": elementwise("sin"),
    "SLICE": slice_,
    "SOFTMAX": softmax,
    "SPLIT": split,
    "SQRT": elementwise("sqrt"),
    "SQUARE": elementwise("square"),
    "SQUARED_DIFFERENCE": squared_difference,
    "STRIDED_SLICE": strided_slice,
    "SUB": fused("subtract"),
    "SUM": reduction("sum"),
    "TANH": elementwise("tanh"),
    "TRANSPOSE": transpose,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": recurrence,
}
"""The rule of each supported operator of TensorFlow Lite: its result, or its results in order."""
PLACEHOLDERS = {"CONCATENATION", "REVERSE_V2", "STRIDED_SLICE", "TRANSPOSE", "UNIDIRECTIONAL_SEQUENCE_LSTM"}
"""The operators that read placeholders."""
