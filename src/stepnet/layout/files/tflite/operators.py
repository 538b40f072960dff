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

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.aligning import of_all_steps, within_features
from stepnet.importers.axes import BATCH, ONE, TIME
from stepnet.importers.placed import Placed, ReversedSteps, constant, reversed_steps
from stepnet.importers.products import matmul
from stepnet.importers.recurrent import as_sequences
from stepnet.importers.sizes import product
from stepnet.layout.files.tflite.call import Rule, TfliteCall
from stepnet.layout.files.tflite.windows import WINDOWS, SpacedSteps, usable


def elementwise(operator: str, *fields: tuple[int, Any]) -> Rule:
    """Makes the rule (a function that computes a TFLite operator) of an operator that is elementwise in all
    of its operands.

    operator: its name in `importers.pointwise`. fields: for each number that the operator has as an option,
    the number of the option's field and its default.
    """
    return lambda call: pointwise.elementwise(
        operator,
        *of_all_steps([call.operand(index) for index in range(len(call.operands))]),
        numbers=[call.option(field, "f", usual) for field, usual in fields],
    )


def fused(operator: str) -> Rule:
    """Makes the rule (a function that computes a TFLite operator) of an operator that applies an elementwise
    operator to two operands, and then the activation that its first option names (0 is none). operator: the
    name of the elementwise one in `importers.pointwise`.
    """
    return lambda call: call.activated(
        pointwise.elementwise(operator, *of_all_steps([call.operand(0), call.operand(1)]))
    )


def same(call: TfliteCall) -> Placed:
    """Returns the operand: DEQUANTIZE of float16. Raises `ModelError` for a quantized operand."""
    if call.x.value.dtype != np.float32:
        raise ModelError("its operand is quantized")
    return call.x


# ---- products ----------------------------------------------------------------------------------------------


def fully_connected(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's FULLY_CONNECTED: a product with weights [out, in], perhaps a bias."""
    x, bias = call.x, call.operands[2] if len(call.operands) > 2 else None
    if len(x.axes) > 2 and not call.option(2, "?", False):
        x = shaping.reshape(x, [product(x.sizes[:-1]), x.sizes[-1]])
    result = matmul(x, shaping.swapped(call.operand(1)), padded=False)
    return call.activated(result if bias is None else pointwise.elementwise("add", result, bias))


def batch_product(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's BATCH_MATMUL, a product of matrices, which may be transposed."""
    a, b = (
        shaping.swapped(call.operand(index)) if call.option(index, "?", False) else call.operand(index)
        for index in (0, 1)
    )
    return matmul(a, b, padded=False)


# ---- axes --------------------------------------------------------------------------------------------------


def reduction(how: str) -> Rule:
    """Makes the rule (a function that computes a TFLite operator) of an operator that reduces its first
    operand over the axes in its second, a constant. how: the name of the reduction in `importers.reductions`.
    """

    def rule(call: TfliteCall) -> Placed:
        """Reduces the operand over the constant axes. Over the axis of the batch, which the file fixes to one
        sequence, there is nothing to add up: it is only left out.
        """
        x, keep = call.x, bool(call.option(0, "?", False))
        axes = {x.axis(axis) for axis in call.numbers(1)}
        alone = {axis for axis in axes if x.axes[axis] == BATCH and x.sizes[axis] == 1}
        result = reductions.reduce(x, sorted(axes - alone), how, True, like=call.like)
        left = [axis for place, axis in enumerate(result.axes) if keep or place not in axes]
        return result.shaped(tuple(left))

    return rule


def softmax(call: TfliteCall) -> Placed:
    """Computes TFLite's SOFTMAX over the last axis; raises `ModelError` unless beta, a factor, is 1."""
    if call.option(0, "f", 0.0) != 1:
        raise ModelError(f"its beta is {call.option(0, 'f', 0.0):g}: only 1 is supported")
    return reductions.softmax(call.x, call.x.axis(-1))


def cumulated(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's CUMSUM: the cumulative sum along an axis."""
    exclusive, backward = (bool(call.option(field, "?", False)) for field in (0, 1))
    return reductions.cumulate(call.x, call.x.axis(call.numbers(1)[0]), backward, exclusive, call.like)


def reversal(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's REVERSE_V2 over the steps of sequences. Nothing is moved: the result is
    a placeholder that only recurrent operators, and operators that move axes, can read. Raises `ModelError`
    for another axis.
    """
    if [call.x.axes[call.x.axis(axis)] for axis in call.numbers(1)] != [TIME]:
        raise ModelError("it reverses another axis than the steps")
    return reversed_steps(call.x)


def transpose(call: TfliteCall) -> Placed:
    """Computes TFLite's TRANSPOSE. The placeholder of a value with reversed steps stays one."""
    x, order = call.x, call.numbers(1)
    if isinstance(x.value, ReversedSteps):
        return reversed_steps(shaping.transpose(x.value.source, order))
    return shaping.transpose(x, order)


def reshape(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's RESHAPE: the operand in another shape, which is a second, constant
    operand or in the operator's options.
    """
    if isinstance(call.x.value, SpacedSteps):
        return rowed(call.x.value)
    target: list[Any] = (
        list(np.ravel(call.operand(1).array)) if len(call.operands) > 1 else list(call.listed())
    )
    for place, (size, own) in enumerate(zip(target, call.x.sizes, strict=False)):
        if own != size:
            break
        target[place] = own  # a batch of one sequence is the batch, and no feature
    return shaping.reshape(within_features(usable(call.x), target), target)


def rowed(spaced: SpacedSteps) -> Placed:
    """Computes a RESHAPE of steps that a SPACE_TO_BATCH_ND has put in blocks (`SpacedSteps`, a placeholder
    that only a convolution reads): puts an axis of size one ahead of the steps, for a picture of one row as
    CONV_2D takes it, or removes it.
    """
    source = spaced.source
    made = shaping.squeeze(source, [1]) if source.axes[1] == ONE else shaping.unsqueeze(source, [1])
    return made.with_value(replace(spaced, source=made))


def squeeze(call: TfliteCall) -> Placed:
    """Computes TFLite's SQUEEZE: without all axes of size one, or those in the operator's options."""
    if isinstance(call.x.value, SpacedSteps):
        return rowed(call.x.value)
    rank = len(call.x.axes)
    return shaping.squeeze(usable(call.x), [axis % rank for axis in call.listed()] or None)


def concatenation(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's CONCATENATION: the operands joined along an axis; of placeholders of
    values whose steps are reversed, such a placeholder.
    """
    values = [call.operand(index) for index in range(len(call.operands))]
    axis, sources = call.option(0, "i"), [x.value for x in values]
    if all(isinstance(value, ReversedSteps) for value in sources):
        joined = [value.source for value in sources if isinstance(value, ReversedSteps)]
        return reversed_steps(selecting.concatenate(joined, axis))
    return call.activated(selecting.concatenate([usable(x) for x in values], axis), field=1)


def gather(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's GATHER: the entries of the first operand along an axis whose indices
    are in the second, such as the rows of an embedding. Raises `ModelError` if its batch_dims is not 0.
    """
    if call.option(1, "i"):
        raise ModelError("its batch_dims is not 0")
    return selecting.gather(call.x, call.operand(1), call.x.axis(call.option(0, "i")))


Strided = tuple[int, int, int, int, bool]


def strided(call: TfliteCall) -> list[Strided]:
    """Returns for each axis that a STRIDED_SLICE goes over the axis, its first place, its end, its stride,
    and whether it takes the first place alone; raises `ModelError` for options that are not supported.
    """
    begins, ends, steps = (call.numbers(index) for index in (1, 2, 3))
    begin_mask, end_mask, *others, shrink = (call.option(field, "i") for field in range(5))
    if any(others) or call.option(5, "?", False) or not len(begins) == len(ends) == len(steps):
        raise ModelError("it has an ellipsis, a new axis, an offset, or numbers that do not fit")
    found = list[Strided]()
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        bit = 1 << axis
        is_one, no_end = bool(shrink & bit), bool(end_mask & bit) or call.x.sizes[axis] == end
        own = begin if is_one or not begin_mask & bit else 0
        found.append((axis, own, selecting.HIGHEST[0] if no_end else end, step, is_one))
    return found


def strided_slice(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's STRIDED_SLICE: of features, or the first or last step of sequences,
    which may be reversed.
    """
    x = call.x
    for axis, begin, end, step, is_one in reversed(strided(call)):
        if is_one:
            x = at(x, axis, begin)
        elif (begin, end, step) != (0, selecting.HIGHEST[0], 1):
            x = selecting.slice_axis(usable(x), axis, begin, end, step)
    return x


def at(x: Placed, axis: int, index: int) -> Placed:
    """Takes the entry at `index` along an axis of features, or the first or last step of sequences (index 0
    or -1), whose steps may be in reverse order. The result has no such axis.
    """
    if isinstance(x.value, ReversedSteps) and index in (0, -1):
        return at(x.value.source, axis, -1 - index)
    return selecting.gather(usable(x), constant(np.asarray(index)), axis)


def slice_(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's SLICE: along each axis, as many entries as the third operand says (-1
    for the rest), from the index in the second operand on.
    """
    x = call.x
    for axis, (begin, size) in enumerate(zip(call.numbers(1), call.numbers(2), strict=True)):
        if begin or (size != -1 and x.sizes[axis] != size):
            end = selecting.HIGHEST[0] if size == -1 else begin + size
            x = selecting.slice_axis(x, axis, begin, end)
    return x


def split(call: TfliteCall) -> list[Placed]:
    """Computes the results of TFLite's SPLIT: equal parts of the second operand along an axis."""
    x, count = call.operand(1), max(call.option(0, "i"), 1)
    axis = x.axis(call.numbers(0)[0])
    return selecting.split(x, axis, [x.sizes[axis] // count] * count)


def pack(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's PACK: operands joined along a new axis."""
    axis = call.option(1, "i")
    values = [call.operand(index) for index in range(len(call.operands))]
    return selecting.concatenate([shaping.unsqueeze(value, [axis]) for value in values], axis)


def unpack(call: TfliteCall) -> list[Placed]:
    """Computes the results of TFLite's UNPACK: one for each entry along an axis, without that axis."""
    axis = call.x.axis(call.option(1, "i"))
    parts = selecting.split(call.x, axis, [1] * call.x.sizes[axis])
    return [shaping.squeeze(part, [axis]) for part in parts]


def parts(call: TfliteCall) -> list[Placed]:
    """Computes the results of TFLite's SPLIT_V: parts of stated sizes along an axis."""
    return selecting.split(call.x, call.x.axis(call.numbers(2)[0]), call.numbers(1))


def product_of_sizes(call: TfliteCall) -> Placed:
    """Computes the result of TFLite's REDUCE_PROD over the sizes of a shape, some possibly symbolic."""
    keep = bool(call.option(0, "?", False))
    total = constant(shaping.sizes_array([product(np.ravel(call.x.array))]))
    return total if keep else shaping.squeeze(total, [0])


# ---- recurrences -------------------------------------------------------------------------------------------


def recurrence(call: TfliteCall) -> Placed:
    """Computes the outputs of a recurrent operator over sequences, at all steps. If its operand is reversed
    in time, it runs from the last step, and the result is reversed too: a placeholder that few operators can
    read.
    """
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
    "CAST": lambda call: pointwise.cast(call.x, call.dtype),
    "CEIL": elementwise("ceil"),
    "CONCATENATION": concatenation,
    "COS": elementwise("cos"),
    "CUMSUM": cumulated,
    "DEQUANTIZE": same,
    "DIV": fused("divide"),
    "ELU": lambda call: pointwise.elementwise("elu", call.x, numbers=[1.0]),
    "EQUAL": elementwise("equal"),
    "EXP": elementwise("exp"),
    "EXPAND_DIMS": lambda call: shaping.unsqueeze(call.x, call.numbers(1)),
    "FLOOR": elementwise("floor"),
    "FULLY_CONNECTED": fully_connected,
    "GATHER": gather,
    "GELU": lambda call: pointwise.elementwise("gelu", call.x, numbers=[bool(call.option(0, "?", False))]),
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
    "LOG_SOFTMAX": lambda call: reductions.log_softmax(call.x, call.x.axis(-1)),
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
    "SELECT_V2": lambda call: pointwise.where(call.operand(0), call.operand(1), call.operand(2)),
    "SHAPE": lambda call: shaping.shape_of_axes(call.x),
    "SIGN": elementwise("sign"),
    "SIN": elementwise("sin"),
    "SLICE": slice_,
    "SOFTMAX": softmax,
    "SPLIT": split,
    "SPLIT_V": parts,
    "SQRT": elementwise("sqrt"),
    "SQUEEZE": squeeze,
    "SQUARE": elementwise("square"),
    "SQUARED_DIFFERENCE": elementwise("squared_difference"),
    "STRIDED_SLICE": strided_slice,
    "SUB": fused("subtract"),
    "SUM": reduction("sum"),
    "TANH": elementwise("tanh"),
    "TRANSPOSE": transpose,
    "UNIDIRECTIONAL_SEQUENCE_LSTM": recurrence,
    "UNPACK": unpack,
    **WINDOWS,
}
"""The rule of each supported operator of TensorFlow Lite: its result, or its results in order."""
PLACEHOLDERS = {
    "BATCH_TO_SPACE_ND",
    "CONCATENATION",
    "CONV_2D",
    "RESHAPE",
    "REVERSE_V2",
    "SQUEEZE",
    "STRIDED_SLICE",
    "TRANSPOSE",
    "UNIDIRECTIONAL_SEQUENCE_LSTM",
}
"""The operators that read placeholders."""
