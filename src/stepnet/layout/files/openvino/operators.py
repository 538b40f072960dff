"""OpenVINO's operators: a map from their names to the operators of `importers`, one row per operator.

    Multiply             -->   multiply
    Elu alpha="0.5"      -->   elu, with the attribute as its number
    MatMul transpose_b   -->   a product with the last two axes of the second operand exchanged

A row of an elementwise operator names a row of the table in `importers/pointwise.py`. Any other row has a
rule that reads the attributes of a layer, and calls functions of `importers`, which know no format.

Source: OpenVINO's docs/ops, opset 1 to 14.
"""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from stepnet.compiler.trace.traced import Traced
from stepnet.compiler.values.arguments import short_repr
from stepnet.errors import ModelError
from stepnet.importers import pointwise, reductions, selecting, shaping
from stepnet.importers.counts import with_counts
from stepnet.importers.placed import Placed, constant
from stepnet.importers.products import matmul
from stepnet.importers.recurrent import as_sequences, initial_state, reads_lengths, rows_of, state_for
from stepnet.importers.values import reshaped
from stepnet.layout.files.openvino.call import OpenVinoCall, Rule
from stepnet.layout.files.openvino.ir import KINDS
from stepnet.layout.files.openvino.names import OPERATORS
from stepnet.layout.files.openvino.windows import WINDOWS


def elementwise(operator: str, **attributes: float) -> Callable[[OpenVinoCall], Placed]:
    """Makes the rule (a function that computes an OpenVINO operator) of an operator that is elementwise in
    all of its operands.

    operator: its name in `importers.pointwise`. attributes: the layer's attributes that the function takes,
    with their defaults, in the order of its parameters.
    """
    counts = pointwise.OPERATORS[operator].counts

    def rule(call: OpenVinoCall) -> Placed:
        """Computes the elementwise `operator` of the operands, with the numbers in the layer's attributes. If
        one operand is computed, another that is the number of steps becomes the length of each sequence.
        """
        numbers = [call.number(name, usual) for name, usual in attributes.items()]
        operands = with_counts(call.operands, call.like) if counts else call.operands
        return pointwise.elementwise(operator, *filter(None, operands), numbers=numbers)

    return rule


def of_numbers(operator: str, *usual: float) -> Rule:
    """Makes the rule (a function that computes an OpenVINO operator) of an operator that is elementwise in
    its first operand, and has the function's numbers as further, constant operands.

    usual: the values of further operands that may be left out.
    """

    def rule(call: OpenVinoCall) -> Placed:
        """Computes the elementwise `operator` with the numbers of the constants."""
        given = [call.operand(index).array.item() for index in range(1, len(call.operands))]
        return pointwise.elementwise(operator, call.x, numbers=[*given, *usual[len(given) :]])

    return rule


def swish(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Swish, x sigmoid(beta x). beta is the second operand, else 1."""
    if len(call.operands) == 1:
        return pointwise.elementwise("silu", call.x)
    inside = pointwise.elementwise("multiply", call.x, call.operand(1))
    return pointwise.elementwise("multiply", call.x, pointwise.elementwise("sigmoid", inside))


def divide(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Divide, the quotient of two operands; raises `ModelError` for whole
    numbers, unless they are constants or sizes that are known ahead.
    """
    if any(pointwise.dtype_of(x).kind in "iu" and not x.is_constant for x in call.operands):
        raise ModelError("it divides whole numbers that are computed")
    return elementwise("quotient")(call)


def convert(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Convert: the operand cast to the dtype of the attribute
    "destination_type"; raises `ModelError` for float16, bfloat16 and unknown dtypes.
    """
    kind = KINDS.get(call.text("destination_type"))
    if kind is None or kind.name in ("float16", "bfloat16"):
        raise ModelError(f"its destination_type {short_repr(call.text('destination_type'))} is not supported")
    return pointwise.cast(call.x, kind.name)


# ---- products ----------------------------------------------------------------------------------------------


def product(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's MatMul, a product of matrices, each of which may be transposed."""
    a, b = (
        shaping.swapped(operand) if call.flag(name) else operand
        for name, operand in (("transpose_a", call.operand(0)), ("transpose_b", call.operand(1)))
    )
    return matmul(a, b, padded=False)


# ---- axes --------------------------------------------------------------------------------------------------


def reduction(how: str) -> Rule:
    """Makes the rule of a reduction over constant axes. how: its name in `importers.reductions`."""
    return lambda call: reductions.reduce(
        call.x, call.constants(1), how, call.flag("keep_dims"), like=call.like
    )


def over_axis(function: Callable[[Placed, int], Placed], usual: int) -> Rule:
    """Makes the rule of softmax or log_softmax along the axis of an attribute. usual: its default."""
    return lambda call: function(call.x, call.x.axis(call.whole("axis", usual)))


def cumulated(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's CumSum: the cumulative sum along an axis."""
    axis = call.x.axis(call.constants(1)[0] if len(call.operands) > 1 else 0)
    return reductions.cumulate(call.x, axis, call.flag("reverse"), call.flag("exclusive"), call.like)


def transpose(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Transpose: the axes in another order, by default reversed."""
    order = call.constants(1) or range(len(call.x.axes))[::-1]
    return shaping.transpose(call.x, list(order))


def tile(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Tile: repeats the operand along each axis as often as the constant
    second operand says, whose numbers are for the last axes.
    """
    x = call.x
    for axis, count in enumerate(call.constants(1), len(x.axes) - len(call.constants(1))):
        x = x if count == 1 else selecting.concatenate([x] * count, axis)
    return x


def normalised(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's MVN: subtracts the mean over the axes in the second operand and,
    unless an attribute says otherwise, divides by the standard deviation over them.
    """
    x, axes = call.x, call.constants(1)
    centred = pointwise.elementwise("subtract", x, reductions.reduce(x, axes, "mean", True))
    if not call.flag("normalize_variance", True):
        return centred
    small = constant(np.asarray(call.number("eps", 0.0), pointwise.dtype_of(x)))
    below = reductions.variance(x, axes, True)
    if call.text("eps_mode") == "inside_sqrt":
        below = pointwise.elementwise("sqrt", pointwise.elementwise("add", below, small))
    else:
        below = pointwise.elementwise("add", pointwise.elementwise("sqrt", below), small)
    return pointwise.elementwise("divide", centred, below)


Strided = tuple[int, Any, Any, int, bool]


def strided(call: OpenVinoCall) -> list[Strided]:
    """Returns for each axis that a StridedSlice goes over the axis, its first place, its end, its stride, and
    whether it takes the first place alone; raises `ModelError` for new axes and ellipses.
    """
    if any(call.wholes("new_axis_mask")) or any(call.wholes("ellipsis_mask")):
        raise ModelError("it has a new axis or an ellipsis")
    begins, ends = call.numbers(1), call.numbers(2)
    steps = call.constants(3) if len(call.operands) > 3 else [1] * len(begins)
    masks = [call.wholes(name) or [0] for name in ("begin_mask", "end_mask", "shrink_axis_mask")]
    found = list[Strided]()
    for axis, (begin, end, step) in enumerate(zip(begins, ends, steps, strict=True)):
        no_begin, no_end, shrinks = (axis < len(mask) and bool(mask[axis]) for mask in masks)
        own = begin if shrinks or not no_begin else 0
        found.append((axis, own, selecting.HIGHEST[1] if no_end else end, step, shrinks))
    return found


def strided_slice(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's StridedSlice by its masks, which say for each axis if its begin or
    end is left out and if the axis is removed.
    """
    x = call.x
    for axis, begin, end, step, is_one in reversed(strided(call)):
        if is_one:
            x = selecting.gather(x, constant(np.asarray(begin)), axis)
        else:
            x = selecting.slice_axis(x, axis, begin, end, step)
    return x


def broadcast(call: OpenVinoCall) -> Placed:
    """Computes OpenVINO's Broadcast by NumPy's rules; raises `ModelError` for other modes."""
    if call.text("mode", "numpy") not in ("numpy", "bidirectional"):
        raise ModelError(f"its mode {short_repr(call.text('mode'))} is not supported")
    return shaping.expand(call.x, call.numbers(1))


def gather(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Gather: the entries of the first operand along an axis whose indices
    are in the second, such as the rows of an embedding. The axis is the third operand, a constant. Raises
    `ModelError` if its batch_dims is not 0.
    """
    if call.whole("batch_dims", 0):
        raise ModelError("its batch_dims is not 0")
    return selecting.gather(call.x, call.operand(1), call.x.axis(call.constants(2)[0]))


def slices_of(call: OpenVinoCall) -> list[tuple[int, Any, Any, int]]:
    """Returns for each slice of an OpenVINO Slice its axis, its first place, its end and its stride."""
    starts, ends, steps = (call.numbers(index) for index in (1, 2, 3))
    axes = call.constants(4) if len(call.operands) > 4 else list(range(len(starts)))
    if not len(starts) == len(ends) == len(steps) == len(axes):
        raise ModelError("its starts, ends, steps and axes are of different numbers")
    return [*zip(axes, starts, ends, map(int, steps), strict=True)]


def sliced(call: OpenVinoCall) -> Placed:
    """Computes the result of OpenVINO's Slice: of features or shapes, or one end step of each sequence."""
    x = call.x
    for axis, start, end, step in slices_of(call):
        x = selecting.slice_axis(x, axis, start, end, step)
    return x


def split(call: OpenVinoCall) -> list[Placed]:
    """Computes the results of OpenVINO's Split: equal parts of the operand along an axis."""
    axis, count = call.x.axis(call.constants(1)[0]), call.whole("num_splits", 1)
    if count < 1:
        raise ModelError(f"its num_splits is {count}")
    return selecting.split(call.x, axis, [call.x.sizes[axis] // count] * count)


def parts(call: OpenVinoCall) -> list[Placed]:
    """Computes OpenVINO's VariadicSplit: parts along an axis, of the sizes in operand 3; -1 is the rest."""
    axis, sizes = call.x.axis(call.constants(1)[0]), call.constants(2)
    rest = call.x.sizes[axis] - sum(size for size in sizes if size != -1)
    return selecting.split(call.x, axis, [rest if size == -1 else size for size in sizes])


# ---- recurrences -------------------------------------------------------------------------------------------


def recurrence(call: OpenVinoCall) -> list[Placed]:
    """Computes the results of a recurrent operator over sequences: [batch, directions, steps, hidden] for
    each step, and the final states [batch, directions, hidden]. Raises `ModelError` for lengths of sequences
    that are an input of the model.
    """
    layer, operator = call.recurrent, OPERATORS[call.layer.type]
    assert layer is not None
    x = as_sequences(call.x, batch_first=True)
    if reads_lengths(call.operand(1 + operator.states), x):
        raise ModelError("its lengths are an input of the model")
    initial = [initial_state(call.operand(1 + index), batch_first=True) for index in range(operator.states)]
    hidden, given = layer.top.solved_sizes().hidden, any(state is not None for state in initial)
    states = [state_for(state, way) for way in range(layer.directions) for state in initial]
    rows = [state if isinstance(state, Traced) else rows_of(x.value, state, hidden) for state in states]
    outputs, final = layer.run(x.value, rows if given else ())
    by_slot = [final[slot :: operator.states] for slot in range(operator.states)]
    wide = (layer.directions, hidden)
    return [
        x.lettered(reshaped(outputs, wide), "N_T_"),
        *(
            x.lettered(reshaped(np.concatenate(own, axis=-1) if own[1:] else own[0], wide), "N__")
            for own in by_slot
        ),
    ]


OPENVINO: Mapping[str, Rule] = {
    **{name: recurrence for name, operator in OPERATORS.items() if operator.sequence},
    "Abs": elementwise("absolute"),
    "Add": elementwise("add"),
    "Atan": elementwise("arctan"),
    "Broadcast": broadcast,
    "Ceiling": elementwise("ceil"),
    "Clamp": lambda call: pointwise.clip(call.x, call.number("min", -np.inf), call.number("max", np.inf)),
    "Concat": lambda call: selecting.concatenate(call.operands, call.whole("axis", 0)),
    "Convert": convert,
    "ConvertLike": lambda call: pointwise.cast(call.x, pointwise.dtype_of(call.operand(1)).name),
    "Cos": elementwise("cos"),
    "Cosh": elementwise("cosh"),
    "CumSum": cumulated,
    "Divide": divide,
    "Elu": elementwise("elu", alpha=1.0),
    "Equal": elementwise("equal"),
    "Erf": elementwise("erf"),
    "Exp": elementwise("exp"),
    "Floor": elementwise("floor"),
    "FloorMod": elementwise("remainder"),
    "Gather": gather,
    "Gelu": lambda call: pointwise.elementwise(
        "gelu", call.x, numbers=[call.text("approximation_mode") == "tanh"]
    ),
    "Greater": elementwise("greater"),
    "GreaterEqual": elementwise("greater_equal"),
    "HSigmoid": lambda call: pointwise.elementwise("hard_sigmoid", call.x, numbers=[1 / 6, 0.5]),
    "HSwish": elementwise("hard_swish"),
    "HardSigmoid": of_numbers("hard_sigmoid"),
    "Less": elementwise("less"),
    "LessEqual": elementwise("less_equal"),
    "Log": elementwise("log"),
    "LogSoftmax": over_axis(reductions.log_softmax, -1),
    "LogicalAnd": elementwise("logical_and"),
    "LogicalNot": elementwise("logical_not"),
    "LogicalOr": elementwise("logical_or"),
    "LogicalXor": elementwise("logical_xor"),
    "MatMul": product,
    "MVN": normalised,
    "Maximum": elementwise("maximum"),
    "Minimum": elementwise("minimum"),
    "Mod": elementwise("signed_remainder"),
    "Multiply": elementwise("multiply"),
    "Negative": elementwise("negative"),
    "NotEqual": elementwise("not_equal"),
    "PReLU": elementwise("leaky_relu"),
    "Power": lambda call: pointwise.power(call.operand(0), call.operand(1)),
    "ReLU": elementwise("relu"),
    "ReduceMax": reduction("max"),
    "ReduceMean": reduction("mean"),
    "ReduceMin": reduction("min"),
    "ReduceSum": reduction("sum"),
    "Reshape": lambda call: shaping.reshape(call.x, call.numbers(1), call.flag("special_zero")),
    "Select": lambda call: pointwise.where(call.operand(0), call.operand(1), call.operand(2)),
    "Selu": of_numbers("selu"),
    "ShapeOf": lambda call: shaping.shape_of_axes(call.x),
    "Sigmoid": elementwise("sigmoid"),
    "Sign": elementwise("sign"),
    "Sin": elementwise("sin"),
    "Sinh": elementwise("sinh"),
    "Slice": sliced,
    "SoftMax": over_axis(reductions.softmax, 1),
    "SoftPlus": elementwise("softplus"),
    "Split": split,
    "Sqrt": elementwise("sqrt"),
    "SquaredDifference": elementwise("squared_difference"),
    "Squeeze": lambda call: shaping.squeeze(call.x, call.constants(1) if len(call.operands) > 1 else None),
    "StridedSlice": strided_slice,
    "Subtract": elementwise("subtract"),
    "Swish": swish,
    "Tan": elementwise("tan"),
    "Tanh": elementwise("tanh"),
    "Tile": tile,
    "Transpose": transpose,
    "Unsqueeze": lambda call: shaping.unsqueeze(call.x, call.constants(1)),
    "VariadicSplit": parts,
    **WINDOWS,
}
"""The rule of each supported operator of OpenVINO: its result, or its results in order."""
